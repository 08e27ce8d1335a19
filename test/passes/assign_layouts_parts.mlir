// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4 axes=parts})' | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(assign-layouts{mesh=x=8 topology=v5e:2x4})' | FileCheck %s --check-prefix=WHOLE

// Two examples of four heads on one axis of eight: a part of the axis for each. Neither dimension can be split by the
// whole axis. Arguments and results are split by whole axes, since PartitionSpecs name no others.

// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK: func.func public @main
// CHECK-NOT: :(
// CHECK-SAME: {
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"x":(1)2}, {"x":(2)4}, {}, {}]>

// WHOLE: func.func public @main
// WHOLE-NOT: :(2)
func.func public @main(%q: tensor<2x4x1024x128xf32>, %k: tensor<2x4x1024x128xf32>) -> tensor<2x4x1024xf32> {
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x1024x128xf32>, tensor<2x4x1024x128xf32>) -> tensor<2x4x1024x1024xf32>
  %1 = stablehlo.tanh %0 : tensor<2x4x1024x1024xf32>
  %2 = stablehlo.dot_general %1, %1, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x4x1024x1024xf32>, tensor<2x4x1024x1024xf32>) -> tensor<2x4x1024x1024xf32>
  %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<2x4x1024x1024xf32>, tensor<f32>) -> tensor<2x4x1024xf32>
  return %3 : tensor<2x4x1024xf32>
}
