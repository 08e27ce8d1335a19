// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,func.func(cse,canonicalize))' --mlir-print-ir-before=cse --mlir-print-ir-after=strip-findings,canonicalize 2>&1 >/dev/null | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings,func.func(cse,canonicalize))' --mlir-print-ir-after-all --mlir-print-ir-after-change 2>&1 >/dev/null | FileCheck %s --check-prefix=CHANGE
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-all --mlir-print-ir-module-scope 2>&1 >/dev/null | FileCheck %s --check-prefix=SCOPE
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(cse,inline{max-iterations=2},canonicalize)' --mlir-print-ir-after-failure 2>&1 >/dev/null | FileCheck %s --check-prefix=FAILURE --allow-empty

// The IR before and after the passes that are named, wherever in the pipeline they are; after those that change it or fail.

// CHECK:       IR Dump After strip-findings
// CHECK-NEXT:  module {
// CHECK:       IR Dump Before cse
// CHECK-NEXT:  func.func @f
// CHECK-NEXT:    stablehlo.add
// CHECK:       IR Dump After canonicalize
// CHECK-NEXT:  func.func @f
// CHECK-NEXT:    return
// CHECK-NOT:   IR Dump

// CHANGE-NOT:  StripFindingsPass
// CHANGE:      IR Dump After CSE
// CHANGE-NOT:  IR Dump

// SCOPE:       IR Dump After CSE
// SCOPE-NEXT:  module {

// FAILURE-NOT: IR Dump
func.func @f(%arg0: tensor<4xf32>) {
  %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  return
}
