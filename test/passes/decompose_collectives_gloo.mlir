// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{platform=gloo topology=%S/Inputs/two_nodes_of_four.toml})' | FileCheck %s

// Gloo's reduce_scatter may be wrong over slow links: an all_to_all brings the parts together, which are then summed.

sdy.mesh @mesh = <["node"=2, "gpu"=4]>
// CHECK-LABEL: func.func @a_part_of_each_tile_and_their_sum(
func.func @a_part_of_each_tile_and_their_sum(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  // CHECK: %[[SWAPPED:.+]] = "stablehlo.all_to_all"(%{{.+}}) <{{.*}}split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x1x262144xf32>) -> tensor<4x1x262144xf32>
  // CHECK-NEXT: %[[A:.+]] = stablehlo.slice %[[SWAPPED]] [0:1, 0:1, 0:262144]
  // CHECK-NEXT: %[[B:.+]] = stablehlo.slice %[[SWAPPED]] [1:2, 0:1, 0:262144]
  // CHECK-NEXT: %[[C:.+]] = stablehlo.slice %[[SWAPPED]] [2:3, 0:1, 0:262144]
  // CHECK-NEXT: %[[D:.+]] = stablehlo.slice %[[SWAPPED]] [3:4, 0:1, 0:262144]
  // CHECK-NEXT: %[[AB:.+]] = stablehlo.add %[[A]], %[[B]]
  // CHECK-NEXT: %[[ABC:.+]] = stablehlo.add %[[AB]], %[[C]]
  // CHECK-NEXT: stablehlo.add %[[ABC]], %[[D]]
  // CHECK: "stablehlo.all_reduce"
  // CHECK: "stablehlo.all_gather"
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}
