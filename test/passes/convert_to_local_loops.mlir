// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s

// A value from outside of a loop is converted once before it.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @once_before_the_loop(
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.while
// CHECK-NOT: stablehlo.all_to_all
// CHECK: return
func.func @once_before_the_loop(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>},
    %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %b) : tensor<i32>, tensor<8x16xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = sdy.sharding_constraint %a <@mesh, [{}, {"y"}]> : tensor<8x16xf32>
      %3 = stablehlo.add %sum, %2 : tensor<8x16xf32>
      stablehlo.return %1, %3 : tensor<i32>, tensor<8x16xf32>
    }
  return %0#1 : tensor<8x16xf32>
}
