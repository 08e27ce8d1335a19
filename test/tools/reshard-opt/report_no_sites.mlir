// RUN: %reshard-opt %s --report=text -o %t.mlir 2>&1 | FileCheck %s
// RUN: diff %s %t.mlir
// RUN: %reshard-opt %s --policy=always --compile-for=cpu:8 -o %t.checked.mlir
// RUN: diff %s %t.checked.mlir

// A module without a site, even one with a mesh that nothing uses, comes out byte for byte as it went in.

// CHECK: reshard: no site: every value is used in the layout in which it is produced
sdy.mesh @unused = <["x"=1]>
func.func @main(%value: tensor<16x8xf32>)   -> tensor<16x8xf32> {
  return %value : tensor<16x8xf32>
}
