// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 tactics=x=zero1})' | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 tactics=x=zero3})' | FileCheck %s --check-prefix=SHARDS
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 tactics=x=data})' | FileCheck %s --check-prefix=DATA

// A weight and its momentum. With zero1 the weight is whole, before and after, and the momentum is in shards. With zero3
// both are in shards, with data both are whole.

// CHECK: func.func public @main(%arg0: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// CHECK-SAME: -> (tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// SHARDS: func.func public @main(%arg0: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
// SHARDS-SAME: -> (tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// DATA: func.func public @main(%arg0: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// DATA-SAME: -> (tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
func.func public @main(%w: tensor<1024x1024xf32>, %m: tensor<1024x1024xf32>, %x: tensor<8192x1024xf32>) -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x1024xf32>) -> tensor<8192x1024xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8192x1024xf32>, tensor<8192x1024xf32>) -> tensor<1024x1024xf32>
  %new_m = stablehlo.add %m, %g : tensor<1024x1024xf32>
  %new_w = stablehlo.subtract %w, %new_m : tensor<1024x1024xf32>
  return %new_w, %new_m : tensor<1024x1024xf32>, tensor<1024x1024xf32>
}
