// RUN: %reshard-opt %s -o %t.mlir --compile-for=cpu:4 --report=text 2>&1 | FileCheck %s
// RUN: diff %s %t.mlir
// RUN: %reshard-opt %s -o - --no-check --no-remarks | FileCheck %s --check-prefix=UNCHECKED
// REQUIRES: slow

// Each of six conversions is better than stock XLA's alone, which gathers the whole value. Together they are worse: stock
// XLA gathers it once for all of them. The check finds that and leaves them to XLA again; the module comes out as it went in.

// CHECK: remark: sites 0, 1, 2, 3, 4, 5 left to XLA: modelled time {{.*}} us with the rewrite, {{.*}} us without
// CHECK: stock {{.*}} 3,072
// CHECK-NEXT: ours {{.*}} 3,072
// CHECK-NEXT: left to XLA again: site 0, 1, 2, 3, 4, 5: modelled time
// CHECK: 6 sites: 0 rewritten, 6 left to XLA
// CHECK: site 3: left to XLA: with it the whole module is worse: modelled time
// UNCHECKED-COUNT-6: sdy.manual_computation
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @main(%arg0: tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}, {}, {}]>})
    -> (tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}, {}, {}]>},
        tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}, {}, {}, {}]>},
        tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {"x", "y"}, {}]>},
        tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {"y", "x"}, {}]>},
        tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}, {"x", "y"}]>},
        tensor<4x4x4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}, {"y", "x"}]>}) {
  return %arg0, %arg0, %arg0, %arg0, %arg0, %arg0
      : tensor<4x4x4x4x4xf32>, tensor<4x4x4x4x4xf32>, tensor<4x4x4x4x4xf32>, tensor<4x4x4x4x4xf32>, tensor<4x4x4x4x4xf32>, tensor<4x4x4x4x4xf32>
}
