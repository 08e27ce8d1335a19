// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu may-hold-more=true})' | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu})' | FileCheck %s --check-prefix=LEFT
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu leave=0+1+2})' | FileCheck %s --check-prefix=AS-IT-CAME
// RUN: %reshard-opt %s --report=text --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu may-hold-more=true})' -o %t 2>&1 | FileCheck %s --check-prefix=SAID

// A loop that gathers one layer in each trip, at once: as a whole before its first trip, and each time for the next one.

// SAID: for the next of 8 trips, while one computes
// SAID: for the next of 8 trips, while one computes, into the place of what it has used
// SAID: all_gather in a

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @the_next_layer_comes_while_one_is_multiplied(
// LEFT-LABEL: func.func @the_next_layer_comes_while_one_is_multiplied(
func.func @the_next_layer_comes_while_one_is_multiplied(%arg0: tensor<32768x4096xbf16>, %arg1: tensor<8x4096x4096xbf16>) -> tensor<32768x4096xbf16> {
  // Twice the tile is held, which the pass alone does not take.
  // LEFT-NOT: all_gather
  // LEFT: stablehlo.while
  // LEFT: "stablehlo.all_gather"
  // LEFT: stablehlo.return
  // LEFT: sdy.return
  // A module in which nothing is written still has its calls.
  // AS-IT-CAME: func.call @layer
  // CHECK: %[[FIRST:.+]] = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[STACK:.+]], %[[FIRST]],
  // CHECK: %[[FLAT:.+]] = stablehlo.reshape %[[PART]]
  // CHECK: %[[START:.+]] = "stablehlo.all_gather"(%[[FLAT]])
  // CHECK: stablehlo.while(%[[I:.+]] = %[[FIRST]], %[[ROWS:.+]] = %{{.+}}, %[[HELD:.+]] = %[[START]])
  // CHECK: do {
  // CHECK: stablehlo.dot_general %[[ROWS]], %[[HELD]]
  // CHECK-NOT: stablehlo.dynamic_slice %[[STACK]], %[[I]],
  // CHECK: %[[NEXT:.+]] = stablehlo.add %[[I]],
  // CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[STACK]], %[[NEXT]],
  // CHECK: %[[FLAT:.+]] = stablehlo.reshape %[[PART]]
  // CHECK: %[[COMING:.+]] = "stablehlo.all_gather"(%[[FLAT]])
  // CHECK: stablehlo.return %[[NEXT]], %{{.+}}, %[[COMING]]
  // CHECK-NOT: all_gather
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<8192x4096xbf16>, %arg3: tensor<8x1024x4096xbf16>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.while(%i = %c, %rows = %arg2) : tensor<i32>, tensor<8192x4096xbf16>
    cond {
      %c_0 = stablehlo.constant dense<8> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = func.call @layer(%arg3, %i, %rows) : (tensor<8x1024x4096xbf16>, tensor<i32>, tensor<8192x4096xbf16>) -> tensor<8192x4096xbf16>
      %c_0 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %i, %c_0 : tensor<i32>
      stablehlo.return %3, %2 : tensor<i32>, tensor<8192x4096xbf16>
    }
    sdy.return %1#1 : tensor<8192x4096xbf16>
  } : (tensor<32768x4096xbf16>, tensor<8x4096x4096xbf16>) -> tensor<32768x4096xbf16>
  return %0 : tensor<32768x4096xbf16>
}

