// RUN: cat %s | %reshard-opt - --pass-pipeline='builtin.module(canonicalize)' | FileCheck %s
// RUN: %reshard-opt --pass-pipeline='builtin.module(canonicalize)' < %s | FileCheck %s

// The input is standard input for `-` and for no name at all.

// CHECK-LABEL: func.func @an_unused_op_goes_away
// CHECK-NEXT:    return
func.func @an_unused_op_goes_away(%arg0: tensor<4xf32>) {
  %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  return
}
