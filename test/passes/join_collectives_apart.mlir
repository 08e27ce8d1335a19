// RUN: %reshard-opt %s --remarks=all --pass-pipeline='builtin.module(join-collectives{topology=%S/Inputs/two_hosts_of_two.toml apart=true})' 2> %t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.err
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(join-collectives{topology=%S/Inputs/two_hosts_of_two.toml})' | FileCheck %s --check-prefix=TOGETHER
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(join-collectives{topology=h100:2x2 platform=gpu apart=true})' | FileCheck %s --check-prefix=TOGETHER
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(join-collectives{apart=true})' | FileCheck %s --check-prefix=TOGETHER

// XLA makes one sum of those with the same groups, at the place of the last one. With another order of the groups it
// does not, so the loop runs without the large tile of the first one in memory. On an unknown network nothing is large.

// TOGETHER-NOT: dense<{{\[\[2, 3\]}}

sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @a_large_sum_before_a_loop(
// CHECK: "stablehlo.all_reduce"({{.*}}replica_groups = dense<{{\[\[0, 1\], \[2, 3\]\]}}>
// CHECK: stablehlo.while
// CHECK: "stablehlo.all_reduce"({{.*}}replica_groups = dense<{{\[\[2, 3\], \[0, 1\]\]}}>
// REMARK: join_collectives_apart.mlir:37:10: remark: a large sum before the loop does not wait for it: their groups are in another order
func.func @a_large_sum_before_a_loop(%arg0: tensor<2048x1024xf32>, %arg1: tensor<6xf32>) -> (tensor<2048x1024xf32>, tensor<6xf32>) {
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] manual_axes={"x", "y"} (%a: tensor<1024x1024xf32>, %b: tensor<3xf32>) {
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2:2 = stablehlo.while(%i = %c, %h = %b) : tensor<i32>, tensor<3xf32> cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %6 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %6 = stablehlo.add %i, %one : tensor<i32>
      %7 = stablehlo.tanh %h : tensor<3xf32>
      stablehlo.return %6, %7 : tensor<i32>, tensor<3xf32>
    }
    %4 = "stablehlo.all_reduce"(%2#1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    sdy.return %1, %4 : tensor<1024x1024xf32>, tensor<3xf32>
  } : (tensor<2048x1024xf32>, tensor<6xf32>) -> (tensor<2048x1024xf32>, tensor<6xf32>)
  return %0#0, %0#1 : tensor<2048x1024xf32>, tensor<6xf32>
}

// A small sum before the loop may wait, and sums between which none runs are one for XLA as well as they were.
// CHECK-LABEL: func.func @two_large_sums_without_a_loop(
// CHECK-COUNT-2: replica_groups = dense<{{\[\[0, 1\], \[2, 3\]\]}}>
func.func @two_large_sums_without_a_loop(%arg0: tensor<2048x1024xf32>, %arg1: tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>, tensor<2048x1024xf32>) {
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>) {
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %4 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %5 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    sdy.return %1, %4 : tensor<1024x1024xf32>, tensor<1024x1024xf32>
  } : (tensor<2048x1024xf32>, tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>, tensor<2048x1024xf32>)
  return %0#0, %0#1 : tensor<2048x1024xf32>, tensor<2048x1024xf32>
}

// The large sum waits neither for the small one behind a loop nor for the one behind two, though two groups have two orders.
// CHECK-LABEL: func.func @more_loops_than_orders(
// CHECK: replica_groups = dense<{{\[\[0, 1\], \[2, 3\]\]}}>
// CHECK: replica_groups = dense<{{\[\[2, 3\], \[0, 1\]\]}}>
// CHECK: replica_groups = dense<{{\[\[2, 3\], \[0, 1\]\]}}>
// REMARK: join_collectives_apart.mlir:93:10: remark: a large sum
// REMARK: join_collectives_apart.mlir:108:10: remark: a large sum
func.func @more_loops_than_orders(%arg0: tensor<2048x1024xf32>, %arg1: tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>, tensor<2048x1024xf32>, tensor<2048x1024xf32>) {
  %0:3 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %10 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %2:2 = stablehlo.while(%i = %c, %h = %b) : tensor<i32>, tensor<1024x1024xf32> cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %10 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %10 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %i, %one : tensor<i32>
      %11 = stablehlo.tanh %h : tensor<1024x1024xf32>
      stablehlo.return %10, %11 : tensor<i32>, tensor<1024x1024xf32>
    }
    %4 = stablehlo.slice %2#1 [0:1, 0:1] : (tensor<1024x1024xf32>) -> tensor<1x1xf32>
    %5 = "stablehlo.all_reduce"(%4) <{channel_handle = #stablehlo.channel_handle<handle = 6, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %10 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %6:2 = stablehlo.while(%i = %c, %h = %2#1) : tensor<i32>, tensor<1024x1024xf32> cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %10 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %10 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %i, %one : tensor<i32>
      %11 = stablehlo.tanh %h : tensor<1024x1024xf32>
      stablehlo.return %10, %11 : tensor<i32>, tensor<1024x1024xf32>
    }
    %7 = "stablehlo.all_reduce"(%6#1) <{channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %10 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %8 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1024x1024xf32>
    sdy.return %1, %8, %7 : tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
  } : (tensor<2048x1024xf32>, tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>, tensor<2048x1024xf32>, tensor<2048x1024xf32>)
  return %0#0, %0#1, %0#2 : tensor<2048x1024xf32>, tensor<2048x1024xf32>, tensor<2048x1024xf32>
}

// Nobody can make the first sum wait for one that needs it.
// CHECK-LABEL: func.func @a_large_sum_that_the_loop_needs(
// CHECK-COUNT-2: replica_groups = dense<{{\[\[0, 1\], \[2, 3\]\]}}>
// REMARK-NOT: remark
func.func @a_large_sum_that_the_loop_needs(%arg0: tensor<2048x1024xf32>, %arg1: tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>) {
  %0:1 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 8, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %10 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %2:2 = stablehlo.while(%i = %c, %h = %1) : tensor<i32>, tensor<1024x1024xf32> cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %10 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %10 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %i, %one : tensor<i32>
      %11 = stablehlo.tanh %h : tensor<1024x1024xf32>
      stablehlo.return %10, %11 : tensor<i32>, tensor<1024x1024xf32>
    }
    %7 = "stablehlo.all_reduce"(%2#1) <{channel_handle = #stablehlo.channel_handle<handle = 9, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %10 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    sdy.return %7 : tensor<1024x1024xf32>
  } : (tensor<2048x1024xf32>, tensor<2048x1024xf32>) -> (tensor<2048x1024xf32>)
  return %0#0 : tensor<2048x1024xf32>
}
