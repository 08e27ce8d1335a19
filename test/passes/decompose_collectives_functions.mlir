// RUN: %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' 2>&1 | FileCheck %s

// A collective in a function that one manual computation calls is planned there; one that several call, or code outside,
// stays. A value that a function returns differs along the axes along which any of its calls may make it differ.

// CHECK: functions.mlir:{{[0-9]+}}:{{[0-9]+}}: remark: all_reduce stays as it is: its function is called in several manual computations, or outside of them

sdy.mesh @mesh = <["node"=2, "gpu"=4]>

// CHECK-LABEL: func.func @main(
func.func @main(%arg0: tensor<8x1048576xf32>, %arg1: tensor<2x1048576xf32>) -> (tensor<8x1048576xf32>, tensor<2x1048576xf32>) {
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>, <@mesh, [{"node"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>, <@mesh, [{"node"}, {}]>] manual_axes={"node", "gpu"} (%arg2: tensor<1x1048576xf32>, %arg3: tensor<1x1048576xf32>) {
    %1 = func.call @summed(%arg2) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    %2 = func.call @doubled(%arg3) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    // What @doubled returns is the same on a node, so a fourth of it crosses through each device.
    // CHECK: dynamic_slice
    // CHECK: "stablehlo.all_reduce"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
    %3 = "stablehlo.all_reduce"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %5 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    %4 = func.call @shared(%3) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %1, %4 : tensor<1x1048576xf32>, tensor<1x1048576xf32>
  } : (tensor<8x1048576xf32>, tensor<2x1048576xf32>) -> (tensor<8x1048576xf32>, tensor<2x1048576xf32>)
  %6 = sdy.manual_computation(%0#1) in_shardings=[<@mesh, [{"node"}, {}]>] out_shardings=[<@mesh, [{"node"}, {}]>] manual_axes={"node", "gpu"} (%arg2: tensor<1x1048576xf32>) {
    %7 = func.call @shared(%arg2) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    sdy.return %7 : tensor<1x1048576xf32>
  } : (tensor<2x1048576xf32>) -> tensor<2x1048576xf32>
  return %0#0, %6 : tensor<8x1048576xf32>, tensor<2x1048576xf32>
}

// CHECK-LABEL: func.func private @summed(
// CHECK: "stablehlo.reduce_scatter"
// CHECK: "stablehlo.all_reduce"
// CHECK: "stablehlo.all_gather"
func.func private @summed(%arg0: tensor<1x1048576xf32>) -> tensor<1x1048576xf32> {
  %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
  return %0 : tensor<1x1048576xf32>
}
func.func private @doubled(%arg0: tensor<1x1048576xf32>) -> tensor<1x1048576xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<1x1048576xf32>
  return %0 : tensor<1x1048576xf32>
}

// CHECK-LABEL: func.func private @shared(
// CHECK-NOT: reduce_scatter
// CHECK: "stablehlo.all_reduce"({{.*}}handle = 1, type = 1>
func.func private @shared(%arg0: tensor<1x1048576xf32>) -> tensor<1x1048576xf32> {
  %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
  return %0 : tensor<1x1048576xf32>
}
