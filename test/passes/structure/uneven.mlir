// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Dimensions that do not divide: the island is about whole tiles, which is how XLA stores such arrays. Zeros come before it and go behind it.

// Padded, the tiles of both sides fit together.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.optimization_barrier
// CHECK: stablehlo.pad {{.*}} low = [0, 0], high = [2, 0], interior = [0, 0] : (tensor<10x14xf32>, tensor<f32>) -> tensor<12x14xf32>
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<3x14xf32>) {
// CHECK: "stablehlo.all_to_all"
// CHECK: } : (tensor<12x14xf32>) -> tensor<10x16xf32>
// CHECK: stablehlo.slice {{.*}} : (tensor<10x16xf32>) -> tensor<10x14xf32>
func.func public @main(%arg0: tensor<10x14xf32>) -> tensor<10x14xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<10x14xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<10x14xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<10x14xf32>
  %3 = stablehlo.optimization_barrier %2 : tensor<10x14xf32>
  return %3 : tensor<10x14xf32>
}

// -----

// Blocks of 3 rows and blocks of 5: devices exchange what overlaps.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.optimization_barrier
// CHECK: -> tensor<12x12xf32>
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<3x12xf32>) {
// CHECK: "stablehlo.collective_permute"
// CHECK: } : (tensor<12x12xf32>) -> tensor<10x12xf32>
func.func public @main(%arg0: tensor<10x12xf32>) -> tensor<10x12xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<10x12xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<10x12xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {}]> : tensor<10x12xf32>
  %3 = stablehlo.optimization_barrier %2 : tensor<10x12xf32>
  return %3 : tensor<10x12xf32>
}

// -----

// Two axes, two dimensions, packed elements.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: out_shardings=[<@mesh, [{}, {"x", "y"}]>]
// CHECK: } : (tensor<12x6xi4>) -> tensor<10x8xi4>
func.func public @main(%arg0: tensor<10x6xi4>) -> tensor<10x6xi4> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {"y"}]> : tensor<10x6xi4>
  %1 = stablehlo.optimization_barrier %0 : tensor<10x6xi4>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x", "y"}]> : tensor<10x6xi4>
  %3 = stablehlo.optimization_barrier %2 : tensor<10x6xi4>
  return %3 : tensor<10x6xi4>
}

// -----

// Into the layout and out of it.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: in_shardings=[<@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {"y"}, {}]>]
// CHECK: } : (tensor<5x5x5xcomplex<f32>>) -> tensor<8x6x5xcomplex<f32>>
func.func public @main(%arg0: tensor<5x5x5xcomplex<f32>>) -> tensor<5x5x5xcomplex<f32>> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {"y"}, {}]> : tensor<5x5x5xcomplex<f32>>
  %1 = stablehlo.optimization_barrier %0 : tensor<5x5x5xcomplex<f32>>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}, {"y"}]> : tensor<5x5x5xcomplex<f32>>
  %3 = stablehlo.optimization_barrier %2 : tensor<5x5x5xcomplex<f32>>
  return %3 : tensor<5x5x5xcomplex<f32>>
}

// -----

// Around ops, in a loop.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.while
// CHECK: } : (tensor<12x14xf32>) -> tensor<10x16xf32>
func.func public @main(%arg0: tensor<10x14xf32>) -> tensor<10x14xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %l:2 = stablehlo.while(%i = %c, %v = %arg0) : tensor<i32>, tensor<10x14xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %k = sdy.sharding_constraint %v <@mesh, [{"x"}, {}]> : tensor<10x14xf32>
      %m = stablehlo.negate %k : tensor<10x14xf32>
      %m2 = stablehlo.optimization_barrier %m : tensor<10x14xf32>
      %w = sdy.sharding_constraint %m2 <@mesh, [{}, {"x"}]> : tensor<10x14xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<10x14xf32>
    }
  return %l#1 : tensor<10x14xf32>
}

// -----

// An axis cut in 2·3 and in 3·2: halves and thirds share no blocks.
sdy.mesh @mesh = <["x"=6]>
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x":(1)2}, {}]>] out_shardings=[<@mesh, [{"x":(1)3}, {}]>]
// CHECK: "stablehlo.all_gather"
func.func public @main(%arg0: tensor<12x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}) -> (tensor<12x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)3}, {}]>}) {
  return %arg0 : tensor<12x4xf32>
}
