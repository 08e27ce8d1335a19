// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,cse)' --mlir-pass-statistics 2>&1 >/dev/null | FileCheck %s

// What passes of ours count is printed in MLIR's form.

// CHECK: ... Pass statistics report ...
// CHECK: StripFindingsPass
func.func @f() {
  return
}
