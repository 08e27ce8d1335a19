// RUN: %reshard-opt %s --policy=always --report=html --report-file=%t.html -o /dev/null
// RUN: FileCheck %s --input-file %t.html --check-prefix=PAGE
// RUN: %reshard-opt %s --policy=always --report=details --report-file=%t.txt -o /dev/null
// RUN: FileCheck %s --input-file %t.txt

// The page, and the text that says the same: sites, who asked for their layouts, steps, tiles, memory, traffic, other ways.

// PAGE: <!doctype html>
// PAGE: 1 of 2 sites rewritten, 1 left to XLA
// PAGE: Who asked for these layouts
// PAGE: after step 2: all_to_all x: dim 0 -&gt; 1
// PAGE: </html>

// CHECK: reshard report: {{.*}}report_html.mlir
// CHECK: 1 of 2 sites rewritten, 1 left to XLA.
// CHECK: ---- site 0: sdy.sharding_constraint (constraint): rewritten
// CHECK: why there is a site the constraint asks for [{}, {"x"}]; its operand is [{"x"}, {}]
// CHECK: decision rewritten: the policy is always
// CHECK: source x: asked for by argument 0 of @main
// CHECK-NEXT: target x: asked for by this constraint at {{.*}}report_html.mlir
// CHECK: step what
// CHECK: before: tile [2, 8], 64 bytes
// CHECK-NEXT: A0 A1 A2 A3 on 0 1
// CHECK: after step 2, all_to_all x: dim 0 -> 1: tile [8, 2], 64 bytes; 48 bytes received
// CHECK-NEXT: A0 / B0 / C0 / D0 on 0 1
// CHECK: memory per device, in bytes
// CHECK: traffic, in bytes
// CHECK: this plan
// CHECK: ---- site 1: sdy.sharding_constraint (constraint): left to XLA
// CHECK: decision left to XLA: source and target are on meshes over different devices
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @half = <["x"=2, "y"=2]>
func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %arg1: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@half, [{}, {"y"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %arg1 <@half, [{}, {"y"}]> : tensor<6x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<6x8xf32>
}
