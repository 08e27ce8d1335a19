// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches)' -o /dev/null 2>&1 | FileCheck %s

// Shardy warns of a custom call that it has no rule for, once in a process. The warning shows the op as it was written, without
// what marks the ops of the clone that Shardy works on.

// CHECK: find_mismatches_custom_call.mlir:11:8: warning: custom call @mystery is unknown to SDY sharding rule registry
// CHECK: :11:8: note: %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<12xi32>) -> tensor<12xi32>
// CHECK-NOT: reshard.
sdy.mesh @mesh = <["x"=3, "y"=4]>
func.func public @main(%arg0: tensor<12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}]>}) -> tensor<12xi32> {
  %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<12xi32>) -> tensor<12xi32>
  return %0 : tensor<12xi32>
}
