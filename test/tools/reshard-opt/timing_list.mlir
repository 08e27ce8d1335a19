// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,func.func(cse),cse)' --mlir-timing --mlir-timing-display=list 2>&1 >/dev/null | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,import-gspmd)' --mlir-pass-statistics --mlir-pass-statistics-display=list 2>&1 >/dev/null | FileCheck %s --check-prefix=STATISTICS

// A list has each pass once, without the pipelines around it; statistics come by name.

// CHECK:      Execution time report
// CHECK:      ----Wall Time----
// CHECK-NOT:  Pipeline
// CHECK:      Total

// STATISTICS: ImportGspmdPass
// STATISTICS: StripFindingsPass
func.func @f() {
  return
}
