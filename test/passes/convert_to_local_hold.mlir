// RUN: %reshard-opt %s '--convert-to-local=hold=1000000 topology=v5e:2x2' --split-input-file | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s --check-prefix=TURN

// A sum that a loop adds up is whole on each device while the loop runs, and scattered once, behind it.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @summed_behind_the_loop(
// CHECK: stablehlo.while
// CHECK: %[[PART:.*]] = stablehlo.dot_general
// CHECK: stablehlo.add %{{.*}}, %[[PART]] : tensor<64x32xf32>
// CHECK-NOT: stablehlo.all_
// CHECK: "stablehlo.reduce_scatter"
// CHECK-NOT: stablehlo.all_
// CHECK: return

// TURN-LABEL: func.func @summed_behind_the_loop(
// TURN: stablehlo.while
// TURN: stablehlo.all_
// TURN: stablehlo.return
// TURN-NOT: stablehlo.reduce_scatter
// TURN: return
func.func @summed_behind_the_loop(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %y: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<64x32xf32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %none) : tensor<i32>, tensor<64x32xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
      %3 = stablehlo.add %sum, %2 : tensor<64x32xf32>
      stablehlo.return %1, %3 : tensor<i32>, tensor<64x32xf32>
    }
  return %0#1 : tensor<64x32xf32>
}

// -----

// What a loop takes in larger tiles is gathered before it. So is a stack of which each turn takes a layer.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @gathered_before_the_loop(
// CHECK: %[[STACK:.*]] = stablehlo.reshape %{{.*}} : (tensor<{{.*}}xf32>) -> tensor<5x64x64xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.dynamic_slice %[[STACK]]
// CHECK-NOT: stablehlo.all_
// CHECK: return

// TURN-LABEL: func.func @gathered_before_the_loop(
// TURN: stablehlo.while
// TURN: "stablehlo.all_gather"
// TURN: stablehlo.return
func.func @gathered_before_the_loop(%w: tensor<5x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>},
    %x: tensor<1024x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<1024x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<1024x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 64, 64] : (tensor<5x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
      %4 = stablehlo.dot_general %y, %3, contracting_dims = [1] x [0] : (tensor<1024x64xf32>, tensor<64x64xf32>) -> tensor<1024x64xf32>
      stablehlo.return %1, %4 : tensor<i32>, tensor<1024x64xf32>
    }
  return %0#1 : tensor<1024x64xf32>
}

// -----

// A layout that the program itself states in a loop stays, and so do arguments and results.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @stated_in_the_loop(
// CHECK: stablehlo.while
// CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<16x32xf32>
// CHECK: stablehlo.return
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK: return
func.func @stated_in_the_loop(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %y: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<64x32xf32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %none) : tensor<i32>, tensor<64x32xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
      %3 = sdy.sharding_constraint %sum <@mesh, [{"x"}, {}]> : tensor<64x32xf32>
      %4 = stablehlo.add %3, %2 : tensor<64x32xf32>
      stablehlo.return %1, %4 : tensor<i32>, tensor<64x32xf32>
    }
  return %0#1 : tensor<64x32xf32>
}

// -----

// Each turn of two loops cuts a layer out of the weights, narrows it and turns it: all layers are narrowed and gathered
// once.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @narrowed_before_both_loops(
// CHECK: stablehlo.convert %{{.*}} : (tensor<5x16x64xf32>) -> tensor<5x16x64xbf16>
// CHECK: "stablehlo.all_gather"
// CHECK: %[[LAYERS:.*]] = stablehlo.{{.*}} -> tensor<5x64x64xbf16>
// CHECK: stablehlo.while
// CHECK: stablehlo.dynamic_slice %[[LAYERS]]
// CHECK-NOT: stablehlo.all_
// CHECK: stablehlo.while
// CHECK: stablehlo.dynamic_slice %[[LAYERS]]
// CHECK-NOT: stablehlo.all_
// CHECK: return

// TURN-LABEL: func.func @narrowed_before_both_loops(
// TURN-NOT: stablehlo.all_
// TURN: stablehlo.while
// TURN: "stablehlo.all_gather"
// TURN: stablehlo.while
// TURN: "stablehlo.all_gather"
// TURN: return
func.func @narrowed_before_both_loops(%w: tensor<5x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>},
    %x: tensor<1024x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<1024x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<1024x64xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 64, 64] : (tensor<5x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
      %4 = stablehlo.convert %3 : (tensor<64x64xf32>) -> tensor<64x64xbf16>
      %5 = stablehlo.dot_general %a, %4, contracting_dims = [1] x [0] : (tensor<1024x64xbf16>, tensor<64x64xbf16>) -> tensor<1024x64xbf16>
      stablehlo.return %1, %5 : tensor<i32>, tensor<1024x64xbf16>
    }
  %6:2 = stablehlo.while(%i = %zero, %a = %0#1) : tensor<i32>, tensor<1024x64xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 64, 64] : (tensor<5x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
      %4 = stablehlo.convert %3 : (tensor<64x64xf32>) -> tensor<64x64xbf16>
      %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %7 = stablehlo.dot_general %a, %5, contracting_dims = [1] x [0] : (tensor<1024x64xbf16>, tensor<64x64xbf16>) -> tensor<1024x64xbf16>
      stablehlo.return %1, %7 : tensor<i32>, tensor<1024x64xbf16>
    }
  return %6#1 : tensor<1024x64xbf16>
}
