// RUN: %reshard-opt %s --convert-to-local --verify-diagnostics --split-input-file | FileCheck %s

// An op that needs a dimension whole gets it: by another layout where there is one, else gathered, which it says.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @sort_along_a_split_dimension(
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.sort
// CHECK: (tensor<8x8xf32>) -> tensor<8x8xf32>
// CHECK: stablehlo.all_to_all
func.func @sort_along_a_split_dimension(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @every_second_row_of_a_split_dimension(
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.slice {{.*}} [0:8:2, 0:8] : (tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK: stablehlo.all_to_all
func.func @every_second_row_of_a_split_dimension(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.slice %arg0 [0:8:2, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// The columns of the right side are solved for by themselves: the matrix alone is needed whole.
// CHECK-LABEL: func.func @columns_of_a_triangular_solve(
// CHECK: stablehlo.triangular_solve
// CHECK-SAME: (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
// CHECK-NOT: stablehlo.all_gather
// CHECK: sdy.return
func.func @columns_of_a_triangular_solve(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  // expected-remark @+1 {{tensor<8x8xf32> is converted from [{"x"}, {}] to [{}, {}]: it works on whole matrices}}
  %0 = "stablehlo.triangular_solve"(%arg0, %arg1) <{left_side = true, lower = true,
      transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}>
      : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
