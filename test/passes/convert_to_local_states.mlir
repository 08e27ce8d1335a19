// RUN: %reshard-opt %s '--convert-to-local=topology=v5e:2x2' --split-input-file | FileCheck %s

// A state that is whole around a loop stays whole in it: each turn gathers what it writes.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @written_in_each_turn(
// CHECK: stablehlo.while
// CHECK: %[[NEW:.*]] = "stablehlo.all_gather"
// CHECK-SAME: -> tensor<16x1x64xf32>
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<16x512x64xf32>, tensor<16x1x64xf32>,
// CHECK: stablehlo.return
// CHECK-NOT: stablehlo.all_
// CHECK: return
func.func @written_in_each_turn(%state: tensor<16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>},
    %x: tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) -> (tensor<16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %held = %state, %y = %x) : tensor<i32>, tensor<16x512x64xf32>, tensor<16x1x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.cosine %y : tensor<16x1x64xf32>
      %3 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {}, {}]> : tensor<16x1x64xf32>
      %4 = stablehlo.dynamic_update_slice %held, %3, %zero, %i, %zero : (tensor<16x512x64xf32>, tensor<16x1x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x512x64xf32>
      %5 = stablehlo.dynamic_slice %4, %zero, %zero, %zero, sizes = [16, 1, 64] : (tensor<16x512x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x1x64xf32>
      %6 = stablehlo.add %3, %5 : tensor<16x1x64xf32>
      stablehlo.return %1, %4, %6 : tensor<i32>, tensor<16x512x64xf32>, tensor<16x1x64xf32>
    }
  return %0#1 : tensor<16x512x64xf32>
}

// -----

// All of a state is written: it is gathered once, behind the loop.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @written_as_a_whole(
// CHECK: stablehlo.while
// CHECK-NOT: stablehlo.all_
// CHECK: stablehlo.return
// CHECK: "stablehlo.all_gather"
// CHECK: return
func.func @written_as_a_whole(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<5x16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<5x16x64xf32>
  %0:3 = stablehlo.while(%i = %zero, %held = %none, %y = %x) : tensor<i32>, tensor<5x16x64xf32>, tensor<16x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.cosine %y : tensor<16x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<16x64xf32>) -> tensor<1x16x64xf32>
      %4 = stablehlo.dynamic_update_slice %held, %3, %i, %zero, %zero : (tensor<5x16x64xf32>, tensor<1x16x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x16x64xf32>
      stablehlo.return %1, %4, %2 : tensor<i32>, tensor<5x16x64xf32>, tensor<16x64xf32>
    }
  return %0#1 : tensor<5x16x64xf32>
}

// -----

// A loop reads an array in other tiles, and returns a copy of it, slice by slice: the array itself is returned.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @copied(
// CHECK-SAME: %[[STACK:.*]]: tensor<5x16x64xf32>
// CHECK: sdy.manual_computation(%[[STACK]]
// CHECK-SAME: (%[[WHOLE:[^:]*]]: tensor<5x16x64xf32>
// CHECK-NOT: stablehlo.all_
// CHECK: sdy.return %[[WHOLE]],
func.func @copied(%stack: tensor<5x16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>},
    %x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<5x16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>},
    tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<5x16x64xf32>
  %0:3 = stablehlo.while(%i = %zero, %copy = %none, %y = %x) : tensor<i32>, tensor<5x16x64xf32>, tensor<16x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %stack, %i, %zero, %zero, sizes = [1, 16, 64] : (tensor<5x16x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x16x64xf32>) -> tensor<16x64xf32>
      %4 = stablehlo.add %y, %3 : tensor<16x64xf32>
      %5 = stablehlo.reshape %3 : (tensor<16x64xf32>) -> tensor<1x16x64xf32>
      %6 = stablehlo.dynamic_update_slice %copy, %5, %i, %zero, %zero : (tensor<5x16x64xf32>, tensor<1x16x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x16x64xf32>
      stablehlo.return %1, %6, %4 : tensor<i32>, tensor<5x16x64xf32>, tensor<16x64xf32>
    }
  return %0#1, %0#2 : tensor<5x16x64xf32>, tensor<16x64xf32>
}

// -----

// One element does not split over four devices: all have it, and nothing is gathered.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @split_into_empty_shards(
// CHECK-NOT: stablehlo.all_
// CHECK-NOT: stablehlo.collective_permute
// CHECK: return
func.func @split_into_empty_shards(%x: tensor<1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.sine %x : tensor<1x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<1x64xf32>
  %2 = stablehlo.cosine %1 : tensor<1x64xf32>
  return %2 : tensor<1x64xf32>
}
