// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu policy=always})' | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2})' | FileCheck %s --check-prefix=BETTER
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 any-gain=true})' | FileCheck %s --check-prefix=ANY

// On a torus blocks go both ways around a ring of neighbours: from 0 to 1, 3, 2 and back.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @each_gathered_block_is_multiplied_when_it_is_there(
// BETTER-LABEL: func.func @each_gathered_block_is_multiplied_when_it_is_there(
func.func @each_gathered_block_is_multiplied_when_it_is_there(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16> {
  // BETTER-NOT: stablehlo.all_gather
  // BETTER: sdy.return
  // CHECK-NOT: stablehlo.all_gather
  // CHECK: %[[FORWARD:.+]] = "stablehlo.collective_permute"(%[[OWN:.+]]) <{{.*}}source_target_pairs = dense<{{\[\[0, 1\], \[1, 3\], \[3, 2\], \[2, 0\]\]}}>
  // CHECK: %[[BACK:.+]] = "stablehlo.collective_permute"(%[[OWN]]) <{{.*}}source_target_pairs = dense<{{\[\[0, 2\], \[1, 0\], \[3, 1\], \[2, 3\]\]}}>
  // CHECK: %[[FURTHER:.+]] = "stablehlo.collective_permute"(%[[FORWARD]])
  // CHECK: %[[A:.+]] = stablehlo.dot_general %[[OWN]], %[[W:.+]], contracting_dims = [1] x [0]{{.*}} : (tensor<1024x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<1024x2048xbf16>
  // CHECK: %[[IN:.+]] = stablehlo.dynamic_update_slice %{{.+}}, %[[A]],
  // CHECK: %[[B:.+]] = stablehlo.dot_general %[[FORWARD]], %[[W]]
  // CHECK: stablehlo.dynamic_update_slice %[[IN]], %[[B]],
  // CHECK: stablehlo.dot_general %[[BACK]], %[[W]]
  // CHECK: stablehlo.dot_general %[[FURTHER]], %[[W]]
  // CHECK: %[[ALL:.+]] = stablehlo.dynamic_update_slice
  // CHECK-NEXT: sdy.return %[[ALL]] : tensor<4096x2048xbf16>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x"} (%arg2: tensor<1024x8192xbf16>, %arg3: tensor<8192x2048xbf16>) {
    %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<1024x8192xbf16>) -> tensor<4096x8192xbf16>
    %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<4096x2048xbf16>
    sdy.return %2 : tensor<4096x2048xbf16>
  } : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
  return %0 : tensor<4096x8192xbf16>
}

// What is added up over a gathered dimension is added up as float32.
// CHECK-LABEL: func.func @sums_over_gathered_blocks_are_wide(
func.func @sums_over_gathered_blocks_are_wide(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16> {
  // CHECK: %[[A:.+]] = stablehlo.dot_general %{{.+}}, %{{.+}}, contracting_dims = [1] x [0]{{.*}} : (tensor<1024x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<1024x8192xf32>
  // CHECK: stablehlo.add %[[A]], %{{.+}} : tensor<1024x8192xf32>
  // CHECK: %[[SUM:.+]] = stablehlo.add
  // CHECK: %[[NARROW:.+]] = stablehlo.convert %{{.+}} : (tensor<1024x8192xf32>) -> tensor<1024x8192xbf16>
  // CHECK-NEXT: sdy.return %[[NARROW]]
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<1024x8192xbf16>, %arg3: tensor<2048x8192xbf16>) {
    %1 = "stablehlo.all_gather"(%arg3) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<2048x8192xbf16>) -> tensor<8192x8192xbf16>
    %2 = stablehlo.dot_general %arg2, %1, contracting_dims = [1] x [0] : (tensor<1024x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<1024x8192xbf16>
    sdy.return %2 : tensor<1024x8192xbf16>
  } : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
  return %0 : tensor<4096x8192xbf16>
}

