// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4})' | FileCheck %s --check-prefix=FREE
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 tactics=x=data})' | FileCheck %s --check-prefix=DATA
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 tactics=data})' | FileCheck %s --check-prefix=DATA
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 tactics=x=zer3})' 2>&1 | FileCheck %s --check-prefix=WRONG
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 tactics=y=data})' 2>&1 | FileCheck %s --check-prefix=NONE

// Few tokens and large weights: columns first, then rows. As data parallelism the batch is split, and nothing else.

// FREE: func.func public @main(%arg0: tensor<8192x32768xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<32768x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// DATA: %arg2: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// WRONG: 'zer3' is none of data, zero1, zero3, sequence, megatron, expert, auto; do you mean zero3?
// NONE: the mesh has no axis y; its axes are x
func.func public @main(%arg0: tensor<8192x32768xf32>, %arg1: tensor<32768x8192xf32>, %arg2: tensor<64x8192xf32>) -> tensor<64x8192xf32> {
  %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0] : (tensor<64x8192xf32>, tensor<8192x32768xf32>) -> tensor<64x32768xf32>
  %1 = stablehlo.tanh %0 : tensor<64x32768xf32>
  %2 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0] : (tensor<64x32768xf32>, tensor<32768x8192xf32>) -> tensor<64x8192xf32>
  return %2 : tensor<64x8192xf32>
}
