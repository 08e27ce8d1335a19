// RUN: %reshard-opt %s --convert-to-local --no-remarks | FileCheck %s

// A manual computation over all axes, and a computation on elements, are copied as they came: the analysis has Shardy's constants and
// reshards in them, which XLA refuses, and stand-ins for CHLO ops.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func @manual_computation(
func.func @manual_computation(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x16xf32> {
  // CHECK-NEXT: sdy.manual_computation
  // CHECK-NEXT:   %1 = chlo.erf %arg1 : tensor<4x8xf32> -> tensor<4x8xf32>
  // CHECK-NEXT:   %2 = func.call @shifted(%1)
  // CHECK-NEXT:   %cst = stablehlo.constant dense<3.000000e+00> : tensor<4x8xf32>
  // CHECK-NEXT:   %3 = stablehlo.add %2, %cst
  // CHECK-NEXT:   %4 = stablehlo.tanh %3
  // CHECK-NEXT:   sdy.return %4
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x8xf32>) {
    %2 = chlo.erf %arg1 : tensor<4x8xf32> -> tensor<4x8xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{}, {}]> : tensor<4x8xf32>
    %4 = func.call @shifted(%3) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %cst = stablehlo.constant dense<3.0> : tensor<4x8xf32>
    %5 = stablehlo.add %4, %cst : tensor<4x8xf32>
    %6 = sdy.propagation_barrier %5 allowed_direction=NONE : tensor<4x8xf32>
    sdy.sharding_group %6 group_id=0 : tensor<4x8xf32>
    sdy.return %6 : tensor<4x8xf32>
  } : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %1 = stablehlo.tanh %0 : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// CHECK: func.func private @shifted(
func.func private @shifted(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK-NEXT: stablehlo.constant dense<1.000000e+00>
  %cst = stablehlo.constant dense<1.0> : tensor<4x8xf32>
  %0 = stablehlo.add %arg0, %cst : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @comparator(
func.func @comparator(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16x16xf32> {
  // CHECK:      "stablehlo.sort"(%arg1)
  // CHECK-NEXT: ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
  // CHECK-NEXT:   %cst = stablehlo.constant dense<3.000000e+00> : tensor<f32>
  // CHECK-NEXT:   stablehlo.multiply %arg2, %cst
  // CHECK-NEXT:   chlo.erf
  %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
    %cst = stablehlo.constant dense<3.0> : tensor<f32>
    %1 = stablehlo.multiply %arg1, %cst : tensor<f32>
    %2 = chlo.erf %1 : tensor<f32> -> tensor<f32>
    %3 = stablehlo.compare LT, %2, %arg2 : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  }) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
