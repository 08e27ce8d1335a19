// RUN: %reshard-opt %s --convert-to-local=memory-limit=4194304 | FileCheck %s

// The rule that gathers the table needs more than the limit, so another rule of the lookup is taken.

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: func.func @lookup(
// CHECK-NOT: all_gather
// CHECK: stablehlo.gather
// CHECK: stablehlo.all_reduce
func.func @lookup(%table: tensor<65536x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %rows: tensor<4x1xi32>)
    -> (tensor<4x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = "stablehlo.gather"(%table, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 64>}>
    : (tensor<65536x64xf32>, tensor<4x1xi32>) -> tensor<4x64xf32>
  return %0 : tensor<4x64xf32>
}
