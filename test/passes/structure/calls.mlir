// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Functions and calls: a function gets a clone for each way in which its calls convert, where sites are rewritten in it.

// The calls come in two layouts.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: call @f(
  %0 = call @f(%arg0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"}
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<16x16xf32>
  // CHECK: call @f_1(
  %2 = call @f(%1) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %2 : tensor<16x16xf32>
}
// CHECK-LABEL: func.func private @f(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
// CHECK-LABEL: func.func private @f_1(
// CHECK-NOT: reshard.
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>]
func.func private @f(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.optimization_barrier %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// -----

// Who calls it is what differs: both functions are cloned.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: call @g(
  %0 = call @g(%arg0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<16x16xf32>
  // CHECK: call @g_1(
  %2 = call @g(%1) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %2 : tensor<16x16xf32>
}
// CHECK-LABEL: func.func private @g(
// CHECK: call @f(
// CHECK-LABEL: func.func private @g_1(
// CHECK: call @f_1(
func.func private @g(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = call @f(%arg0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
// CHECK-LABEL: func.func private @f(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
// CHECK-LABEL: func.func private @f_1(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>]
func.func private @f(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.optimization_barrier %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// -----

// A public function that is called, too, keeps its name for who calls it from outside.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> tensor<16x16xf32> {
  // CHECK: call @public_1(
  %0 = call @public(%arg0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
// CHECK-LABEL: func.func public @public(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
// CHECK-LABEL: func.func private @public_1(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>]
func.func public @public(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) -> tensor<16x16xf32> {
  %0 = stablehlo.optimization_barrier %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// -----

// A call that needs no conversion keeps the function as it was.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> (tensor<16x16xf32>, tensor<16x16xf32>) {
  // CHECK: call @f(
  %0 = call @f(%arg0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  // CHECK: call @f_1(
  %1 = call @f(%arg1) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0, %1 : tensor<16x16xf32>, tensor<16x16xf32>
}
// CHECK-LABEL: func.func private @f(
// CHECK-NEXT: stablehlo.optimization_barrier
// CHECK-NEXT: sdy.sharding_constraint
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @f_1(
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>]
func.func private @f(%arg0: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = stablehlo.optimization_barrier %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}
