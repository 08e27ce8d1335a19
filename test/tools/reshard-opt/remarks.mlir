// RUN: %reshard-opt %s --find-mismatches -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --find-mismatches --remarks=all -o /dev/null 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: %reshard-opt %s --find-mismatches --remarks=none -o /dev/null 2>%t.err
// RUN: not grep remark %t.err
// RUN: %reshard-opt %s --find-mismatches --verify-diagnostics -o /dev/null

// Of remarks with one reason, the first is printed with their number, whatever sizes and layouts they name.

// CHECK: remarks.mlir:27:{{[0-9]+}}: remark: operand 0 of tanh is left alone
// CHECK: note: the first of 3 remarks with this reason; --remarks=all lists them
// CHECK: remark: operand 1 of add is left alone: a constant is made in any layout without traffic
// CHECK-NOT: remark: {{.*}}left alone
// ALL: remark: operand 0 of tanh is left alone
// ALL: remark: operand 0 of negate is left alone
// ALL: remark: operand 1 of add is left alone
// ALL: remark: operand 0 of tanh is left alone
// ALL-NOT: note:
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["u"=2, "v"=4]>
func.func public @main(
    %arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>},
    %arg2: tensor<2x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<16x16xf32>, tensor<16x16xf32>, tensor<2x2xf32>, tensor<32x32xf32>) {
  %cst = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} dense<[[1., 2.], [3., 4.]]> : tensor<2x2xf32>
  // expected-remark @+1 {{operand 0 of tanh is left alone}}
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@other, [{"u"}, {"v"}]> : tensor<16x16xf32>
  // expected-remark @+1 {{operand 0 of negate is left alone}}
  %2 = stablehlo.negate %arg0 : tensor<16x16xf32>
  %3 = sdy.sharding_constraint %2 <@other, [{"v"}, {}]> : tensor<16x16xf32>
  // expected-remark @+1 {{operand 1 of add is left alone}}
  %4 = stablehlo.add %arg2, %cst {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} : tensor<2x2xf32>
  // expected-remark @+1 {{operand 0 of tanh is left alone}}
  %5 = stablehlo.tanh %arg1 : tensor<32x32xf32>
  %6 = sdy.sharding_constraint %5 <@other, [{"u"}, {"v"}]> : tensor<32x32xf32>
  return %1, %3, %4, %6 : tensor<16x16xf32>, tensor<16x16xf32>, tensor<2x2xf32>, tensor<32x32xf32>
}
