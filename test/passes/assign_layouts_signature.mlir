// RUN: %reshard-opt %s --split-input-file --pass-pipeline='builtin.module(assign-layouts{topology=v5e:2x4 signature=keep})' | FileCheck %s

// What the module leaves open is closed as propagation has it: the result is split as the argument is, although rows
// that are split need no conversion at all. The product is computed with rows that are split.

// CHECK-LABEL: module
// CHECK: func.func public @main(%arg0: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%arg0: tensor<512x512xf32>, %arg1: tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> tensor<65536x512xf32> {
  %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<65536x512xf32>, tensor<512x512xf32>) -> tensor<65536x512xf32>
  return %0 : tensor<65536x512xf32>
}

// -----

// Without any split argument nothing is split between arguments and results either, as far as callers see; inside, the
// product is shared.

// CHECK-LABEL: module
// CHECK: func.func public @main(%arg0: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<65536x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
// CHECK: stablehlo.dot_general
// CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh, [{"x"}, {}]>
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%arg0: tensor<4096x4096xf32>, %arg1: tensor<65536x4096xf32>) -> tensor<65536xf32> {
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<65536x4096xf32>, tensor<4096x4096xf32>) -> tensor<65536x4096xf32>
  %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<65536x4096xf32>, tensor<f32>) -> tensor<65536xf32>
  return %1 : tensor<65536xf32>
}
