// RUN: %reshard-opt %s --no-remarks --oracle=lone --emit=manual | FileCheck %s
// RUN: not %reshard-opt %s --oracle=hearsay 2>&1 | FileCheck %s --check-prefix=ORACLE
// RUN: not %reshard-opt %s --emit=magic 2>&1 | FileCheck %s --check-prefix=EMIT
// RUN: not %reshard-opt %s --topology=h101:2x4 2>&1 | FileCheck %s --check-prefix=NONSENSE
// RUN: not %reshard-opt %s --topology=h100:2x2 2>&1 | FileCheck %s --check-prefix=UNFIT
// RUN: %reshard-opt %s --topology=h100:2x4 --memory-limit=1GiB --policy=strict --effort=2 --no-remarks | FileCheck %s
// RUN: %reshard-opt --list-passes | FileCheck %s --check-prefix=LIST

// The flags of rewriting reach the passes, and refuse values that no pass knows.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK: sdy.manual_computation
// ORACLE: error: {{.*}}oracle=hearsay
// EMIT: error: {{.*}}emit=magic
// NONSENSE: error: argument --topology: unknown topology "h101:2x4"; {{.*}}h100
// UNFIT: flags_of_rewriting.mlir:{{.*}}error: topology "h100:2x2"
// LIST: find-mismatches
// LIST: plan-sites
// LIST: policy=better|strict|always
// LIST: synthesize-collectives
// LIST: strip-findings
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x", "y"}, {}]> : tensor<16x16x16xf32>
  return %0 : tensor<16x16x16xf32>
}
