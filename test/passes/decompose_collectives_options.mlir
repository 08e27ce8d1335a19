// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives)' | FileCheck %s --check-prefix=AS-IT-CAME
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml keep-sums=true})' | FileCheck %s --check-prefix=SUMS
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml only=1})' | FileCheck %s --check-prefix=SUMS
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml leave=0})' | FileCheck %s --check-prefix=SUMS
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{topology=%S/Inputs/two_nodes_of_four.toml policy=strict})' | FileCheck %s --check-prefix=AS-IT-CAME
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{only=x})' 2>&1 | FileCheck %s --check-prefix=NO-NUMBER

// Without a network nothing is faster than anything else. Sums of floating-point numbers may stay as they are; so may
// single collectives, by their numbers; and all of them where no cost may be worse.

// NO-NUMBER: error: {{.*}}only=x has 'x', which is no site number; write only=0+3

sdy.mesh @mesh = <["node"=2, "gpu"=4]>
func.func @a_sum_of_floats_and_one_of_integers(%arg0: tensor<8x1048576xf32>, %arg1: tensor<8x1048576xi32>) -> (tensor<8x1048576xf32>, tensor<8x1048576xi32>) {
  // AS-IT-CAME: "stablehlo.all_reduce"({{.*}}handle = 1, type = 1>
  // AS-IT-CAME: "stablehlo.all_reduce"({{.*}}handle = 1, type = 1>
  // SUMS: "stablehlo.all_reduce"({{.*}}handle = 1, type = 1>
  // SUMS: "stablehlo.reduce_scatter"({{.*}}handle = 2, type = 1>
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"node", "gpu"}, {}]>, <@mesh, [{"node", "gpu"}, {}]>] out_shardings=[<@mesh, [{"node", "gpu"}, {}]>, <@mesh, [{"node", "gpu"}, {}]>] manual_axes={"node", "gpu"} (%arg2: tensor<1x1048576xf32>, %arg3: tensor<1x1048576xi32>) {
    %1 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
    %3 = "stablehlo.all_reduce"(%arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %2 = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %2 : tensor<i32>
    }) : (tensor<1x1048576xi32>) -> tensor<1x1048576xi32>
    sdy.return %1, %3 : tensor<1x1048576xf32>, tensor<1x1048576xi32>
  } : (tensor<8x1048576xf32>, tensor<8x1048576xi32>) -> (tensor<8x1048576xf32>, tensor<8x1048576xi32>)
  return %0#0, %0#1 : tensor<8x1048576xf32>, tensor<8x1048576xi32>
}
