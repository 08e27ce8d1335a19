// RUN: %reshard-opt %s --compile-for=cpu:8 --report=text 2>&1 >%t.out | FileCheck %s --check-prefix=REPORT
// RUN: FileCheck %s --input-file %t.out
// RUN: %reshard-opt %s --compile-for=cpu:8 --no-check --report=text 2>&1 >/dev/null | FileCheck %s --check-prefix=UNCHECKED
// RUN: %reshard-opt %s --report=text 2>&1 >/dev/null | FileCheck %s --check-prefix=UNCHECKED
// RUN: not %reshard-opt %s --compile-for=cpu:4 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: not %reshard-opt %s --compile-for=abacus:8 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: not %reshard-opt %s --compile-for=cpu 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not %reshard-opt %s --check 2>&1 | FileCheck %s --check-prefix=TARGET

// With a target, the module is compiled as it came and as it is handed over, and the report says what both cost.

// REPORT: 1 site: 1 rewritten, 0 left to XLA
// REPORT-NEXT: sum over the rewritten sites, each compiled alone: 1,792 bytes received per device, 14,336 with stock XLA
// REPORT-NEXT: the whole module: 1,792 bytes received per device, 14,336 with stock XLA
// REPORT: whole module, as XLA compiles it (bytes per device):
// REPORT-NEXT: received temporaries collectives
// REPORT: stock 14,336 {{.*}} 2 all_gather
// REPORT-NEXT: ours 1,792 {{.*}} 1 all_to_all
// UNCHECKED: 1 site: 1 rewritten
// UNCHECKED: the whole module: not compiled
// UNCHECKED-NOT: whole module, as
// DEVICES: error: the module is for 8 devices, the target has 4
// OTHER: error: argument --compile-for: cannot compile for 'abacus'; available: cpu
// FORM: error: argument --compile-for: 'cpu' is not PLATFORM:DEVICES, such as cpu:8
// TARGET: error: --check compiles the module before and after; say what for with --compile-for=PLATFORM:DEVICES
sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: sdy.manual_computation
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}
