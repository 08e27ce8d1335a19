// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module()'

// Errors of parsing and of verification match the comments, in every spelling of a place.

// expected-error@+1 {{custom op 'nonsense' is unknown}}
func.func @below_by_number() { nonsense }

// -----

func.func @on_the_line() { nonsense } // expected-error {{custom op 'nonsense' is unknown}}

// -----

func.func @above_by_number() { nonsense }
// expected-error@-1 {{'nonsense'}}

// -----

func.func @above() { nonsense }
// expected-error @above {{'nonsense'}}

// -----

// expected-note@below {{see existing symbol definition here}}
func.func @twice() { return }
// expected-error-re @below {{redefinition of {{[a-z]+}} named 'twice'}}
func.func @twice() { return }

// -----

// expected-error@+1 {{unknown mesh: @nowhere}}
func.func @an_unknown_mesh(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@nowhere, [{}]>}) {
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error@+1 {{unknown axis name: "y"}}
func.func @an_unknown_axis(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) {
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error@+1 {{sharding doesn't match tensor rank: 2 != 1}}
func.func @a_wrong_rank(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error@+1 {{duplicate axis ref: "x"}}
func.func @an_axis_used_twice(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"x"}]>}) {
  return
}

// -----

// expected-error@+1 {{duplicate axis name: "x"}}
sdy.mesh @mesh = <["x"=2, "x"=2]>

// -----

func.func @an_op_of_an_unknown_dialect(%arg0: tensor<4xf32>) {
  // expected-error@+1 {{unregistered dialect}}
  %0 = "tosa.reshape"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @an_unknown_dialect(%arg0: tensor<4xf32>) {
  // expected-note@+2 {{Available dialects}}
  // expected-error@+1 {{Dialect `tosa' not found for custom op 'tosa.reshape'}}
  %0 = tosa.reshape %arg0 : tensor<4xf32>
  return
}

// -----

func.func @a_type_mismatch(%arg0: tensor<4xf32>, %arg1: tensor<5xf32>) {
  // expected-error@+2 {{use of value '%arg1' expects different type than prior uses}}
  // expected-note@-2 {{prior use here}}
  %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
  return
}
