// RUN: %reshard-opt %s --split-input-file --compile-for=cpu:8 --report=text 2>&1 >/dev/null | FileCheck %s

// Each module has its own sites and its own check: the second one's is not that of the first.

// CHECK: stock {{.*}} 14,336
// CHECK: whole module
// CHECK: stock {{.*}} 28,672
// CHECK-NOT: whole module
// CHECK: 0* {{.*}}:16:3 (function_result) 16x16x16xf32
// CHECK-NEXT: 0* {{.*}}:24:3 (function_result) 32x16x16xf32
// CHECK: 2 sites: 2 rewritten

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<32x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<32x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<32x16x16xf32>
}

// -----

// No site, no check.
module {
}
