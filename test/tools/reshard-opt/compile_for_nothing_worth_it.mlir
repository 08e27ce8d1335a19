// RUN: %reshard-opt %s -o %t.mlir --compile-for=cpu:8 --report=text 2>&1 | FileCheck %s
// RUN: diff %s %t.mlir
// RUN: %reshard-opt %s -o %t.unchecked.mlir --no-remarks
// RUN: diff %s %t.unchecked.mlir

//   A module in which no site is worth it   comes out byte for byte as it went in, this comment and its spaces included.

// CHECK: 1 site: 0 rewritten, 1 left to XLA
// CHECK-NOT: whole module
// CHECK: site 0: left to XLA: stock XLA does as well;
sdy.mesh   @mesh = <["x"=4, "y"=2]>
func.func @main(%value: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return   %value : tensor<16x8xf32>
}
