// RUN: %reshard-opt %s --policy=always --no-remarks -o %t.mlir
// RUN: %reshard-opt %t.mlir --emit-portable-artifact --pass-pipeline='builtin.module()' -o %t.artifact
// RUN: %reshard-opt %t.artifact --pass-pipeline='builtin.module()' -o %t.back.mlir
// RUN: sed 's/handle = 1, type = 1/handle = 1, type = 0/' %t.mlir > %t.expected.mlir
// RUN: diff %t.expected.mlir %t.back.mlir
// RUN: %reshard-opt %t.artifact --emit-portable-artifact -o %t.copy
// RUN: diff %t.artifact %t.copy
// RUN: %reshard-opt %t.artifact | FileCheck %s

// A portable artifact goes out and comes in, Shardy's shardings and islands included. VHLO has no type of a channel, though.

// CHECK: sdy.mesh @mesh
// CHECK: sdy.manual_computation
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
