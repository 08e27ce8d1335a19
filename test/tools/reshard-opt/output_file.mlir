// RUN: rm -rf %t && mkdir -p %t
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(canonicalize)' -o %t/out.mlir
// RUN: FileCheck %s --input-file %t/out.mlir
// RUN: ls %t | FileCheck %s --check-prefix=FILES

// -o gets the output, and nothing else is left beside it.

// FILES-NOT: tmp
// FILES: out.mlir
// FILES-NOT: tmp

// CHECK-LABEL: func.func @an_unused_op_goes_away
// CHECK-NEXT:    return
func.func @an_unused_op_goes_away(%arg0: tensor<4xf32>) {
  %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  return
}
