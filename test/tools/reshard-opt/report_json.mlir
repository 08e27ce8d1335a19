// RUN: %reshard-opt %s --compile-for=cpu:8 --report=json --report-file=%t.json -o /dev/null
// RUN: %python -m json.tool %t.json | FileCheck %s

// The JSON report has the rows of the table as plain values, totals, the whole-module check and the remarks.

// CHECK: "schema": "reshard.report/1",
// CHECK: "site": 0,
// CHECK: "location": "{{.*}}report_json.mlir:{{[0-9]+}}:{{[0-9]+}}",
// CHECK-NEXT: "kind": "function_result",
// CHECK: "source_spec": "P('y', None, 'x')",
// CHECK-NEXT: "target_spec": "P(None, ('x', 'y'), None)",
// CHECK: "verdict": "rewrite",
// CHECK-NEXT: "reason": "faster than stock XLA, modelled {{.*}} us -> {{.*}} us, received 14,336 bytes -> 1,792 bytes",
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
// CHECK: "not_measured": null,
// CHECK: "checks": [
// CHECK: "topology": "cpu:8",
// CHECK: "stock": {
// CHECK-NEXT: "status": "ok",
// CHECK-NEXT: "modelled_us": {{[0-9.]+}},
// CHECK-NEXT: "modelled_collectives_us": {{[0-9.]+}},
// CHECK-NEXT: "bytes_received": 14336,
// CHECK: "ours": {
// CHECK-NEXT: "status": "ok",
// CHECK: "bytes_received": 1792,
// CHECK: "dropped": [],
// CHECK-NEXT: "added": [],
// CHECK-NEXT: "attempts": 2,
// CHECK-NEXT: "is_taken_over": false,
// CHECK-NEXT: "not_taken_over": "modelled time {{.*}} us either way",
// CHECK-NEXT: "is_rewritten": true,
// CHECK-NEXT: "traffic": {
// CHECK: "times_bound": 8.0,
// CHECK: "remarks": []
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}