// CHECK-NOT: func.func private @layer
func.func private @layer(%stack: tensor<8x1024x4096xbf16>, %i: tensor<i32>, %rows: tensor<8192x4096xbf16>) -> tensor<8192x4096xbf16> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %stack, %i, %c, %c, sizes = [1, 1024, 4096] : (tensor<8x1024x4096xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x4096xbf16>
  %1 = stablehlo.reshape %0 : (tensor<1x1024x4096xbf16>) -> tensor<1024x4096xbf16>
  %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
  %3 = stablehlo.dot_general %rows, %2, contracting_dims = [1] x [0] : (tensor<8192x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<8192x4096xbf16>
  return %3 : tensor<8192x4096xbf16>
}

// Between two products the next layer comes once this one is used, into its place: so nothing more is held.
// CHECK-LABEL: func.func @it_comes_into_the_place_of_what_is_used(
// LEFT-LABEL: func.func @it_comes_into_the_place_of_what_is_used(
func.func @it_comes_into_the_place_of_what_is_used(%arg0: tensor<32768x4096xbf16>, %arg1: tensor<8x4096x4096xbf16>, %arg2: tensor<4096x4096xbf16>) -> tensor<32768x4096xbf16> {
  // LEFT: "stablehlo.all_gather"
  // LEFT: stablehlo.while
  // LEFT: stablehlo.optimization_barrier
  // CHECK: "stablehlo.all_gather"
  // CHECK: stablehlo.while(%[[I:.+]] = %{{.+}}, %[[ROWS:.+]] = %{{.+}}, %[[HELD:.+]] = %{{.+}})
  // CHECK: do {
  // CHECK: %[[USED:.+]] = stablehlo.dot_general %[[ROWS]], %[[HELD]]
  // CHECK: %[[NEXT:.+]] = stablehlo.add %[[I]],
  // CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %{{.+}}, %[[NEXT]],
  // CHECK: %[[FLAT:.+]] = stablehlo.reshape %[[PART]]
  // CHECK: %[[THEN:.+]]:2 = stablehlo.optimization_barrier %[[FLAT]], %[[USED]]
  // CHECK: %[[COMING:.+]] = "stablehlo.all_gather"(%[[THEN]]#0)
  // CHECK: stablehlo.return %[[NEXT]], %{{.+}}, %[[COMING]]
  %0 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg3: tensor<8192x4096xbf16>, %arg4: tensor<8x1024x4096xbf16>, %arg5: tensor<4096x4096xbf16>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.while(%i = %c, %rows = %arg3) : tensor<i32>, tensor<8192x4096xbf16>
    cond {
      %c_0 = stablehlo.constant dense<8> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %arg4, %i, %c, %c, sizes = [1, 1024, 4096] : (tensor<8x1024x4096xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x4096xbf16>
      %3 = stablehlo.reshape %2 : (tensor<1x1024x4096xbf16>) -> tensor<1024x4096xbf16>
      %4 = "stablehlo.all_gather"(%3) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
      %5 = stablehlo.dot_general %rows, %4, contracting_dims = [1] x [0] : (tensor<8192x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<8192x4096xbf16>
      %6 = stablehlo.dot_general %5, %arg5, contracting_dims = [1] x [0] : (tensor<8192x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<8192x4096xbf16>
      %c_0 = stablehlo.constant dense<1> : tensor<i32>
      %7 = stablehlo.add %i, %c_0 : tensor<i32>
      stablehlo.return %7, %6 : tensor<i32>, tensor<8192x4096xbf16>
    }
    sdy.return %1#1 : tensor<8192x4096xbf16>
  } : (tensor<32768x4096xbf16>, tensor<8x4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<32768x4096xbf16>
  return %0 : tensor<32768x4096xbf16>
}

// What depends on the rows of a trip cannot come before it.
// CHECK-LABEL: func.func @what_a_trip_computes_is_gathered_in_it(
func.func @what_a_trip_computes_is_gathered_in_it(%arg0: tensor<4096x64xbf16>, %arg1: tensor<4096x8192xbf16>) -> tensor<4096x64xbf16> {
  // CHECK: stablehlo.while
  // CHECK: all_gather
  // CHECK: stablehlo.return
  // CHECK-NOT: all_gather
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<1024x64xbf16>, %arg3: tensor<1024x8192xbf16>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.while(%i = %c, %rows = %arg2) : tensor<i32>, tensor<1024x64xbf16>
    cond {
      %c_0 = stablehlo.constant dense<8> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = "stablehlo.all_gather"(%rows) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<1024x64xbf16>) -> tensor<4096x64xbf16>
      %3 = stablehlo.slice %2 [1024:2048, 0:64] : (tensor<4096x64xbf16>) -> tensor<1024x64xbf16>
      %c_0 = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %i, %c_0 : tensor<i32>
      stablehlo.return %4, %3 : tensor<i32>, tensor<1024x64xbf16>
    }
    sdy.return %1#1 : tensor<1024x64xbf16>
  } : (tensor<4096x64xbf16>, tensor<4096x8192xbf16>) -> tensor<4096x64xbf16>
  return %0 : tensor<4096x64xbf16>
}
