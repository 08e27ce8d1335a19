// RUN: %reshard-opt %s --split-input-file --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4})' | FileCheck %s

// Many tokens and small weights: the batch is split, nothing is converted, no constraint is needed. The weights are read
// by every device; a call is inlined.

// CHECK-LABEL: module
// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK: func.func public @main(%arg0: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<65536x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
// CHECK-NEXT: stablehlo.dot_general
// CHECK-NEXT: stablehlo.tanh
// CHECK-NEXT: return
func.func public @main(%arg0: tensor<512x512xf32>, %arg1: tensor<65536x512xf32>) -> tensor<65536x512xf32> {
  %0 = call @layer(%arg0, %arg1) : (tensor<512x512xf32>, tensor<65536x512xf32>) -> tensor<65536x512xf32>
  return %0 : tensor<65536x512xf32>
}
func.func private @layer(%arg0: tensor<512x512xf32>, %arg1: tensor<65536x512xf32>) -> tensor<65536x512xf32> {
  %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<65536x512xf32>, tensor<512x512xf32>) -> tensor<65536x512xf32>
  %1 = stablehlo.tanh %0 : tensor<65536x512xf32>
  return %1 : tensor<65536x512xf32>
}

// -----

// Few tokens and large weights, tokens and result whole on every device: columns first, then rows, as in Megatron.

// CHECK-LABEL: module
// CHECK: func.func public @main(%arg0: tensor<8192x32768xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<32768x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%arg0: tensor<8192x32768xf32>, %arg1: tensor<32768x8192xf32>, %arg2: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0] : (tensor<64x8192xf32>, tensor<8192x32768xf32>) -> tensor<64x32768xf32>
  %1 = stablehlo.tanh %0 : tensor<64x32768xf32>
  %2 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0] : (tensor<64x32768xf32>, tensor<32768x8192xf32>) -> tensor<64x8192xf32>
  return %2 : tensor<64x8192xf32>
}

// -----

// A scalar and a result that nothing can split have a sharding too; what is no tensor has none.

// CHECK-LABEL: module
// CHECK: func.func public @main(%arg0: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, %arg1: tensor<3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg2: !stablehlo.token) -> (tensor<3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, !stablehlo.token)
func.func public @main(%arg0: tensor<f32>, %arg1: tensor<3xf32>, %arg2: !stablehlo.token) -> (tensor<3xf32>, !stablehlo.token) {
  return %arg1, %arg2 : tensor<3xf32>, !stablehlo.token
}
