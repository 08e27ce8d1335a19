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

// A token of each layer of a cache is written, and the layer is read in other tiles: what is written is gathered, into
// the whole cache, and once more written into the tiles that are read.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @layers(
// CHECK-SAME: %[[CACHE:[^:]*]]: tensor<3x16x512x64xf32>
// CHECK: sdy.manual_computation(%[[CACHE]]
// CHECK-SAME: (%[[TILE:[^:]*]]: tensor<3x16x512x64xf32>
// CHECK: stablehlo.dynamic_slice {{.*}} -> tensor<3x1x4x512x64xf32>
// CHECK: stablehlo.while({{.*}} = %[[TILE]],
// CHECK-DAG: stablehlo.dynamic_update_slice {{.*}} : (tensor<3x16x512x64xf32>, tensor<1x16x1x64xf32>,
// CHECK-DAG: stablehlo.dynamic_update_slice {{.*}} : (tensor<4x512x64xf32>, tensor<4x1x64xf32>,
// CHECK: stablehlo.return
// CHECK-NOT: stablehlo.all_
// CHECK: return
func.func @layers(%cache: tensor<3x16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}]>}, %at: tensor<i32>,
    %x: tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) -> (tensor<3x16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}]>},
    tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<3> : tensor<i32>
  %least = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<3x16x512x64xf32>
  %0:3 = stablehlo.while(%i = %zero, %stack = %none, %y = %x) : tensor<i32>, tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %cache, %i, %zero, %zero, %zero, sizes = [1, 16, 512, 64] : (tensor<3x16x512x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x512x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x16x512x64xf32>) -> tensor<16x512x64xf32>
      %4 = stablehlo.dynamic_update_slice %3, %y, %zero, %at, %zero : (tensor<16x512x64xf32>, tensor<16x1x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x512x64xf32>
      %5 = stablehlo.reduce(%4 init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<16x512x64xf32>, tensor<f32>) -> tensor<16x64xf32>
      %6 = stablehlo.reshape %5 : (tensor<16x64xf32>) -> tensor<16x1x64xf32>
      %7 = stablehlo.add %y, %6 : tensor<16x1x64xf32>
      %8 = stablehlo.reshape %4 : (tensor<16x512x64xf32>) -> tensor<1x16x512x64xf32>
      %9 = stablehlo.dynamic_update_slice %stack, %8, %i, %zero, %zero, %zero : (tensor<3x16x512x64xf32>, tensor<1x16x512x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x16x512x64xf32>
      stablehlo.return %1, %9, %7 : tensor<i32>, tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
    }
  return %0#1, %0#2 : tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
}

// -----

// The cache is split as it is read: the stack is read where it is written, and nothing is copied.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @split_layers(
// CHECK: sdy.manual_computation(%
// CHECK-SAME: (%[[OWN:[^:]*]]: tensor<3x4x512x64xf32>
// CHECK: stablehlo.while({{.*}} = %[[OWN]],
// CHECK: %[[NEW:.*]] = stablehlo.dynamic_update_slice {{.*}} : (tensor<3x4x512x64xf32>, tensor<1x4x1x64xf32>,
// CHECK: stablehlo.dynamic_slice %[[NEW]]
// CHECK-NOT: dynamic_update_slice
// CHECK-NOT: stablehlo.all_
// CHECK: return
func.func @split_layers(%cache: tensor<3x16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}, {}]>}, %at: tensor<i32>,
    %x: tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) -> (tensor<3x16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}, {}]>},
    tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<3> : tensor<i32>
  %least = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<3x16x512x64xf32>
  %0:3 = stablehlo.while(%i = %zero, %stack = %none, %y = %x) : tensor<i32>, tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %cache, %i, %zero, %zero, %zero, sizes = [1, 16, 512, 64] : (tensor<3x16x512x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x512x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x16x512x64xf32>) -> tensor<16x512x64xf32>
      %4 = stablehlo.dynamic_update_slice %3, %y, %zero, %at, %zero : (tensor<16x512x64xf32>, tensor<16x1x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x512x64xf32>
      %5 = stablehlo.reduce(%4 init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<16x512x64xf32>, tensor<f32>) -> tensor<16x64xf32>
      %6 = stablehlo.reshape %5 : (tensor<16x64xf32>) -> tensor<16x1x64xf32>
      %7 = stablehlo.add %y, %6 : tensor<16x1x64xf32>
      %8 = stablehlo.reshape %4 : (tensor<16x512x64xf32>) -> tensor<1x16x512x64xf32>
      %9 = stablehlo.dynamic_update_slice %stack, %8, %i, %zero, %zero, %zero : (tensor<3x16x512x64xf32>, tensor<1x16x512x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x16x512x64xf32>
      stablehlo.return %1, %9, %7 : tensor<i32>, tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
    }
  return %0#1, %0#2 : tensor<3x16x512x64xf32>, tensor<16x1x64xf32>
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

// -----

// Without a loop: what is written is gathered into the whole cache, and written into the tiles that are read.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @layer(
// CHECK-DAG: stablehlo.dynamic_slice {{.*}} -> tensor<1x4x512x64xf32>
// CHECK-DAG: stablehlo.dynamic_update_slice {{.*}} : (tensor<16x512x64xf32>, tensor<16x1x64xf32>,
// CHECK-DAG: stablehlo.dynamic_update_slice {{.*}} : (tensor<4x512x64xf32>, tensor<4x1x64xf32>,
// CHECK: sdy.return
func.func @layer(%cache: tensor<16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}, %at: tensor<i32>,
    %x: tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) -> (tensor<16x512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>},
    tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %least = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dynamic_update_slice %cache, %x, %zero, %at, %zero : (tensor<16x512x64xf32>, tensor<16x1x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x512x64xf32>
  %1 = stablehlo.cosine %0 : tensor<16x512x64xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}, {}, {}]> : tensor<16x512x64xf32>
  %3 = stablehlo.reduce(%2 init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<16x512x64xf32>, tensor<f32>) -> tensor<16x64xf32>
  return %0, %3 : tensor<16x512x64xf32>, tensor<16x64xf32>
}
