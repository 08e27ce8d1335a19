// RUN: %reshard-opt %s --convert-to-local=stay=unknown | FileCheck %s

// An op without a rule stays with XLA between two islands; a value that is used behind it goes around it.

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[FIRST:.*]] = sdy.manual_computation(%arg0)
// CHECK: stablehlo.tanh {{.*}} : tensor<1xf32>
// CHECK: %[[LEFT:.*]] = stablehlo.custom_call @mystery(%[[FIRST]])
// CHECK-NEXT: sdy.manual_computation(
// CHECK-SAME: out_shardings=[<@mesh, [{"x"}]>]
// CHECK: stablehlo.add {{.*}} : tensor<1xf32>
func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %0 = stablehlo.tanh %arg0 : tensor<8xf32>
  %1 = stablehlo.custom_call @mystery(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}
