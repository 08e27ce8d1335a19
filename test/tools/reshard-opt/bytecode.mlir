// RUN: %reshard-opt %s --emit-bytecode --pass-pipeline='builtin.module()' -o %t.mlirbc
// RUN: %reshard-opt %t.mlirbc --pass-pipeline='builtin.module(canonicalize)' | FileCheck %s
// RUN: %reshard-opt %t.mlirbc --emit-bytecode --pass-pipeline='builtin.module()' -o %t.copy
// RUN: diff %t.mlirbc %t.copy

// Bytecode goes out and comes in, and an unchanged module is copied in this form too.

// CHECK-LABEL: func.func @an_unused_op_goes_away
// CHECK-NEXT:    return
func.func @an_unused_op_goes_away(%arg0: tensor<4xf32>) {
  %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  return
}
