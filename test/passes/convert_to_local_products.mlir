// RUN: %reshard-opt %s --convert-to-local=products=least-time --topology=v5e:2x4 --split-input-file | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --topology=v5e:2x4 --split-input-file | FileCheck %s --check-prefix=FOUND

// Products are split in the way that takes least time, with the conversions of what they take and make.

sdy.mesh @mesh = <["x"=8]>

// Propagation takes the columns of the right operand, and gathers the left one. To turn the right operand and to add up
// the small result takes less.
// CHECK-LABEL: func.func @a_small_result_is_added_up(
// CHECK-NOT: stablehlo.all_gather
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.dot_general
// CHECK-SAME: (tensor<64x1024xf32>, tensor<1024x64xf32>) -> tensor<64x64xf32>
// CHECK: stablehlo.reduce_scatter
// FOUND-LABEL: func.func @a_small_result_is_added_up(
// FOUND: stablehlo.all_gather
// FOUND: stablehlo.dot_general
// FOUND-SAME: (tensor<64x8192xf32>, tensor<8192x8xf32>) -> tensor<64x8xf32>
func.func @a_small_result_is_added_up(
    %arg0: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<8192x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x8192xf32>, tensor<8192x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// The result is large, so nothing is added up.
// CHECK-LABEL: func.func @a_large_result_is_split_by_columns(
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.dot_general
// CHECK-SAME: -> tensor<256x1024xf32>
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK: sdy.return
func.func @a_large_result_is_split_by_columns(
    %arg0: tensor<256x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<256x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<256x64xf32>, tensor<64x8192xf32>) -> tensor<256x8192xf32>
  return %0 : tensor<256x8192xf32>
}
