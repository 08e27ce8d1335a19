// RUN: %reshard-opt %s --split-input-file='// =====' --output-split-marker='// #####' --canonicalize --mlir-print-debuginfo 2>%t.err | FileCheck %s
// RUN: FileCheck %s --input-file %t.err --check-prefix=NEAR

// The marker may be another one, on the way in and on the way out. The parts keep the file's name and lines in their locations;
// a line that is nearly a marker is pointed out.

// CHECK:      module {
// CHECK-NEXT:   func.func @f()
// CHECK:      #loc1 = loc("{{.*}}split_input_file_marker.mlir":15:1)
// CHECK:      // #####
// CHECK-NEXT: module {
// CHECK:      #loc1 = loc("{{.*}}split_input_file_marker.mlir":21:1)

// NEAR: split_input_file_marker.mlir:18:1: warning: this line does not split the input; the marker is '// ====='
func.func @f() {
  return
}
// ====

// =====
func.func @f() {
  return
}
