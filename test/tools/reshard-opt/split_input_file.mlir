// RUN: %reshard-opt %s --split-input-file --pass-pipeline='builtin.module(canonicalize)' | FileCheck %s

// Each part is a module of its own, so symbols may recur, and the output is split as the input was.

// CHECK-LABEL: func.func @recurs
// CHECK-NEXT:    return
func.func @recurs(%arg0: tensor<4xf32>) {
  %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  return
}

// CHECK: // -----
// -----

// CHECK-LABEL: func.func @recurs
// CHECK-NEXT:    return
func.func @recurs(%arg0: tensor<4xf32>) {
  %0 = stablehlo.multiply %arg0, %arg0 : tensor<4xf32>
  return
}
