// RUN: %reshard-opt %s --policy=always -o %t.once.mlir
// RUN: %reshard-opt %t.once.mlir --policy=always -o %t.twice.mlir
// RUN: diff %t.once.mlir %t.twice.mlir
// RUN: FileCheck %s --input-file %t.once.mlir

// The pipeline leaves its own output as it is: every kind of site ends where it is no site any more.

sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @constraint(
// CHECK: sdy.manual_computation
func.func @constraint(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @chain_of_constraints(
// CHECK: sdy.manual_computation
// CHECK-NOT: sdy.manual_computation
func.func @chain_of_constraints(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @chain_that_comes_back(
// CHECK-NOT: sdy.manual_computation
// CHECK: sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]>
func.func @chain_that_comes_back(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @operands_and_results(
// CHECK: sdy.manual_computation
func.func @operands_and_results(
    %arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @an_op_that_states_its_sharding(
// CHECK: sdy.manual_computation
func.func @an_op_that_states_its_sharding(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @loop(
// CHECK: sdy.manual_computation
func.func @loop(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<i32>) -> tensor<8x4xf32> {
  %0:2 = stablehlo.while(%i = %arg1, %v = %arg0) : tensor<i32>, tensor<8x4xf32>
    cond {
      %1 = stablehlo.compare NE, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = sdy.sharding_constraint %v <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
      stablehlo.return %1, %2 : tensor<i32>, tensor<8x4xf32>
    }
  return %0#1 : tensor<8x4xf32>
}

// The same constraint twice on one value, one of them with a constraint behind it: the layout between is looked at.
// CHECK-LABEL: func.func @the_same_constraint_twice(
// CHECK: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
// CHECK: sdy.manual_computation(%0) in_shardings=[<@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{"y"}, {"x"}]>]
// CHECK-NOT: sdy.manual_computation
func.func @the_same_constraint_twice(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {"x"}]> : tensor<8x4xf32>
  return %0, %2 : tensor<8x4xf32>, tensor<8x4xf32>
}
