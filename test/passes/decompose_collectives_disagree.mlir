// RUN: %reshard-opt %s --remarks=all --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' -o %t 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: FileCheck %s --input-file=%t

// A part of a value that is the same on the devices of a node may go through each of them, if all of them take part. In
// a branch or a loop that only some devices run, and for values that are not known to be the same, sums stay as they are.

// REMARK: disagree.mlir:48:{{[0-9]+}}: remark: all_reduce stays as it is: devices may disagree along gpu, node whether they run it
// REMARK: disagree.mlir:74:{{[0-9]+}}: remark: all_reduce stays as it is: devices may disagree along gpu, node whether they run it
// REMARK: disagree.mlir:109:{{[0-9]+}}: remark: all_gather stays as it is: it takes several arrays
// REMARK: disagree.mlir:117:{{[0-9]+}}: remark: all_reduce stays as it is: the size of its tile is unknown

sdy.mesh @mesh = <["node"=2, "gpu"=4]>

// CHECK-LABEL: func.func @all_devices_run_it(
func.func @all_devices_run_it(%arg0: tensor<1048576xf32>, %arg1: tensor<i32>) -> tensor<1048576xf32> {
  // CHECK: "stablehlo.all_reduce"
  // CHECK-SAME: replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK: (tensor<262144xf32>) -> tensor<262144xf32>
  // CHECK: "stablehlo.all_gather"
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}]>, <@mesh, []>] out_shardings=[<@mesh, [{}]>] manual_axes={"node", "gpu"} (%arg2: tensor<1048576xf32>, %arg3: tensor<i32>) {
    %1 = "stablehlo.case"(%arg3) ({
      %2 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %3 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1048576xf32>) -> tensor<1048576xf32>
      stablehlo.return %2 : tensor<1048576xf32>
    }, {
      stablehlo.return %arg2 : tensor<1048576xf32>
    }) : (tensor<i32>) -> tensor<1048576xf32>
    sdy.return %1 : tensor<1048576xf32>
  } : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
  return %0 : tensor<1048576xf32>
}

// CHECK-LABEL: func.func @some_devices_take_the_branch(
func.func @some_devices_take_the_branch(%arg0: tensor<1048576xf32>) -> tensor<1048576xf32> {
  // CHECK: stablehlo.case
  // CHECK-NEXT: "stablehlo.all_reduce"
  // CHECK-NOT: stablehlo.all_gather
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1048576xf32>) {
    %one = stablehlo.constant dense<1> : tensor<ui32>
    %id = stablehlo.partition_id : tensor<ui32>
    %odd = stablehlo.and %id, %one : tensor<ui32>
    %which = stablehlo.convert %odd : (tensor<ui32>) -> tensor<i32>
    %1 = "stablehlo.case"(%which) ({
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %3 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1048576xf32>) -> tensor<1048576xf32>
      stablehlo.return %2 : tensor<1048576xf32>
    }, {
      stablehlo.return %arg1 : tensor<1048576xf32>
    }) : (tensor<i32>) -> tensor<1048576xf32>
    sdy.return %1 : tensor<1048576xf32>
  } : (tensor<1048576xf32>) -> tensor<1048576xf32>
  return %0 : tensor<1048576xf32>
}

// CHECK-LABEL: func.func @devices_make_different_numbers_of_turns(
func.func @devices_make_different_numbers_of_turns(%arg0: tensor<1048576xf32>) -> tensor<1048576xf32> {
  // CHECK-NOT: stablehlo.all_gather
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1048576xf32>) {
    %one = stablehlo.constant dense<1> : tensor<ui32>
    %zero = stablehlo.constant dense<0> : tensor<ui32>
    %id = stablehlo.partition_id : tensor<ui32>
    %1:2 = stablehlo.while(%i = %zero, %x = %arg1) : tensor<ui32>, tensor<1048576xf32> cond {
      %2 = stablehlo.compare LT, %i, %id : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %3 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1048576xf32>) -> tensor<1048576xf32>
      %4 = stablehlo.add %i, %one : tensor<ui32>
      stablehlo.return %4, %2 : tensor<ui32>, tensor<1048576xf32>
    }
    sdy.return %1#1 : tensor<1048576xf32>
  } : (tensor<1048576xf32>) -> tensor<1048576xf32>
  return %0 : tensor<1048576xf32>
}

// CHECK-LABEL: func.func @what_a_part_with_a_name_takes_differs(
func.func @what_a_part_with_a_name_takes_differs(%arg0: tensor<4194304xf32>) -> tensor<4194304xf32> {
  // CHECK-NOT: stablehlo.all_gather
  // CHECK: return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"gpu"}]>] out_shardings=[<@mesh, [{"gpu"}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1048576xf32>) {
    %1 = sdy.named_computation<"part">(%arg1) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] (%arg2: tensor<1048576xf32>) {
      %2 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %3 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1048576xf32>) -> tensor<1048576xf32>
      sdy.return %2 : tensor<1048576xf32>
    } : (tensor<1048576xf32>) -> tensor<1048576xf32>
    sdy.return %1 : tensor<1048576xf32>
  } : (tensor<4194304xf32>) -> tensor<4194304xf32>
  return %0 : tensor<4194304xf32>
}

// CHECK-LABEL: func.func @several_arrays_at_once(
func.func @several_arrays_at_once(%arg0: tensor<8x1048576xf32>) -> tensor<64x1048576xf32> {
  // CHECK: "stablehlo.all_gather"({{%.*, %.*}})
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<1x1048576xf32>) {
    %1:2 = "stablehlo.all_gather"(%arg1, %arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> : (tensor<1x1048576xf32>, tensor<1x1048576xf32>) -> (tensor<8x1048576xf32>, tensor<8x1048576xf32>)
    sdy.return %1#1 : tensor<8x1048576xf32>
  } : (tensor<8x1048576xf32>) -> tensor<64x1048576xf32>
  return %0 : tensor<64x1048576xf32>
}

func.func @a_size_that_nobody_knows(%arg0: tensor<?xf32>) -> tensor<?xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"node", "gpu"} (%arg1: tensor<?xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<?xf32>) -> tensor<?xf32>
    sdy.return %1 : tensor<?xf32>
  } : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
