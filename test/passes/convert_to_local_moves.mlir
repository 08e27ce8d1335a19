// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s

// Slices and concatenations along a split dimension move what changes hands, and gather nothing.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Rows 1 to 4: each device keeps one row and receives one.
// CHECK-LABEL: func.func @slice(
// CHECK-NOT: stablehlo.all_gather
// CHECK: "stablehlo.collective_permute"({{.*}}) {{.*}} : (tensor<1x16xf32>) -> tensor<1x16xf32>
// CHECK-NOT: stablehlo.collective_permute
// CHECK: sdy.return {{.*}} : tensor<2x16xf32>
func.func @slice(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.slice %arg0 [1:5, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// The last row becomes the first one: no slice is made, and both parts move to their places in one round.
// CHECK-LABEL: func.func @roll(
// CHECK-NOT: stablehlo.all_gather
// CHECK: "stablehlo.collective_permute"({{.*}}) {{.*}} : (tensor<1x16xf32>) -> tensor<1x16xf32>
// CHECK-NOT: stablehlo.collective_permute
// CHECK-NOT: stablehlo.concatenate
// CHECK: sdy.return {{.*}} : tensor<4x16xf32>
func.func @roll(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.slice %arg0 [7:8, 0:16] : (tensor<8x16xf32>) -> tensor<1x16xf32>
  %1 = stablehlo.slice %arg0 [0:7, 0:16] : (tensor<8x16xf32>) -> tensor<7x16xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1x16xf32>, tensor<7x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// The array is whole before the constraint, so nobody gathers it behind it.
// CHECK-LABEL: func.func @what_is_at_hand_is_not_gathered_again(
// CHECK-NOT: stablehlo.all_gather
// CHECK: sdy.return {{.*}} : tensor<4x16xf32>, tensor<8x16xf32>
func.func @what_is_at_hand_is_not_gathered_again(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x16xf32>
  %1 = stablehlo.negate %0 : tensor<8x16xf32>
  return %1, %0 : tensor<8x16xf32>, tensor<8x16xf32>
}
