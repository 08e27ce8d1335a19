// RUN: %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' --mlir-pass-statistics -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' -o /dev/null 2>&1 | FileCheck %s --check-prefix=NO-CHAIN

// NO-CHAIN: left.mlir: remark: 1 collective stays as it is: no chain is faster by 10% on two nodes of four

// Collectives that no chain can take the place of stay, and the reason is told.

// CHECK: left.mlir:17:{{[0-9]+}}: remark: all_reduce stays as it is: it is in no manual computation, so its mesh is unknown
// CHECK: left.mlir:26:{{[0-9]+}}: remark: all_reduce stays as it is: XLA partitions the tiles of the manual computation around it along gpu
// CHECK: left.mlir:37:{{[0-9]+}}: remark: all_reduce stays as it is: its computation has no counterpart among the reductions of plans
// CHECK: left.mlir:48:{{[0-9]+}}: remark: all_reduce stays as it is: its groups are along no axes of the mesh
// CHECK: 1 kept
// CHECK: 4 left

sdy.mesh @mesh = <["node"=2, "gpu"=4]>
func.func @outside(%arg0: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<1048576xf32>) -> tensor<1048576xf32>
  return %0 : tensor<1048576xf32>
}
func.func @partly_manual(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", ?}, {?}]>] out_shardings=[<@mesh, [{"node", ?}, {?}]>] manual_axes={"node"} (%arg1: tensor<4x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x1048576xf32>) -> tensor<4x1048576xf32>
    sdy.return %1 : tensor<4x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}
func.func @difference(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.subtract %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}
func.func @irregular(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 4], [3, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}
func.func @inside_a_node(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}
