// RUN: rm -f %t.out
// RUN: not %reshard-opt %s --split-input-file -o %t.out --pass-pipeline='builtin.module()' 2>&1 | FileCheck %s
// RUN: not ls %t.out

// Every part is diagnosed, with lines that count from the top of the file; a failure leaves no output.

// CHECK: split_input_file_invalid.mlir:11:22: error: custom op 'nonsense' is unknown
// CHECK-NEXT: func.func @first() { nonsense }
// CHECK-NEXT: {{^ {21}\^$}}
// CHECK: split_input_file_invalid.mlir:19:22: error: custom op 'nonsense' is unknown
func.func @first() { nonsense }

// -----

func.func @second() { return }

// -----

func.func @third() { nonsense }
