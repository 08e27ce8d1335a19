// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,canonicalize)' --mlir-timing 2>&1 >/dev/null | FileCheck %s

// Passes of ours and of MLIR are in one table.

// CHECK: Execution time report
// CHECK: StripFindingsPass
// CHECK: Canonicalizer
func.func @f() {
  return
}
