// RUN: %reshard-opt %s --import-gspmd --split-input-file --verify-diagnostics

// Strings that are no shardings are errors at the op that has them.

// expected-error @+1 {{cannot read the sharding '{devices=[2,2]<=[8]}': 8 devices for 4 tiles}}
func.func @devices_and_tiles(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,2]<=[8]}"}) {
  return
}

// -----

func.func @nonsense(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{cannot read the sharding '{nonsense}': unknown word 'nonsense'}}
  %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{nonsense}"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// expected-error @+1 {{sharding {devices=[2,2]<=[4]} is for an array of rank 2, the type is tensor<8xf32>}}
func.func @rank(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}) {
  return
}

// -----

// expected-error @+1 {{cannot read the sharding 3 : i64: it is no string}}
func.func @no_string(%arg0: tensor<8xf32> {mhlo.sharding = 3 : i64}) {
  return
}

// -----

// expected-error @+1 {{cannot read xla.sdy.meshes = "{mesh = 3}": its text is not the attribute that XLA writes there}}
module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = 3}"}} {
}

// -----

module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2]>}"}} {
  // expected-error @+1 {{cannot read xla.sdy.sharding = "#sdy.sharding<@mesh, [{": its text is not the attribute that XLA writes there}}
  func.func @main(%arg0: tensor<8xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{"}}) {
    return
  }
}

// -----

func.func @nothing_to_constrain(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
  // expected-error @+1 {{custom call @Sharding has 0 operands and 1 results; it takes 1 and gives 1}}
  %0 = stablehlo.custom_call @Sharding() {mhlo.sharding = "{devices=[2]<=[2]}"} : () -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @no_entry(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<4xf32> {
  // expected-error @+1 {{custom call @SPMDFullToShardShape has 2 operands and 1 results; it takes 1 and gives 1}}
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0, %arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2]>}"}} {
  func.func @main(%arg0: tensor<8xf32>) {
    // expected-error @+1 {{custom call @xla.sdy.PropagationBarrier has 0 operands and 1 results; it takes 1 and gives 1}}
    %0 = stablehlo.custom_call @xla.sdy.PropagationBarrier() {mhlo.frontend_attributes = {xla.sdy.allowed_direction = "0 : i64"}} : () -> tensor<8xf32>
    return
  }
}
