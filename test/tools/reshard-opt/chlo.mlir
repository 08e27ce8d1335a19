// RUN: %reshard-opt %s --find-mismatches | FileCheck %s
// RUN: %reshard-opt %s --emit-bytecode --pass-pipeline='builtin.module()' | %reshard-opt - --find-mismatches | FileCheck %s

// CHLO ops take part as any other.

// CHECK: reshard.findings = {{.*}}sites = 1
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: chlo.erf %arg0
  %0 = chlo.erf %arg0 : tensor<16x16xf32> -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
