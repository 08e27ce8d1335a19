// RUN: %reshard-opt %s --synthesize-collectives | FileCheck %s

// The pass alone: findings and verdicts are given. Each conversion from "x" to "y" is one collective_permute.

#x = #sdy.sharding<@mesh, [{"x"}, {}]>
#y = #sdy.sharding<@mesh, [{"y"}, {}]>
#columns = #sdy.sharding<@mesh, [{}, {"x"}]>

module attributes {reshard.findings = {sites = 30 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>

// The layout that the constraint asked for is the island's.
// CHECK-LABEL: func.func @a_constraint_becomes_an_island(
func.func @a_constraint_becomes_an_island(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 0 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @an_operand_is_converted_for_its_op_alone(
func.func @an_operand_is_converted_for_its_op_alone(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg2: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %1 = stablehlo.add %0, %arg1 : tensor<8x4xf32>
  // CHECK-NEXT: return %1, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.add %arg0, %arg1 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 1 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>
}

// One site, two uses: one island, before the first of them.
// CHECK-LABEL: func.func @several_uses_share_an_island_before_the_first(
func.func @several_uses_share_an_island_before_the_first(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  // CHECK-NEXT: %2 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %5 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %5 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %3 = stablehlo.abs %2 : tensor<8x4xf32>
  // CHECK-NEXT: %4 = stablehlo.add %1, %2 : tensor<8x4xf32>
  // CHECK-NEXT: return %3, %4 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  %2 = stablehlo.abs %0 {reshard.operand_sites = [{kind = "operand", operand = 0 : i64, site = 3 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %3 = stablehlo.add %1, %0 {reshard.operand_sites = [{kind = "operand", operand = 1 : i64, site = 3 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %2, %3 : tensor<8x4xf32>, tensor<8x4xf32>
}

// A use that was not judged worth it keeps the value itself.
// CHECK-LABEL: func.func @one_use_is_converted_and_one_is_kept(
func.func @one_use_is_converted_and_one_is_kept(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %1 = stablehlo.abs %0 : tensor<8x4xf32>
  // CHECK-NEXT: %2 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 4 : i64, source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{"y"}, {}]>, verdict = "keep", why = "w"}]} : tensor<8x4xf32>
  // CHECK-NEXT: return %1, %2 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.abs %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 4 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %1 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 4 : i64, source = #x, target = #y, why = "w", verdict = "keep"}]} : tensor<8x4xf32>
  return %0, %1 : tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func @one_value_in_two_layouts_has_two_islands(
func.func @one_value_in_two_layouts_has_two_islands(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = stablehlo.reshape %arg1 : (tensor<4x4xf32>) -> tensor<4x2x2xf32>
  // CHECK-NEXT: %3 = stablehlo.transpose %2, dims = [1, 0, 2] : (tensor<4x2x2xf32>) -> tensor<2x4x2xf32>
  // CHECK-NEXT: %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 2\], \[1, 3\]\]}}> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x4x2xf32>) -> tensor<2x4x2xf32>
  // CHECK-NEXT: %5 = stablehlo.reshape %4 : (tensor<2x4x2xf32>) -> tensor<8x2xf32>
  // CHECK-NEXT: sdy.return %5 : tensor<8x2xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0, %1 : tensor<8x4xf32>, tensor<8x4xf32>
  return {reshard.operand_sites = [
    {kind = "function_result", operand = 0 : i64, site = 5 : i64, source = #x, target = #y, why = "", verdict = "rewrite"},
    {kind = "function_result", operand = 1 : i64, site = 6 : i64, source = #x, target = #columns, why = "", verdict = "rewrite"}]} %arg0, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>
}

// What computes in "x" is converted once for all users. It does not matter which op is first.
// CHECK-LABEL: func.func @a_result_is_converted_for_all_users(
func.func @a_result_is_converted_for_all_users(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = stablehlo.tanh %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = stablehlo.negate %1 : tensor<8x4xf32>
  // CHECK-NEXT: return %1, %2 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.tanh %arg0 {reshard.result_sites = [{kind = "result", result = 0 : i64, site = 7 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %1 = stablehlo.negate %0 : tensor<8x4xf32>
  return %0, %1 : tensor<8x4xf32>, tensor<8x4xf32>
}

// The op that states its sharding states the one that it computes in, lest it be converted to the one of the value and back.
// CHECK-LABEL: func.func @an_op_that_states_its_sharding_states_what_it_computes_in(
func.func @an_op_that_states_its_sharding_states_what_it_computes_in(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %1 : tensor<8x4xf32>
  %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[#y]>, reshard.result_sites = [{kind = "result", result = 0 : i64, site = 8 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// Sites on a value that is converted as a result start where that conversion ends.
// CHECK-LABEL: func.func @a_use_of_a_converted_result_is_converted_after_it(
func.func @a_use_of_a_converted_result_is_converted_after_it(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = stablehlo.tanh %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %2 : tensor<8x4xf32>
  %0 = stablehlo.tanh %arg0 {reshard.result_sites = [{kind = "result", result = 0 : i64, site = 9 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return {reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = 10 : i64, source = #y, target = #x, why = "", verdict = "rewrite"}]} %0 : tensor<8x4xf32>
}

// From "x" over "y" to columns: the layout between is gone.
// CHECK-LABEL: func.func @a_chain_of_constraints_becomes_one_island(
func.func @a_chain_of_constraints_becomes_one_island(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<4x4xf32>) -> tensor<4x2x2xf32>
  // CHECK-NEXT: %2 = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<4x2x2xf32>) -> tensor<2x4x2xf32>
  // CHECK-NEXT: %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 2\], \[1, 3\]\]}}> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x4x2xf32>) -> tensor<2x4x2xf32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<2x4x2xf32>) -> tensor<8x2xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<8x2xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 11 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 12 : i64, source = #y, target = #columns, why = "", verdict = "rewrite", merges = [11]}]} : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// Nothing moves; what is left is that the value has this layout.
// CHECK-LABEL: func.func @a_chain_that_comes_back_becomes_a_constraint(
func.func @a_chain_that_comes_back_becomes_a_constraint(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 13 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 14 : i64, source = #y, target = #x, why = "", verdict = "rewrite", merges = [13]}]} : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// The loop would run the collectives again and again.
// CHECK-LABEL: func.func @a_value_from_outside_a_loop_is_converted_before_it(
func.func @a_value_from_outside_a_loop_is_converted_before_it(%arg0: tensor<8x4xf32>, %arg1: tensor<i32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = stablehlo.tanh %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %2 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg2: tensor<4x4xf32>) {
  // CHECK-NEXT: %4 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %3:2 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %1) : tensor<i32>, tensor<8x4xf32>
  // CHECK-NEXT: cond {
  // CHECK-NEXT: %4 = stablehlo.compare NE, %iterArg, %iterArg : (tensor<i32>, tensor<i32>) -> tensor<i1>
  // CHECK-NEXT: stablehlo.return %4 : tensor<i1>
  // CHECK-NEXT: } do {
  // CHECK-NEXT: %4 = stablehlo.add %iterArg_0, %2 : tensor<8x4xf32>
  // CHECK-NEXT: stablehlo.return %iterArg, %4 : tensor<i32>, tensor<8x4xf32>
  // CHECK-NEXT: }
  // CHECK-NEXT: return %3#1 : tensor<8x4xf32>
  %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  %1 = stablehlo.tanh %arg0 : tensor<8x4xf32>
  %2:2 = stablehlo.while(%i = %arg1, %v = %1) : tensor<i32>, tensor<8x4xf32>
    cond {
      %3 = stablehlo.compare NE, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %3 = stablehlo.add %v, %0 {reshard.operand_sites = [{kind = "operand", operand = 1 : i64, site = 15 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
      stablehlo.return %i, %3 : tensor<i32>, tensor<8x4xf32>
    }
  return %2#1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @a_value_of_a_loop_is_converted_in_it(
func.func @a_value_of_a_loop_is_converted_in_it(%arg0: tensor<8x4xf32>, %arg1: tensor<i32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0:2 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %arg0) : tensor<i32>, tensor<8x4xf32>
  // CHECK-NEXT: cond {
  // CHECK-NEXT: %1 = stablehlo.compare NE, %iterArg, %iterArg : (tensor<i32>, tensor<i32>) -> tensor<i1>
  // CHECK-NEXT: stablehlo.return %1 : tensor<i1>
  // CHECK-NEXT: } do {
  // CHECK-NEXT: %1 = sdy.manual_computation(%iterArg_0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg2: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: stablehlo.return %iterArg, %1 : tensor<i32>, tensor<8x4xf32>
  // CHECK-NEXT: }
  // CHECK-NEXT: return %0#1 : tensor<8x4xf32>
  %0:2 = stablehlo.while(%i = %arg1, %v = %arg0) : tensor<i32>, tensor<8x4xf32>
    cond {
      %1 = stablehlo.compare NE, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      stablehlo.return %i, %v {reshard.operand_sites = [{kind = "loop", operand = 1 : i64, site = 16 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<i32>, tensor<8x4xf32>
    }
  return %0#1 : tensor<8x4xf32>
}

// Only the branch that is taken pays.
// CHECK-LABEL: func.func @a_value_that_one_branch_uses_is_converted_in_it(
func.func @a_value_that_one_branch_uses_is_converted_in_it(%arg0: tensor<8x4xf32>, %arg1: tensor<i32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = "stablehlo.case"(%arg1) ({
  // CHECK-NEXT: %1 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg2: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = stablehlo.abs %1 : tensor<8x4xf32>
  // CHECK-NEXT: stablehlo.return %2 : tensor<8x4xf32>
  // CHECK-NEXT: }, {
  // CHECK-NEXT: stablehlo.return %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: }) : (tensor<i32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = "stablehlo.case"(%arg1) ({
    %1 = stablehlo.abs %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 17 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
    stablehlo.return %1 : tensor<8x4xf32>
  }, {
    stablehlo.return %arg0 : tensor<8x4xf32>
  }) : (tensor<i32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @a_value_that_two_branches_use_is_converted_before_them(
func.func @a_value_that_two_branches_use_is_converted_before_them(%arg0: tensor<8x4xf32>, %arg1: tensor<i32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg2: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = "stablehlo.case"(%arg1) ({
  // CHECK-NEXT: %3 = stablehlo.abs %1 : tensor<8x4xf32>
  // CHECK-NEXT: stablehlo.return %3 : tensor<8x4xf32>
  // CHECK-NEXT: }, {
  // CHECK-NEXT: %3 = stablehlo.tanh %1 : tensor<8x4xf32>
  // CHECK-NEXT: stablehlo.return %3 : tensor<8x4xf32>
  // CHECK-NEXT: }) : (tensor<i32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %2 : tensor<8x4xf32>
  %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
  %1 = "stablehlo.case"(%arg1) ({
    %2 = stablehlo.abs %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 18 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
    stablehlo.return %2 : tensor<8x4xf32>
  }, {
    %2 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 18 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
    stablehlo.return %2 : tensor<8x4xf32>
  }) : (tensor<i32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// Propagation, and XLA, let the other users of a value that a barrier or loop hands on use the constraint on it.
// CHECK-LABEL: func.func @a_use_that_is_fed_from_a_constraint_is_fed_from_its_island(
func.func @a_use_that_is_fed_from_a_constraint_is_fed_from_its_island(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = stablehlo.optimization_barrier %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %3 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %1, %2 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.optimization_barrier %arg0 : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 21 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return {reshard.operand_sites = [{kind = "function_result", operand = 1 : i64, site = 22 : i64, source = #y, target = #x, why = "", verdict = "rewrite"}]} %1, %0 : tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func @a_constraint_moves_in_front_of_a_use_that_it_feeds(
func.func @a_constraint_moves_in_front_of_a_use_that_it_feeds(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %0 = stablehlo.optimization_barrier %arg0 : tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %4 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %4 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %3 = stablehlo.negate %2 : tensor<8x4xf32>
  // CHECK-NEXT: return %1, %3 : tensor<8x4xf32>, tensor<8x4xf32>
  %0 = stablehlo.optimization_barrier %arg0 : tensor<8x4xf32>
  %1 = stablehlo.negate %0 {reshard.operand_sites = [{kind = "operand", operand = 0 : i64, site = 23 : i64, source = #y, target = #x, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 24 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %2, %1 : tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func private @a_private_function_is_rewritten_like_any_other(
func.func private @a_private_function_is_rewritten_like_any_other(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 19 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// An explicit reshard is a constraint.
// CHECK-LABEL: func.func @a_reshard_becomes_an_island(
func.func @a_reshard_becomes_an_island(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  %0 = sdy.reshard %arg0 <@mesh, [{"y"}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 20 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}
