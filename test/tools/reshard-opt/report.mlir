// RUN: %reshard-opt %s --policy=always --report=text 2>&1 >/dev/null | FileCheck %s
// RUN: %reshard-opt %s --policy=always --report=text --report-file=%t.txt -o /dev/null
// RUN: FileCheck %s --input-file %t.txt
// RUN: not %reshard-opt %s --report-file=%t.txt 2>&1 | FileCheck %s --check-prefix=ALONE
// RUN: not %reshard-opt %s --report=xml 2>&1 | FileCheck %s --check-prefix=FORM

// The text report: the module as a whole, a row per site, a star where it is rewritten; totals; why; JAX's spelling.

// CHECK: the whole module: nothing measured: XLA compiles the module neither way: {{.*}}should have 8 devices
// CHECK: site where tensor from to received bound tile alone: stock ours chain
// CHECK-NEXT: ---- -----
// CHECK-NEXT: 0* {{.*}}report.mlir:{{[0-9]+:[0-9]+}} (constraint) 8x8xf32 [{"x"}, {}] [{}, {"x"}]
// CHECK-NEXT: 1* {{.*}}(constraint) 8x8xf32 [{}, {"x"}] [{"y"}, {}]
// CHECK-NEXT: 2 {{.*}}(constraint) 6x8xf32
// CHECK-NEXT: 3 {{.*}}(function_result) 6x8xf32
// CHECK: 4 sites: 2 rewritten, 2 left to XLA
// CHECK-NOT: bytes per device
// CHECK: site 0: rewritten: merged into site 1; the constraint asks for [{}, {"x"}]; its operand is [{"x"}, {}]
// CHECK-NEXT: site 1: rewritten: the policy is always; the constraint asks for [{"y"}, {}];
// CHECK: site 2: left to XLA: source and target are on meshes over different devices, or on two inside a manual computation;
// CHECK: layouts as JAX writes them:
// CHECK: [{}, {"x"}] P(None, 'x')
// ALONE: error: --report-file needs --report=text, json, html or details
// FORM: error: argument --report: invalid choice: 'xml'
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @half = <["x"=2, "y"=2]>
func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %arg1: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %arg1 <@half, [{}, {"y"}]> : tensor<6x8xf32>
  return %1, %2 : tensor<8x8xf32>, tensor<6x8xf32>
}
