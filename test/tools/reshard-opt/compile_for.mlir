// RUN: %reshard-opt %s --compile-for=cpu:8 --report=text 2>&1 >%t.out | FileCheck %s --check-prefix=REPORT
// RUN: FileCheck %s --input-file %t.out
// RUN: %reshard-opt %s --compile-for=cpu:8 --no-check --report=text 2>&1 >/dev/null | FileCheck %s --check-prefix=UNCHECKED
// RUN: %reshard-opt %s --report=text 2>&1 >/dev/null | FileCheck %s --check-prefix=REPORT
// RUN: %reshard-opt %s --no-check --report=text 2>&1 >/dev/null | FileCheck %s --check-prefix=UNCHECKED
// RUN: not %reshard-opt %s --compile-for=cpu:4 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: not %reshard-opt %s --compile-for=abacus:8 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: not %reshard-opt %s --compile-for=cpu 2>&1 | FileCheck %s --check-prefix=FORM

// The module is compiled as it came and as it is handed over, for a target or for as many CPU devices as it has, and the
// report says what both cost.

// REPORT: whole module, as XLA compiles it, modelled on {{.*}} (us, bytes per device):
// REPORT-NEXT: modelled in collectives received temporaries collectives
// REPORT: stock {{.*}} 14,336 {{.*}} 2 all_gather
// REPORT-NEXT: ours {{.*}} 1,792 {{.*}} 1 all_to_all
// REPORT: where the bytes go
// REPORT: 8.00 1 all_gather {{.*}}compile_for.mlir
// REPORT-NOT: nothing measured
// REPORT: 1 site: 1 rewritten, 0 left to XLA
// REPORT-NEXT: sum over the rewritten sites, each compiled alone: 1,792 bytes received per device, 14,336 with stock XLA
// UNCHECKED: the whole module: nothing measured; {{.*}} compiles it both ways
// UNCHECKED-NOT: whole module, as
// UNCHECKED: 1 site: 1 rewritten
// DEVICES: error: the module is for 8 devices, the target has 4
// OTHER: error: argument --compile-for: cannot compile for 'abacus'; available: cpu
// FORM: error: argument --compile-for: 'cpu' is not PLATFORM:DEVICES, such as cpu:8
sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: sdy.manual_computation
func.func @main(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}
