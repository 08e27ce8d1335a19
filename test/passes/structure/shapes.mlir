// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Ranks and sizes at the edge.

// A scalar has one layout.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: sdy.sharding_constraint %arg0 <@mesh, []> : tensor<f32>
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<f32>, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<f32>, tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, []> : tensor<f32>
  return %0, %arg1 : tensor<f32>, tensor<16x16xf32>
}

// -----

// No elements: the layout changes, nothing moves.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK-NOT: all_to_all
// CHECK: return
func.func public @main(%arg0: tensor<0x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<0x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0 : tensor<0x16xf32>
}

// -----

// Axes of size 1 split nothing.
sdy.mesh @mesh = <["one"=1, "x"=4, "uno"=1, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: return %arg0, %arg1
func.func public @main(%arg0: tensor<16x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"one", "x"}, {"uno"}]>}, %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"uno"}]>})
    -> (tensor<16x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  return %arg0, %arg1 : tensor<16x1xf32>, tensor<16xf32>
}

// -----

// More shards than rows.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.pad {{.*}} : (tensor<3x16xf32>, tensor<f32>) -> tensor<4x16xf32>
// CHECK: in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
// CHECK: } : (tensor<4x16xf32>) -> tensor<3x16xf32>
func.func public @main(%arg0: tensor<3x16xf32>) -> (tensor<3x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<3x16xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<3x16xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<3x16xf32>
  return %2 : tensor<3x16xf32>
}
