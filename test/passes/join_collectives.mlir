// RUN: %reshard-opt %s --remarks=all --pass-pipeline='builtin.module(join-collectives{topology=%S/Inputs/two_hosts_of_two.toml})' 2> %t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.err
// RUN: %reshard-opt %s --remarks=all --pass-pipeline='builtin.module(join-collectives{topology=%S/Inputs/two_hosts_of_two.toml keep-sums=true})' 2>&1 >/dev/null | FileCheck %s --check-prefix=KEPT
// RUN: %reshard-opt %s --remarks=all --pass-pipeline='builtin.module(join-collectives{topology=h100:2x2 platform=gpu})' | FileCheck %s --check-prefix=GPU
// RUN: %reshard-opt %s --remarks=all --join-collectives | FileCheck %s --check-prefix=GPU

// Latencies are long between processes, so small collectives are joined that need nothing of each other. GPUs have
// compilers that join them, and on an unknown network nothing is known to be faster.

// GPU-NOT: {{%[0-9]+}} = stablehlo.concatenate
// GPU-NOT: {{%[0-9]+}} = stablehlo.slice
// GPU: func.func @sums_of_one_group_are_one(

sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @sums_of_one_group_are_one(
// REMARK: join_collectives.mlir:38:10: remark: 2 all_reduces are one: modelled time 20.0 us together, 40.0 us apart
// KEPT-NOT: all_reduces are one
func.func @sums_of_one_group_are_one(%arg0: tensor<8x4xf32>, %arg1: tensor<6xf32>) -> (tensor<8x4xf32>, tensor<6xf32>) {
  // CHECK: %[[PART:.*]] = stablehlo.negate %[[B:.*]] : tensor<3xf32>
  // CHECK: %[[FLAT:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x4xf32>) -> tensor<16xf32>
  // CHECK: %[[BUFFER:.*]] = stablehlo.concatenate %[[FLAT]], %[[PART]], dim = 0
  // CHECK: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[BUFFER]])
  // CHECK: (tensor<19xf32>) -> tensor<19xf32>
  // CHECK: %[[FIRST:.*]] = stablehlo.slice %[[SUM]] [0:16]
  // CHECK: %[[TILE:.*]] = stablehlo.reshape %[[FIRST]] : (tensor<16xf32>) -> tensor<4x4xf32>
  // CHECK: %[[DOUBLED:.*]] = stablehlo.add %[[TILE]], %[[TILE]]
  // CHECK: %[[SECOND:.*]] = stablehlo.slice %[[SUM]] [16:19]
  // CHECK: sdy.return %[[DOUBLED]], %[[SECOND]]
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] manual_axes={"x", "y"} (%a: tensor<4x4xf32>, %b: tensor<3xf32>) {
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.add %1, %1 : tensor<4x4xf32>
    %3 = stablehlo.negate %b : tensor<3xf32>
    %4 = "stablehlo.all_reduce"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    sdy.return %2, %4 : tensor<4x4xf32>, tensor<3xf32>
  } : (tensor<8x4xf32>, tensor<6xf32>) -> (tensor<8x4xf32>, tensor<6xf32>)
  return %0#0, %0#1 : tensor<8x4xf32>, tensor<6xf32>
}

// CHECK-LABEL: func.func @parts_for_members_are_rows(
// REMARK: 2 all_gathers are one
// KEPT: 2 all_gathers are one
func.func @parts_for_members_are_rows(%arg0: tensor<8x4xf32>, %arg1: tensor<6xf32>) -> (tensor<4x8xf32>, tensor<6xf32>) {
  // CHECK-DAG: %[[ONE:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x4xf32>) -> tensor<1x16xf32>
  // CHECK-DAG: %[[OTHER:.*]] = stablehlo.reshape %{{.*}} : (tensor<3xf32>) -> tensor<1x3xf32>
  // CHECK: %[[BUFFER:.*]] = stablehlo.concatenate %[[ONE]], %[[OTHER]], dim = 1
  // CHECK: %[[ROWS:.*]] = "stablehlo.all_gather"(%[[BUFFER]]) <{all_gather_dim = 0
  // CHECK-SAME: (tensor<1x19xf32>) -> tensor<2x19xf32>
  // CHECK: stablehlo.slice %[[ROWS]] [0:2, 0:16]
  // CHECK: stablehlo.transpose %{{.*}}, dims = [1, 0, 2] : (tensor<2x4x4xf32>) -> tensor<4x2x4xf32>
  // CHECK: stablehlo.slice %[[ROWS]] [0:2, 16:19]
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<2x3xf32>) -> tensor<6xf32>
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}]>] manual_axes={"x", "y"} (%a: tensor<4x4xf32>, %b: tensor<3xf32>) {
    %1 = "stablehlo.all_gather"(%a) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<4x8xf32>
    %2 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<3xf32>) -> tensor<6xf32>
    sdy.return %1, %2 : tensor<4x8xf32>, tensor<6xf32>
  } : (tensor<8x4xf32>, tensor<6xf32>) -> (tensor<4x8xf32>, tensor<6xf32>)
  return %0#0, %0#1 : tensor<4x8xf32>, tensor<6xf32>
}

// One sum needs the other; a maximum is no sum; sums of integers are no sums of floats; other groups; a large one.
// CHECK-LABEL: func.func @these_stay_apart(
// CHECK-NOT: stablehlo.concatenate
// CHECK: return
func.func @these_stay_apart(%arg0: tensor<8xf32>, %arg1: tensor<8xi32>, %arg2: tensor<4194304xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xi32>, tensor<8xf32>, tensor<4194304xf32>) {
  %0:5 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"y"}]>, <@mesh, [{"x"}]>] manual_axes={"x", "y"} (%a: tensor<4xf32>, %i: tensor<4xi32>, %l: tensor<2097152xf32>) {
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %7 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %7 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %3 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %7 = stablehlo.maximum %p, %q : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %4 = "stablehlo.all_reduce"(%i) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<i32>, %q: tensor<i32>):
      %7 = stablehlo.add %p, %q : tensor<i32>
      stablehlo.return %7 : tensor<i32>
    }) : (tensor<4xi32>) -> tensor<4xi32>
    %5 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %7 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %6 = "stablehlo.all_reduce"(%l) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %7 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<2097152xf32>) -> tensor<2097152xf32>
    sdy.return %2, %3, %4, %5, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>, tensor<2097152xf32>
  } : (tensor<8xf32>, tensor<8xi32>, tensor<4194304xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xi32>, tensor<8xf32>, tensor<4194304xf32>)
  return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<8xf32>, tensor<8xf32>, tensor<8xi32>, tensor<8xf32>, tensor<4194304xf32>
}

// XLA partitions the tiles of this one over y, so a line of their elements would have to be gathered.
// CHECK-LABEL: func.func @tiles_that_xla_partitions_stay_apart(
// CHECK-NOT: stablehlo.concatenate
// CHECK: return
func.func @tiles_that_xla_partitions_stay_apart(%arg0: tensor<8xf32>, %arg1: tensor<6xf32>) -> (tensor<8xf32>, tensor<6xf32>) {
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}]>, <@mesh, [{}]>] manual_axes={"x"} (%a: tensor<4xf32>, %b: tensor<3xf32>) {
    %1 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<8xf32>
    %2 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<3xf32>) -> tensor<6xf32>
    sdy.return %1, %2 : tensor<8xf32>, tensor<6xf32>
  } : (tensor<8xf32>, tensor<6xf32>) -> (tensor<8xf32>, tensor<6xf32>)
  return %0#0, %0#1 : tensor<8xf32>, tensor<6xf32>
}
