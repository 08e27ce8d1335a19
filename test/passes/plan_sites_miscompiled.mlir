// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off})' -o /dev/null 2>&1 | FileCheck %s
// No layout is held at an op that XLA computes wrongly in it, whatever the policy; see docs/miscompilations.md.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// 10 indices over 4 devices: XLA fills the last tile with zeros, which a minimum does not ignore.
func.func public @operands_of_a_scatter(
    %a: tensor<16x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %i: tensor<10x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %u: tensor<10x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16x12xf32> {
  // CHECK: remark: site {{[0-9]+}} (constraint) is left to XLA: its user scatter: XLA fills uneven tiles of indices and updates with zeros, which this combiner does not ignore
  %0 = sdy.sharding_constraint %i <@mesh, [{"y"}, {}]> : tensor<10x1xi32>
  %1 = "stablehlo.scatter"(%a, %0, %u) <{indices_are_sorted = false, unique_indices = false,
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %2 = stablehlo.minimum %p, %q : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<16x12xf32>, tensor<10x1xi32>, tensor<10x12xf32>) -> tensor<16x12xf32>
  return %1 : tensor<16x12xf32>
}
