// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four_messages.toml})' | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four_messages.toml},decompose-collectives{topology=%S/Inputs/two_nodes_of_four_messages.toml})' | FileCheck %s
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml})' -o /dev/null 2>&1 | FileCheck %s --check-prefix=FREE

// A device sends a message to each partner in an all_to_all. Over all eight devices these are four out of the node and
// three inside; in two hops one and three. So two hops are faster, until bytes take longer than messages. Where messages cost nothing, every all_to_all stays.

// FREE: remark: 4 collectives stay as they are: no chain is faster by 10% on two nodes of four

sdy.mesh @mesh = <["node"=2, "gpu"=4]>
sdy.mesh @experts = <["expert"=8]>

// CHECK-LABEL: func.func @small_tiles_go_in_two_hops(
func.func @small_tiles_go_in_two_hops(%arg0: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // CHECK: "stablehlo.all_to_all"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: "stablehlo.all_to_all"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<8x64xf32>) {
    %1 = "stablehlo.all_to_all"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, split_count = 8 : i64, split_dimension = 0 : i64}> : (tensor<8x64xf32>) -> tensor<8x64xf32>
    sdy.return %1 : tensor<8x64xf32>
  } : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// CHECK-LABEL: func.func @large_tiles_go_at_once(
func.func @large_tiles_go_at_once(%arg0: tensor<64x65536xf32>) -> tensor<64x65536xf32> {
  // CHECK: "stablehlo.all_to_all"({{.*}}handle = 1, type = 1>
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<8x65536xf32>) {
    %1 = "stablehlo.all_to_all"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, split_count = 8 : i64, split_dimension = 0 : i64}> : (tensor<8x65536xf32>) -> tensor<8x65536xf32>
    sdy.return %1 : tensor<8x65536xf32>
  } : (tensor<64x65536xf32>) -> tensor<64x65536xf32>
  return %0 : tensor<64x65536xf32>
}

// CHECK-LABEL: func.func @an_axis_over_both_levels_is_cut_between_them(
func.func @an_axis_over_both_levels_is_cut_between_them(%arg0: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // CHECK: "stablehlo.all_to_all"({{.*}}replica_groups = dense<{{\[\[0, 1, 2, 3\], \[4, 5, 6, 7\]\]}}>
  // CHECK: "stablehlo.all_to_all"({{.*}}replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}>
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@experts, [{"expert"}, {}]>] out_shardings=[<@experts, [{"expert"}, {}]>] manual_axes={"expert"} (%arg1: tensor<8x64xf32>) {
    %1 = "stablehlo.all_to_all"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, split_count = 8 : i64, split_dimension = 0 : i64}> : (tensor<8x64xf32>) -> tensor<8x64xf32>
    sdy.return %1 : tensor<8x64xf32>
  } : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// CHECK-LABEL: func.func @inside_a_node_there_is_one_hop(
func.func @inside_a_node_there_is_one_hop(%arg0: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // CHECK: "stablehlo.all_to_all"({{.*}}handle = 1, type = 1>
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg1: tensor<8x64xf32>) {
    %1 = "stablehlo.all_to_all"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x64xf32>) -> tensor<8x64xf32>
    sdy.return %1 : tensor<8x64xf32>
  } : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
