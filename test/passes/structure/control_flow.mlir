// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Loops and branches.

// A loop converts in each turn what its body wants otherwise; what it ends with goes back.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK: stablehlo.while
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  // CHECK: stablehlo.negate
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"}
  %c = stablehlo.constant dense<0> : tensor<i32>
  %l:2 = stablehlo.while(%i = %c, %v = %arg0) : tensor<i32>, tensor<16x16xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %k = sdy.sharding_constraint %v <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
      %w = stablehlo.negate %k : tensor<16x16xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<16x16xf32>
    }
  return %l#1 : tensor<16x16xf32>
}

// -----

// A value that a branch captures is converted in the branch that wants it.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<i1>, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK: "stablehlo.if"
  // CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  %0 = "stablehlo.if"(%arg0) ({
    %1 = sdy.sharding_constraint %arg1 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
    %2 = stablehlo.add %1, %1 : tensor<16x16xf32>
    stablehlo.return %2 : tensor<16x16xf32>
  // CHECK: stablehlo.return
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"}
  }, {
    %1 = stablehlo.subtract %arg1, %arg2 : tensor<16x16xf32>
    stablehlo.return %1 : tensor<16x16xf32>
  }) : (tensor<i1>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}

// -----

// Branches that end otherwise than their op.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<i32>, %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: "stablehlo.case"
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  // CHECK: stablehlo.return
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  %0 = "stablehlo.case"(%arg0) ({
    stablehlo.return %arg1 : tensor<16x16xf32>
  }, {
    stablehlo.return %arg2 : tensor<16x16xf32>
  }) : (tensor<i32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}

// -----

// A loop in a loop.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK: stablehlo.while
  // CHECK: stablehlo.while
  // CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
  %c = stablehlo.constant dense<0> : tensor<i32>
  %l:2 = stablehlo.while(%i = %c, %v = %arg0) : tensor<i32>, tensor<16x16xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %l2:2 = stablehlo.while(%i2 = %c, %v2 = %v) : tensor<i32>, tensor<16x16xf32>
        cond {
          %n2 = stablehlo.constant dense<2> : tensor<i32>
          %p2 = stablehlo.compare LT, %i2, %n2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p2 : tensor<i1>
        } do {
          %one2 = stablehlo.constant dense<1> : tensor<i32>
          %j2 = stablehlo.add %i2, %one2 : tensor<i32>
          %k2 = sdy.sharding_constraint %v2 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
          %m2 = stablehlo.negate %k2 : tensor<16x16xf32>
          %w2 = sdy.sharding_constraint %m2 <@mesh, [{"x"}, {}]> : tensor<16x16xf32>
          stablehlo.return %j2, %w2 : tensor<i32>, tensor<16x16xf32>
        }
      %w = stablehlo.add %l2#1, %l2#1 : tensor<16x16xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<16x16xf32>
    }
  return %l#1 : tensor<16x16xf32>
}
