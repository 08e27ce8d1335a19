// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s

// Windows along split dimensions receive borders; a window that is split itself makes partial sums.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// A window of three: one row from the device before, and one from the device behind.
// CHECK-LABEL: func.func @convolution(
// CHECK-NOT: stablehlo.all_gather
// CHECK: "stablehlo.collective_permute"({{.*}}) {{.*}} : (tensor<1x1x2xf32>) -> tensor<1x1x2xf32>
// CHECK: "stablehlo.collective_permute"({{.*}}) {{.*}} : (tensor<1x1x2xf32>) -> tensor<1x1x2xf32>
// CHECK: stablehlo.concatenate {{.*}} -> tensor<1x6x2xf32>
// CHECK: stablehlo.convolution({{.*}}) {{.*}} : (tensor<1x6x2xf32>, tensor<3x2x2xf32>) -> tensor<1x4x2xf32>
// CHECK: sdy.return {{.*}} : tensor<1x4x2xf32>
func.func @convolution(%arg0: tensor<1x16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}, %arg1: tensor<3x2x2xf32>)
    -> (tensor<1x16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
    window = {stride = [1], pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x16x2xf32>, tensor<3x2x2xf32>) -> tensor<1x16x2xf32>
  return %0 : tensor<1x16x2xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Windows side by side, each on one device: nothing moves.
// CHECK-LABEL: func.func @pool(
// CHECK-NOT: stablehlo.collective_permute
// CHECK-NOT: stablehlo.all_gather
// CHECK: window_dimensions = array<i64: 2>
// CHECK: (tensor<4xf32>, tensor<f32>) -> tensor<2xf32>
func.func @pool(%arg0: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>})
    -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) {
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%arg0, %cst) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
