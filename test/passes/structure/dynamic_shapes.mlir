// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Dynamic dimensions: nothing is propagated through them; the rest of the module is done.

sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<?x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<?x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK-NEXT: stablehlo.tanh %arg0 : tensor<?x16xf32>
  %0 = stablehlo.tanh %arg0 : tensor<?x16xf32>
  // CHECK-NEXT: sdy.sharding_constraint {{.*}} : tensor<?x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<?x16xf32>
  // CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  %2 = sdy.sharding_constraint %arg1 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %1, %2 : tensor<?x16xf32>, tensor<16x16xf32>
}

// -----

// In a loop, a function and an op with a region.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<?x16xf32>, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<f32>, tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  // CHECK: stablehlo.while
  %l:3 = stablehlo.while(%i = %c, %v = %arg1, %d = %arg0) : tensor<i32>, tensor<16x16xf32>, tensor<?x16xf32>
    cond {
      %n = stablehlo.get_dimension_size %d, dim = 0 : (tensor<?x16xf32>) -> tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %k = sdy.sharding_constraint %v <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
      %w = stablehlo.negate %k : tensor<16x16xf32>
      %e = func.call @f(%d) : (tensor<?x16xf32>) -> tensor<?x16xf32>
      stablehlo.return %j, %w, %e : tensor<i32>, tensor<16x16xf32>, tensor<?x16xf32>
    }
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%l#2 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<?x16xf32>, tensor<f32>) -> tensor<f32>
  return %0, %l#1 : tensor<f32>, tensor<16x16xf32>
}
func.func private @f(%arg0: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %0 = stablehlo.negate %arg0 : tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
