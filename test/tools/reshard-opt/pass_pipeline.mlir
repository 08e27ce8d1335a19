// RUN: %reshard-opt %s --pass-pipeline='builtin.module( strip-findings , canonicalize{max-iterations=3}, func.func(cse))' --dump-pass-pipeline 2>&1 >/dev/null | FileCheck %s
// RUN: %reshard-opt %s --strip-findings --dump-pass-pipeline 2>&1 >/dev/null | FileCheck %s --check-prefix=FLAG
// RUN: %reshard-opt %s --dump-pass-pipeline 2>&1 >/dev/null | FileCheck %s --check-prefix=DEFAULT

// A pipeline mixes passes of ours and of MLIR and prints as it is read; flags of single passes and no flag make one too.

// CHECK: builtin.module(strip-findings,canonicalize{max-iterations=3},func.func(cse))
// FLAG: builtin.module(strip-findings)
// DEFAULT: builtin.module(import-gspmd,find-mismatches,plan-sites,decompose-collectives,synthesize-collectives,strip-findings)
func.func @f() {
  return
}