// A sum goes both ways in two parts each; a device adds its term for where the sum goes.
// CHECK-LABEL: func.func @a_sum_is_scattered_term_by_term(
func.func @a_sum_is_scattered_term_by_term(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x4096xbf16>) -> tensor<4096x4096xbf16> {
  // CHECK-NOT: stablehlo.reduce_scatter
  // CHECK: %[[TERM:.+]] = stablehlo.dot_general %{{.+}}, %{{.+}}, contracting_dims = [1] x [0]{{.*}} : (tensor<512x2048xbf16>, tensor<2048x4096xbf16>) -> tensor<512x4096xbf16>
  // CHECK: %[[CAME:.+]] = "stablehlo.collective_permute"(%[[TERM]])
  // CHECK: %[[SUM:.+]] = stablehlo.add %[[CAME]], %{{.+}} : tensor<512x4096xbf16>
  // CHECK: "stablehlo.collective_permute"(%[[SUM]])
  // CHECK: %[[ALL:.+]] = stablehlo.concatenate %{{.+}}, %{{.+}}, dim = 0 : (tensor<512x4096xbf16>, tensor<512x4096xbf16>) -> tensor<1024x4096xbf16>
  // CHECK-NEXT: sdy.return %[[ALL]]
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<4096x2048xbf16>, %arg3: tensor<2048x4096xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<4096x2048xbf16>, tensor<2048x4096xbf16>) -> tensor<4096x4096xbf16>
    %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %3 = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %3 : tensor<bf16>
    }) : (tensor<4096x4096xbf16>) -> tensor<1024x4096xbf16>
    sdy.return %2 : tensor<1024x4096xbf16>
  } : (tensor<4096x8192xbf16>, tensor<8192x4096xbf16>) -> tensor<4096x4096xbf16>
  return %0 : tensor<4096x4096xbf16>
}

// Parts of an all_to_all go directly to who gets them; the third is cut out once the first is there.
// CHECK-LABEL: func.func @parts_for_others_are_multiplied_first(
func.func @parts_for_others_are_multiplied_first(%arg0: tensor<16384x1024xbf16>, %arg1: tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16> {
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: %[[ONE:.+]] = stablehlo.dot_general
  // CHECK: %[[GOT:.+]] = "stablehlo.collective_permute"(%[[ONE]]) <{{.*}}source_target_pairs = dense<{{\[\[0, 1\], \[1, 2\], \[2, 3\], \[3, 0\]\]}}>
  // CHECK: "stablehlo.collective_permute"(%{{.+}}) <{{.*}}source_target_pairs = dense<{{\[\[0, 2\], \[1, 3\], \[2, 0\], \[3, 1\]\]}}>
  // CHECK: stablehlo.optimization_barrier %{{.+}}, %[[GOT]]
  // CHECK: "stablehlo.collective_permute"(%{{.+}}) <{{.*}}source_target_pairs = dense<{{\[\[0, 3\], \[1, 0\], \[2, 1\], \[3, 2\]\]}}>
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<4096x1024xbf16>, %arg3: tensor<1024x4096xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    sdy.return %2 : tensor<4096x4096xbf16>
  } : (tensor<16384x1024xbf16>, tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16>
  return %0 : tensor<16384x4096xbf16>
}

// What is used as a whole, too, is put together from the blocks, each of which is multiplied when it is there.
// CHECK-LABEL: func.func @a_gathered_tile_that_is_returned_too(
// BETTER-LABEL: func.func @a_gathered_tile_that_is_returned_too(
func.func @a_gathered_tile_that_is_returned_too(%arg0: tensor<64x64xf32>, %arg1: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  // BETTER: stablehlo.all_gather
  // CHECK-NOT: stablehlo.all_gather
  // CHECK: stablehlo.dynamic_update_slice %{{[a-z0-9_]+}}, %[[OWN:[a-z0-9_]+]], %{{.+}} : (tensor<64x64xf32>, tensor<16x64xf32>,
  // CHECK: %[[WHOLE:[a-z0-9_]+]] = stablehlo.dynamic_update_slice %{{[a-z0-9_]+}}, %[[LAST:[a-z0-9_]+]], %{{.+}} : (tensor<64x64xf32>, tensor<16x64xf32>,
  // CHECK: stablehlo.dot_general %[[OWN]],
  // CHECK: stablehlo.dot_general %[[LAST]],
  // CHECK: sdy.return
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}, {}]>] manual_axes={"x"} (%arg2: tensor<16x64xf32>, %arg3: tensor<64x64xf32>) {
    %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<16x64xf32>) -> tensor<64x64xf32>
    %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    sdy.return %1, %2 : tensor<64x64xf32>, tensor<64x64xf32>
  } : (tensor<64x64xf32>, tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>)
  return %0#0, %0#1 : tensor<64x64xf32>, tensor<64x64xf32>
}

