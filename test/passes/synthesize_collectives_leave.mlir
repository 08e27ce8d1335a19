// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always},synthesize-collectives{leave=0+2},strip-findings)' | FileCheck %s
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(synthesize-collectives{leave=0+two})' 2>&1 | FileCheck %s --check-prefix=WRONG
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(synthesize-collectives{emit=local})' 2>&1 | FileCheck %s --check-prefix=EMIT

// Sites that the option leave names stay with XLA whatever their verdict.

// WRONG: error: synthesize-collectives: leave=0+two has 'two', which is no site number; write leave=0+3
// EMIT: error: synthesize-collectives: emit=local is not available; choose from manual
sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @three_sites(
func.func @three_sites(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>},
        tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
        tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
  // CHECK-NOT: sdy.manual_computation
  // CHECK: return %arg0, %0, %arg0
  return %arg0, %arg0, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
