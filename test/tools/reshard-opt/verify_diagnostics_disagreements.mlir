// RUN: not %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module()' -o %t.out 2>&1 | FileCheck %s
// RUN: not ls %t.out
// RUN: not %reshard-opt %s --split-input-file --verify-diagnostics=only-expected --pass-pipeline='builtin.module()' 2>&1 | FileCheck %s --check-prefix=ONLY

// A diagnostic nobody expects, an expectation nobody meets, and one that meets the wrong line are failures.

// CHECK: disagreements.mlir:15:27: error: unexpected error: custom op 'nonsense' is unknown
// CHECK: disagreements.mlir:19:1: error: expected error "never" was not produced
// CHECK: disagreements.mlir:24:27: error: unexpected error: custom op 'nonsense' is unknown
// CHECK: disagreements.mlir:25:1: error: expected error "custom op" was not produced
// ONLY-NOT: unexpected
// ONLY: disagreements.mlir:19:1: error: expected error "never" was not produced
// ONLY-NOT: unexpected

func.func @unexpected() { nonsense }

// -----

// expected-error@+1 {{never}}
func.func @missing() { return }

// -----

func.func @wrong_line() { nonsense }
// expected-error {{custom op}}
