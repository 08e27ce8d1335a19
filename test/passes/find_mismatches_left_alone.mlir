// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(find-mismatches)'
// RUN: %reshard-opt %s --split-input-file --pass-pipeline='builtin.module(find-mismatches)' 2>/dev/null | FileCheck %s

// What is no site, and why. `skipped` of the module's findings says the same as the remarks.

// No mesh, no shardings: nothing to find.
// CHECK: module attributes {reshard.findings = {sites = 0 : i64, skipped = [], version = 1 : i64}} {
// CHECK-NEXT: func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
// CHECK-NEXT: %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
// CHECK-NEXT: return %0 : tensor<8x8xf32>
func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// Partial sums that are reduced on the way. The other operand of the add is a site, and so is its result.
// CHECK: sites = 2 : i64, skipped = [{kind = "operand", where = "operand 0 of add", why = "partial sums are reduced here; layouts with partial sums are not supported yet"}]
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>},
    %arg1: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = sdy.sharding_constraint %arg2 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  // expected-remark @+1 {{operand 0 of add is left alone: partial sums are reduced here}}
  %2 = stablehlo.add %0, %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// Dynamic dimensions: Shardy propagates none. The rest of the module is done.
// CHECK: sites = 1 : i64, skipped = [{kind = "constraint", where = "operand 0 of sharding_constraint", why = "dimension 0 of tensor<?x8xf32> is dynamic, and Shardy propagates static shapes only; refine the module's shapes first"}]
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%arg0: tensor<?x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<?x8xf32>, tensor<8x8xf32>) {
  // expected-remark @+1 {{operand 0 of sharding_constraint is left alone: dimension 0 of tensor<?x8xf32> is dynamic, and Shardy propagates static shapes only; refine the module's shapes first}}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"y"}]> : tensor<?x8xf32>
  // CHECK: reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 0 : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{}, {"y"}]>
  %1 = sdy.sharding_constraint %arg1 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  return %0, %1 : tensor<?x8xf32>, tensor<8x8xf32>
}

// -----

// A constant.
// CHECK: sites = 1 : i64, skipped = [{kind = "operand", where = "operand 1 of add", why = "a constant is made in any layout without traffic"}]
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<2x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<2x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %cst = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} dense<[[1., 2.], [3., 4.]]> : tensor<2x2xf32>
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<2x2xf32>
  // expected-remark @+1 {{operand 1 of add is left alone: a constant is made in any layout without traffic}}
  %1 = stablehlo.add %0, %cst {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}

// -----

// A use that propagation feeds from the end of a chain of constraints.
// CHECK: sites = 1 : i64, skipped = [{kind = "operand", where = "operand 0 of add", why = "propagation feeds a constraint of the value to this op, not the value itself"}]
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  // expected-remark @+1 {{operand 0 of add is left alone: propagation feeds a constraint of the value to this op}}
  %3 = stablehlo.add %0, %arg1 : tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// -----

// One axis of size 1 in the way of nothing, and an explicit reshard that is there already: it is a constraint like any other.
// CHECK: sites = 1 : i64, skipped = []
sdy.mesh @mesh = <["x"=4, "unit"=1]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"unit"}]>}) -> tensor<8x8xf32> {
  // CHECK: sdy.reshard %arg0 <@mesh, [{}, {"x"}]> {reshard.operand_sites = [{kind = "constraint",
  // CHECK-SAME: source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>,
  %0 = sdy.reshard %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// A value that a loop captures rather than carries.
// CHECK: skipped = [{kind = "loop", where = "a value that while captures", why = "the loop has no operand for it; pass it through the loop"}]
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  // expected-remark @+1 {{a value that while captures is left alone: the loop has no operand for it}}
  %0:2 = stablehlo.while(%i = %c, %v = %arg1) : tensor<i32>, tensor<8x8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.add %v, %arg0 : tensor<8x8xf32>
      %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
      stablehlo.return %1, %3 : tensor<i32>, tensor<8x8xf32>
    }
  return %0#1 : tensor<8x8xf32>
}
