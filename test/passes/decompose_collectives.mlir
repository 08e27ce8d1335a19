// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml},decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' | FileCheck %s

// Two nodes of four devices; the network between the nodes is slow, and the library runs sums around one ring. A pass
// that has run changes nothing when it runs again.

sdy.mesh @mesh = <["node"=2, "gpu"=4]>

// CHECK-LABEL: func.func @a_sum_over_all_is_inside_then_across_then_inside(
func.func @a_sum_over_all_is_inside_then_across_then_inside(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  // CHECK: "stablehlo.reduce_scatter"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: (tensor<4x262144xf32>) -> tensor<1x262144xf32>
  // CHECK: "stablehlo.all_reduce"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK: "stablehlo.all_gather"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
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

// CHECK-LABEL: func.func @a_maximum_keeps_its_computation(
func.func @a_maximum_keeps_its_computation(%arg0: tensor<8x1048576xi32>) -> tensor<8x1048576xi32> {
  // CHECK: "stablehlo.reduce_scatter"
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: stablehlo.maximum
  // CHECK: "stablehlo.all_reduce"
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: stablehlo.maximum
  // CHECK: "stablehlo.all_gather"
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xi32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %2 = stablehlo.maximum %a, %b : tensor<i32>
      stablehlo.return %2 : tensor<i32>
    }) : (tensor<1x1048576xi32>) -> tensor<1x1048576xi32>
    sdy.return %1 : tensor<1x1048576xi32>
  } : (tensor<8x1048576xi32>) -> tensor<8x1048576xi32>
  return %0 : tensor<8x1048576xi32>
}

// CHECK-LABEL: func.func @a_sum_inside_a_node_stays(
func.func @a_sum_inside_a_node_stays(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  // CHECK: "stablehlo.all_reduce"(%{{.*}}handle = 1, type = 1>, replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK-NOT: reduce_scatter
  // CHECK: sdy.return
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

// The tiles of the devices of a node are the same, so each sends a fourth of them to the other node.
// CHECK-LABEL: func.func @what_is_the_same_on_a_node_crosses_in_parts(
func.func @what_is_the_same_on_a_node_crosses_in_parts(%arg0: tensor<2x1048576xf32>) -> tensor<2x1048576xf32> {
  // CHECK: stablehlo.dynamic_slice {{.*}}sizes = [1, 262144]
  // CHECK: "stablehlo.all_reduce"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK: "stablehlo.all_gather"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node"}, {}]>] out_shardings=[<@mesh, [{"node"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<2x1048576xf32>) -> tensor<2x1048576xf32>
  return %0 : tensor<2x1048576xf32>
}

// The same sum, but the tiles differ: all of each has to cross.
// CHECK-LABEL: func.func @what_differs_on_a_node_crosses_as_a_whole(
func.func @what_differs_on_a_node_crosses_as_a_whole(%arg0: tensor<8x1048576xf32>) -> tensor<8x1048576xf32> {
  // CHECK-NOT: dynamic_slice
  // CHECK: "stablehlo.all_reduce"(%{{.*}}handle = 1, type = 1>
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1 : tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x1048576xf32>
  return %0 : tensor<8x1048576xf32>
}

// CHECK-LABEL: func.func @an_all_gather_goes_across_first(
func.func @an_all_gather_goes_across_first(%arg0: tensor<8388608xf32>) -> tensor<8388608xf32> {
  // CHECK: "stablehlo.all_gather"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK: "stablehlo.all_gather"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1048576xf32>) {
    %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> : (tensor<1048576xf32>) -> tensor<8388608xf32>
    sdy.return %1 : tensor<8388608xf32>
  } : (tensor<8388608xf32>) -> tensor<8388608xf32>
  return %0 : tensor<8388608xf32>
}

// CHECK-LABEL: func.func @a_reduce_scatter_is_inside_first(
func.func @a_reduce_scatter_is_inside_first(%arg0: tensor<8x1048576xf32>) -> tensor<8x131072xf32> {
  // CHECK: "stablehlo.reduce_scatter"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: "stablehlo.reduce_scatter"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1 = "stablehlo.reduce_scatter"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x131072xf32>
    sdy.return %1 : tensor<1x131072xf32>
  } : (tensor<8x1048576xf32>) -> tensor<8x131072xf32>
  return %0 : tensor<8x131072xf32>
}
