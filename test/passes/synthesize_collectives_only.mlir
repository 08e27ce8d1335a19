// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=strict layout-check=off},synthesize-collectives{only=0},strip-findings)' | FileCheck %s --check-prefix=EVEN
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives{only=1},strip-findings)' | FileCheck %s --check-prefix=ONE
// RUN: not %reshard-opt %s --synthesize-collectives=only=all 2>&1 | FileCheck %s --check-prefix=WRONG

// The option only names the sites that are rewritten: no other site is.

// WRONG: error: {{.*}}only=all has 'all', which is no site number; write only=0+3

// Stock XLA does the first conversion as our chain would; with only=0 the chain is written all the same.
// EVEN: sdy.manual_computation(%arg0)
// EVEN-NOT: sdy.manual_computation
// ONE: sdy.manual_computation(%arg1)
// ONE-NOT: sdy.manual_computation
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %arg1: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
        tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0, %arg1 : tensor<16x8xf32>, tensor<16x16x16xf32>
}
