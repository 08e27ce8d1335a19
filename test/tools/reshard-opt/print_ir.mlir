// RUN: %reshard-opt %s --pass-pipeline='builtin.module(func.func(cse),canonicalize)' --mlir-print-ir-after-all 2>&1 >/dev/null | FileCheck %s --check-prefix=AFTER
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(func.func(cse),canonicalize)' --mlir-print-ir-before-all 2>&1 >/dev/null | FileCheck %s --check-prefix=BEFORE

// The IR around each pass goes to standard error.

// AFTER-NOT: IR Dump Before
// AFTER: IR Dump After CSE
// AFTER: IR Dump After Canonicalizer
// BEFORE: IR Dump Before CSE
// BEFORE: IR Dump Before Canonicalizer
// BEFORE-NOT: IR Dump After
func.func @f() {
  return
}
