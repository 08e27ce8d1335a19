// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{topology=v5e:2x4})' | FileCheck %s

// An argument that is donated to a result stays so only if both have one layout: here the axes of the argument come in
// another order than those of the result, which the module states as well.

// CHECK: func.func public @main(%arg0: tensor<4096x64xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}, %arg1: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>, tf.aliasing_output = 1 : i32})
// CHECK-SAME: -> (tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>})
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func public @main(%a: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>, tf.aliasing_output = 0 : i32},
                       %b: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>, tf.aliasing_output = 1 : i32})
    -> (tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>},
        tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}) {
  %0 = stablehlo.tanh %a : tensor<4096x64xf32>
  %1 = stablehlo.tanh %b : tensor<4096x64xf32>
  return %0, %1 : tensor<4096x64xf32>, tensor<4096x64xf32>
}
