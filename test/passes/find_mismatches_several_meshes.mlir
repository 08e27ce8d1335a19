// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(find-mismatches)'
// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches)' | FileCheck %s

// Shardy inserts no reshard at an op whose values are on meshes of different axes. Each such operand is left alone, and said to be.

// A constraint on another mesh goes on to the op in front of it.
// CHECK: sites = 0 : i64, skipped = [{kind = "argument", where = "operand 0 of tanh", why = "it is [{
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["x"=2, "y"=4]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x16xf32> {
  // expected-remark @+1 {{operand 0 of tanh is left alone: it is [{"x"}, {"y"}] on <["x"=4, "y"=2]>, and the op computes [{"y"}, {"x"}] on <["x"=2, "y"=4]>; Shardy converts no operand between meshes of different axes}}
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@other, [{"y"}, {"x"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// -----

// What the remark advises: the result is constrained on the first mesh, and the conversion is a site.
// CHECK: sites = 1 : i64, skipped = []
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["x"=2, "y"=4]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {"y"}]> : tensor<16x16xf32>
  %2 = sdy.sharding_constraint %1 <@other, [{"y"}, {"x"}]> : tensor<16x16xf32>
  return %2 : tensor<16x16xf32>
}

// -----

// Two operands, of which one is on the mesh of the result already; and a result of another shape.
// CHECK: sites = 0 : i64, skipped = [{kind = "argument", where = "operand 0 of add"
// CHECK-SAME: {kind = "argument", where = "operand 0 of reduce"
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["u"=2, "v"=4]>
func.func public @main(
    %arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@other, [{"u"}, {"v"}]>}) -> (tensor<16x16xf32>, tensor<16xf32>) {
  // expected-remark @+1 {{operand 0 of add is left alone}}
  %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@other, [{"u"}, {"v"}]>]>} : tensor<16x16xf32>
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-remark @+1 {{operand 0 of reduce is left alone}}
  %1 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] {sdy.sharding = #sdy.sharding_per_value<[<@other, [{"u"}]>]>} : (tensor<16x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0, %1 : tensor<16x16xf32>, tensor<16xf32>
}

// -----

// Axes of other names that are the same digits of the devices: nothing moves, nothing is said.
// CHECK: sites = 0 : i64, skipped = []
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @renamed = <["u"=4, "v"=2]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@renamed, [{"u"}, {"v"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}
