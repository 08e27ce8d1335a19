// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{topology=v5e:2x4})' | FileCheck %s

// What a loop carries is whole in each turn. It begins with what comes in parts: these are gathered once, before the
// loop, though all ops inside have the layout that they are to have without that.

// CHECK: func.func @main
// CHECK: %[[WHOLE:.*]] = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<8x4096xf32>
// CHECK: stablehlo.while({{.*}}= %[[WHOLE]])
// CHECK: stablehlo.dot_general
sdy.mesh @mesh = <["x"=8]>
func.func @main(%arg0: tensor<8x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<4096x16384xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg2: tensor<16384x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<10> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %x = %arg0) : tensor<i32>, tensor<8x4096xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = stablehlo.dot_general %x, %arg1, contracting_dims = [1] x [0] : (tensor<8x4096xf32>, tensor<4096x16384xf32>) -> tensor<8x16384xf32>
    %3 = stablehlo.tanh %2 : tensor<8x16384xf32>
    %4 = stablehlo.dot_general %3, %arg2, contracting_dims = [1] x [0] : (tensor<8x16384xf32>, tensor<16384x4096xf32>) -> tensor<8x4096xf32>
    %5 = stablehlo.add %4, %x : tensor<8x4096xf32>
    stablehlo.return %1, %5 : tensor<i32>, tensor<8x4096xf32>
  }
  return %0#1 : tensor<8x4096xf32>
}