// Of the collectives next to one product the one that gains most becomes a pipeline: a gathered dimension that is added
// up needs as many sums of the whole result as there are blocks. The sum is scattered along another place of the result.
// CHECK-LABEL: func.func @a_product_between_two_collectives(
func.func @a_product_between_two_collectives(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x8192xbf16>) -> tensor<8192x4096xbf16> {
  // CHECK: %[[WEIGHT:.+]] = "stablehlo.all_gather"
  // CHECK-NOT: stablehlo.reduce_scatter
  // CHECK: stablehlo.dot_general %{{.+}}, %{{.+}}, contracting_dims = [1] x [0] : (tensor<4096x2048xbf16>, tensor<2048x1024xbf16>) -> tensor<4096x1024xbf16>
  // CHECK-NEXT: %[[TERM:.+]] = stablehlo.transpose %{{.+}}, dims = [1, 0] : (tensor<4096x1024xbf16>) -> tensor<1024x4096xbf16>
  // CHECK-NEXT: "stablehlo.collective_permute"(%[[TERM]])
  // CHECK: stablehlo.concatenate %{{.+}}, %{{.+}}, dim = 0 : (tensor<1024x4096xbf16>, tensor<1024x4096xbf16>) -> tensor<2048x4096xbf16>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<4096x2048xbf16>, %arg3: tensor<2048x8192xbf16>) {
    %w = stablehlo.slice %arg3 [0:512, 0:8192] : (tensor<2048x8192xbf16>) -> tensor<512x8192xbf16>
    %1 = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<512x8192xbf16>) -> tensor<2048x8192xbf16>
    %2 = stablehlo.dot_general %arg2, %1, contracting_dims = [1] x [0] : (tensor<4096x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<4096x8192xbf16>
    %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<4096x8192xbf16>) -> tensor<8192x4096xbf16>
    %4 = "stablehlo.reduce_scatter"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %5 = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %5 : tensor<bf16>
    }) : (tensor<8192x4096xbf16>) -> tensor<2048x4096xbf16>
    sdy.return %4 : tensor<2048x4096xbf16>
  } : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<8192x4096xbf16>
  return %0 : tensor<8192x4096xbf16>
}

// The model says that it takes 0.997 times as long.
// BETTER-LABEL: func.func @a_pipeline_that_gains_little_is_for_those_who_ask_a_compiler(
// ANY-LABEL: func.func @a_pipeline_that_gains_little_is_for_those_who_ask_a_compiler(
func.func @a_pipeline_that_gains_little_is_for_those_who_ask_a_compiler(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x32768xbf16>) -> tensor<4096x32768xbf16> {
  // BETTER: stablehlo.all_gather
  // ANY-NOT: stablehlo.all_gather
  // ANY: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x"} (%arg2: tensor<1024x8192xbf16>, %arg3: tensor<8192x8192xbf16>) {
    %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<1024x8192xbf16>) -> tensor<4096x8192xbf16>
    %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
    sdy.return %2 : tensor<4096x8192xbf16>
  } : (tensor<4096x8192xbf16>, tensor<8192x32768xbf16>) -> tensor<4096x32768xbf16>
  return %0 : tensor<4096x32768xbf16>
}
