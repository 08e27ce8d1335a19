// RUN: %reshard-opt %s --pass-pipeline="convert-to-local{platform=tpu}" --no-remarks | FileCheck %s
// RUN: %reshard-opt %s --emit=local --compile-for=tpu:v5e:2x4 --no-check --no-remarks | FileCheck %s

// The forms of TPUs: collectives on the dimensions that they change.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @gathered_along_its_dimension(
// CHECK: "stablehlo.all_gather"(%arg1) <{all_gather_dim = 1 : i64
// CHECK-NOT: stablehlo.transpose
func.func @gathered_along_its_dimension(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @summed_and_split_along_its_dimension(
// CHECK: %[[PART:.*]] = stablehlo.dot_general
// CHECK: "stablehlo.reduce_scatter"(%[[PART]])
// CHECK-SAME: scatter_dimension = 1 : i64
// CHECK: (tensor<4x32xf32>) -> tensor<4x8xf32>
func.func @summed_and_split_along_its_dimension(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}
