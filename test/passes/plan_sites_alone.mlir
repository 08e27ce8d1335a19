// RUN: %reshard-opt %s --plan-sites --verify-diagnostics | FileCheck %s

// Without findings there is nothing to plan.

// expected-remark@below {{nothing is planned: the module has no findings; run find-mismatches first}}
module {
// CHECK-LABEL: func.func @main(
// CHECK-NEXT: sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<8xf32>
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<8xf32>
  return %0 : tensor<8xf32>
}
}
