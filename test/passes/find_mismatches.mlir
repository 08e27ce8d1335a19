// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches)' | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,strip-findings)' > %t.stripped
// RUN: %reshard-opt %s --pass-pipeline='builtin.module()' > %t.read
// RUN: diff %t.stripped %t.read

// Every kind of site, one per function; sources and targets are known by hand. Afterwards the module is as it was.

// CHECK: module attributes {reshard.findings = {open_results = [{function = "constraint", result = 0 : i64, sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, {{.*}}], sites = 34 : i64, skipped = [
// CHECK-SAME: version = 1 : i64}} {
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @one = <["x"=4, "y"=2, "unit"=1]>
sdy.mesh @shuffled = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>

// A constraint that its operand does not meet. The operand's source is what propagation found.
// CHECK-LABEL: func.func public @constraint(
func.func public @constraint(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: stablehlo.tanh{{.*}}{reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, why = "tanh wants operand 0 as [{\22x\22}, {\22y\22}]; operand 0, an argument of the function, is [{\22x\22}, {}]"}]}
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<8x8xf32>
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, target = #sdy.sharding<@mesh, [{}, {"y"}]>, why = "the constraint asks for [{}, {\22y\22}]; its operand is [{\22x\22}, {\22y\22}]"}]}
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// A constraint on a constraint: each is a site, and the second starts where the first ends.
// CHECK-LABEL: func.func public @constraint_on_constraint(
func.func public @constraint_on_constraint(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "the constraint asks for [{}, {\22x\22}]; its operand is [{\22x\22}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"y"}, {}]>, why = "the constraint asks for [{\22y\22}, {}]; its operand is [{}, {\22x\22}]"}]}
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// A constraint on an argument is a constraint; one that is met already is no site.
// CHECK-LABEL: func.func public @constraint_that_holds(
func.func public @constraint_that_holds(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// The same placement written otherwise: with an axis of size 1, with open dimensions.
// CHECK-LABEL: func.func public @same_placement(
func.func public @same_placement(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@one, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@one, [{"x"}, {"unit"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@one, [{"x", ?}, {?}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// A sub-axis, axes that propagation must not use, and a priority: none of them changes the placement but the first.
// CHECK-LABEL: func.func public @sub_axis(
func.func public @sub_axis(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{"x":(1)2}, {"x":(2)2}]>, why = "the constraint asks for [{\22x\22:(1)2}, {\22x\22:(2)2}]; its operand is [{\22x\22}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x":(1)2}p1, {"x":(2)2}], replicated={"y"}> : tensor<8x8xf32>
  // CHECK: return{{.*}}{reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x":(1)2}, {"x":(2)2}]>, target = #sdy.sharding<@mesh, [{}, {}]>, why = "result 0 of @sub_axis is [{}, {}]; the returned value is [{\22x\22:(1)2}, {\22x\22:(2)2}]"}]}
  return %0 : tensor<8x8xf32>
}

// The same axes on a mesh with another device order: every device has another shard.
// CHECK-LABEL: func.func public @device_order(
func.func public @device_order(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@shuffled, [{"x"}, {}]>, why = "the constraint asks for [{\22x\22}, {}]; its operand is [{\22x\22}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <@shuffled, [{"x"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A mesh that only the sharding carries is inlined in the finding too, unless the module declares an equal one.
// CHECK-LABEL: func.func public @inlined_mesh(
func.func public @inlined_mesh(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["a"=8]>, [{"a"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<mesh<["a"=8]>, [{"a"}, {}]>, target = #sdy.sharding<mesh<["a"=8]>, [{}, {"a"}]>, why = "the constraint asks for [{}, {\22a\22}]; its operand is [{\22a\22}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <mesh<["a"=8]>, [{}, {"a"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// An argument that an op wants otherwise.
// CHECK-LABEL: func.func public @argument(
func.func public @argument(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK: stablehlo.add{{.*}}{reshard.operand_sites = [{kind = "argument", operand = 1 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"y"}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "add wants operand 1 as [{\22x\22}, {}]; operand 1, an argument of the function, is [{\22y\22}, {}]"}]}
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A declared result that the returned value is not.
// CHECK-LABEL: func.func public @function_result(
func.func public @function_result(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x8xf32>) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  // CHECK: return{{.*}}{reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "result 0 of @function_result is [{}, {\22x\22}]; the returned value is [{\22x\22}, {}]"}]}
  return %0, %0 : tensor<8x8xf32>, tensor<8x8xf32>
}

// An op computes in another layout than its value has.
// CHECK-LABEL: func.func public @result(
func.func public @result(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: stablehlo.tanh{{.*}}{reshard.result_sites = [{kind = "result", result = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "tanh computes result 0 as [{\22x\22}, {}]; the value is [{}, {\22x\22}]"}]}
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// One value, two users with the same wish: one site with two edges.
// CHECK-LABEL: func.func public @one_site_two_uses(
func.func public @one_site_two_uses(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  // CHECK: stablehlo.add{{.*}}{reshard.operand_sites = [{kind = "operand", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "add wants operand 0 as [{}, {\22x\22}]; operand 0 is [{\22x\22}, {}]"}]}
  %1 = stablehlo.add %0, %arg1 : tensor<8x8xf32>
  // CHECK: stablehlo.multiply{{.*}}{reshard.operand_sites = [{kind = "operand", operand = 1 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "multiply wants operand 1 as [{}, {\22x\22}]; operand 1 is [{\22x\22}, {}]"}]}
  %2 = stablehlo.multiply %arg1, %0 : tensor<8x8xf32>
  return %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}

// A contraction names the dimension and the axes.
// CHECK-LABEL: func.func public @contraction(
func.func public @contraction(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: stablehlo.dot_general{{.*}}{reshard.operand_sites = [{kind = "argument", operand = 1 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "dot_general contracts dim 0 over \22x\22; operand 1, an argument of the function, is [{}, {}]"}]}
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// What a loop carries: the initial value, the value at the end of the body.
// CHECK-LABEL: func.func public @loop(
func.func public @loop(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %v = %arg0) : tensor<i32>, tensor<8x8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "the constraint asks for [{}, {\22x\22}]; its operand is [{\22x\22}, {}]"}]}
      %2 = sdy.sharding_constraint %v <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
      // CHECK: stablehlo.return{{.*}}{reshard.operand_sites = [{kind = "loop", operand = 1 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "while has value 1 as [{\22x\22}, {}]; its body ends with [{}, {\22x\22}]"}]}
      stablehlo.return %1, %2 : tensor<i32>, tensor<8x8xf32>
    }
  return %0#1 : tensor<8x8xf32>
}

// A loop invariant is captured, as in XLA, and may have another layout inside.
// CHECK-LABEL: func.func public @loop_invariant(
func.func public @loop_invariant(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: stablehlo.while{{.*}}{reshard.operand_sites = [{kind = "loop", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, why = "the loop has value 0 as [{\22x\22}, {\22y\22}]; it starts as [{\22x\22}, {}]"}]}
  %0:3 = stablehlo.while(%w = %arg0, %i = %c, %v = %arg1) : tensor<8x8xf32>, tensor<i32>, tensor<8x8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      // CHECK: stablehlo.add{{.*}}{reshard.operand_sites = [{kind = "loop", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"y"}]>, target = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, why = "add wants operand 0 as [{\22x\22}, {\22y\22}]; operand 0, of the loop, is [{}, {\22y\22}]"}], reshard.result_sites = [{kind = "result", result = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {"y"}]>, target = #sdy.sharding<@mesh, [{}, {"y"}]>, why = "add computes result 0 as [{\22x\22}, {\22y\22}]; the value is [{}, {\22y\22}]"}]}
      %2 = stablehlo.add %v, %w : tensor<8x8xf32>
      %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
      stablehlo.return %w, %1, %3 : tensor<8x8xf32>, tensor<i32>, tensor<8x8xf32>
    }
  return %0#2 : tensor<8x8xf32>
}

// The branches of a case.
// CHECK-LABEL: func.func public @branches(
func.func public @branches(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<i32>)
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = "stablehlo.case"(%arg1) ({
    // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "the constraint asks for [{}, {\22x\22}]; its operand is [{\22x\22}, {}]"}]}
    %1 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
    // CHECK: stablehlo.return{{.*}}{reshard.operand_sites = [{kind = "loop", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "case has value 0 as [{\22x\22}, {}]; its body ends with [{}, {\22x\22}]"}]}
    stablehlo.return %1 : tensor<8x8xf32>
  }, {
    // CHECK: stablehlo.tanh{{.*}}{reshard.result_sites = [{kind = "result", result = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "tanh computes result 0 as [{\22x\22}, {}]; the value is [{}, {\22x\22}]"}]}
    %1 = stablehlo.tanh %arg0 : tensor<8x8xf32>
    // CHECK: stablehlo.return{{.*}}{reshard.operand_sites = [{kind = "loop", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "case has value 0 as [{\22x\22}, {}]; its body ends with [{}, {\22x\22}]"}]}
    stablehlo.return %1 : tensor<8x8xf32>
  }) : (tensor<i32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A function that is called twice alike: its ops have sites like any other.
// CHECK-LABEL: func.func public @calls_alike(
func.func public @calls_alike(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = call @alike(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, why = "the constraint asks for [{\22x\22}, {}]; its operand is [{}, {\22x\22}]"}]}
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %2 = call @alike(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
// CHECK-LABEL: func.func private @alike(
func.func private @alike(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "the constraint asks for [{}, {\22x\22}]; its operand is [{\22x\22}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// One that is called with different layouts is cloned, one for each.
// CHECK-LABEL: func.func public @calls_unlike(
func.func public @calls_unlike(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = call @unlike(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: call @unlike(
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"y"}, {}]>, why = "the constraint asks for [{\22y\22}, {}]; its operand is [{}, {\22x\22}]"}]}
  // CHECK: call @unlike_1(
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  %2 = call @unlike(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
// CHECK-LABEL: func.func private @unlike(
// CHECK: source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>
// CHECK-LABEL: func.func private @unlike_1({{.*}} attributes {reshard.clone_of = "unlike"} {
// CHECK: source = #sdy.sharding<@mesh, [{"y"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>
func.func private @unlike(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A value from across a call: the user in the callee is served inside the callee.
// CHECK-LABEL: func.func public @call(
func.func public @call(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = call @callee(%arg0, %arg1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// CHECK-LABEL: func.func private @callee(
func.func private @callee(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: stablehlo.add{{.*}}{reshard.operand_sites = [{kind = "call", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "add wants operand 0 as [{}, {\22x\22}]; operand 0, from across a call, is [{\22x\22}, {}]"}]}
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A dimension that does not divide is marked; the planner decides.
// CHECK-LABEL: func.func public @uneven(
func.func public @uneven(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>, uneven = true, why = "the constraint asks for [{\22x\22}, {}]; its operand is [{\22x\22:(1)2}, {}]"}]}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<6x8xf32>
  // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>, uneven = true, why = "the constraint asks for [{}, {\22x\22}]; its operand is [{\22x\22}, {}]"}]}
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<6x8xf32>
  return %1 : tensor<6x8xf32>
}

// Inside a manual computation sites say which axes are used up. Its operand is a site on all axes.
// CHECK-LABEL: func.func public @manual(
func.func public @manual(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"y"} (%arg1: tensor<4x8xf32>) {
    // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", manual_axes = #sdy<manual_axes{"y"}>, operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {}]>, target = #sdy.sharding<@mesh, [{"x"}, {}]>
    %1 = sdy.sharding_constraint %arg1 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
    // CHECK: sdy.sharding_constraint{{.*}}{reshard.operand_sites = [{kind = "constraint", manual_axes = #sdy<manual_axes{"y"}>, operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>
    %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<4x8xf32>
    sdy.return %2 : tensor<4x8xf32>
  // CHECK: {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = {{[0-9]+}} : i64, source = #sdy.sharding<@mesh, [{}, {"x"}]>, target = #sdy.sharding<@mesh, [{"y"}, {}]>, why = "manual_computation wants operand 0 as [{\22y\22}, {}]; operand 0, an argument of the function, is [{}, {\22x\22}]"}]}
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A constraint with a single device: left alone.
sdy.mesh @maximal = <[], device_ids=[3]>
// CHECK-LABEL: func.func public @maximal_sharding(
func.func public @maximal_sharding(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %1 = stablehlo.custom_call @host(%0) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@maximal, []>]>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
