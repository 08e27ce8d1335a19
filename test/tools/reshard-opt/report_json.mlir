// RUN: %reshard-opt %s --compile-for=cpu:8 --report=json --report-file=%t.json -o /dev/null
// RUN: %python -m json.tool %t.json | FileCheck %s

// The JSON report has the rows of the table as plain values, totals, the whole-module check and the remarks.

// CHECK: "schema": "reshard.report/1",
// CHECK: "site": 0,
// CHECK: "location": "{{.*}}report_json.mlir:{{[0-9]+}}:{{[0-9]+}}",
// CHECK-NEXT: "kind": "function_result",
// CHECK: "verdict": "rewrite",
// CHECK-NEXT: "reason": "better than stock XLA in received bytes 14,336 -> 1,792,
// CHECK-NEXT: "chain": "all_to_all x: dim 2 -> 1, y: dim 0 -> 1",
// CHECK-NEXT: "bytes_received": 1792,
// CHECK-NEXT: "bound_bytes": 1792,
// CHECK-NEXT: "largest_tile_bytes": 2048,
// CHECK-NEXT: "collectives": 1,
// CHECK-NEXT: "stock_bytes": 14336,
// CHECK: "is_rewritten": true
// CHECK: "totals": {
// CHECK-NEXT: "sites": 1,
// CHECK-NEXT: "rewritten": 1,
// CHECK-NEXT: "left": 0,
// CHECK-NEXT: "stock_bytes": 14336,
// CHECK-NEXT: "our_bytes": 1792
// CHECK: "totals_of": "the rewritten sites, each compiled alone
// CHECK: "checks": [
// CHECK: "stock": {
// CHECK-NEXT: "status": "ok",
// CHECK-NEXT: "bytes_received": 14336,
// CHECK: "ours": {
// CHECK-NEXT: "status": "ok",
// CHECK-NEXT: "bytes_received": 1792,
// CHECK: "dropped": [],
// CHECK-NEXT: "is_rewritten": true
// CHECK: "remarks": []
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}
