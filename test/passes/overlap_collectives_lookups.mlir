// RUN: %reshard-opt %s --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu policy=always})' -o %t 2>&1 | FileCheck %s --check-prefix=SAID
// RUN: FileCheck %s --input-file=%t
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2})' | FileCheck %s --check-prefix=BETTER

// A lookup in a table is cut as a product is: a part of the indices is looked up for who gets it.

sdy.mesh @mesh = <["x"=4]>

// Each device has some columns of the table, looks up the whole batch, and gets all columns of its part of the batch.
// CHECK-LABEL: func.func @each_part_of_the_batch_is_sent_when_it_is_looked_up(
// BETTER-LABEL: func.func @each_part_of_the_batch_is_sent_when_it_is_looked_up(
func.func @each_part_of_the_batch_is_sent_when_it_is_looked_up(%arg0: tensor<65536x16384xbf16>, %arg1: tensor<4096x8x1xi32>) -> tensor<4096x16384xbf16> {
  // BETTER-NOT: stablehlo.all_to_all
  // BETTER: sdy.return
  // CHECK-NOT: stablehlo.all_to_all
  // CHECK: %[[INDICES:.+]] = stablehlo.dynamic_slice %[[ALL:.+]], %{{.+}}, %{{.+}}, %{{.+}}, sizes = [1024, 8, 1] : (tensor<4096x8x1xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1024x8x1xi32>
  // CHECK: %[[ROWS:.+]] = "stablehlo.gather"(%[[TABLE:.+]], %[[INDICES]]) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4096>}> : (tensor<65536x4096xbf16>, tensor<1024x8x1xi32>) -> tensor<1024x8x4096xbf16>
  // CHECK: %[[BAG:.+]] = stablehlo.reduce(%[[ROWS]] init: %{{.+}}) applies stablehlo.add across dimensions = [1] : (tensor<1024x8x4096xbf16>, tensor<bf16>) -> tensor<1024x4096xbf16>
  // CHECK-NEXT: %[[CAME:.+]] = "stablehlo.collective_permute"(%[[BAG]])
  // CHECK: stablehlo.dynamic_update_slice %{{.+}}, %[[CAME]],
  // CHECK-COUNT-3: "stablehlo.gather"(%[[TABLE]]
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<65536x4096xbf16>, %arg3: tensor<4096x8x1xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4096>}> : (tensor<65536x4096xbf16>, tensor<4096x8x1xi32>) -> tensor<4096x8x4096xbf16>
    %zero = stablehlo.constant dense<0.0> : tensor<bf16>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4096x8x4096xbf16>, tensor<bf16>) -> tensor<4096x4096xbf16>
    %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x4096xbf16>) -> tensor<1024x16384xbf16>
    sdy.return %3 : tensor<1024x16384xbf16>
  } : (tensor<65536x16384xbf16>, tensor<4096x8x1xi32>) -> tensor<4096x16384xbf16>
  return %0 : tensor<4096x16384xbf16>
}

// Each device has some rows of the table. A mask is cut as the lookup is, in its own dimensions. Indices for the next hop
// are there when the part that is four permutes ahead has come.
// CHECK-LABEL: func.func @a_masked_lookup_is_added_up_where_the_sum_goes(
func.func @a_masked_lookup_is_added_up_where_the_sum_goes(%arg0: tensor<65536x512xf32>, %arg1: tensor<64x16x1xi32>, %arg2: tensor<64x16xi1>) -> tensor<1024x512xf32> {
  // CHECK-NOT: stablehlo.reduce_scatter
  // CHECK: %[[MASK:.+]] = stablehlo.dynamic_slice %{{.+}}, sizes = [8, 16] : (tensor<64x16xi1>, tensor<i32>, tensor<i32>) -> tensor<8x16xi1>
  // CHECK: %[[WIDE:.+]] = stablehlo.broadcast_in_dim %[[MASK]], dims = [0, 1] : (tensor<8x16xi1>) -> tensor<8x16x512xi1>
  // CHECK: %[[ROWS:.+]] = "stablehlo.gather"({{.+}} -> tensor<8x16x512xf32>
  // CHECK: %[[NONE:.+]] = stablehlo.broadcast_in_dim %{{.+}}, dims = [] : (tensor<f32>) -> tensor<8x16x512xf32>
  // CHECK: %[[KEPT:.+]] = stablehlo.select %[[WIDE]], %[[ROWS]], %[[NONE]]
  // CHECK: %[[TERM:.+]] = stablehlo.reshape %[[KEPT]] : (tensor<8x16x512xf32>) -> tensor<128x512xf32>
  // CHECK: %[[CAME:.+]] = "stablehlo.collective_permute"(%[[TERM]])
  // CHECK-COUNT-3: "stablehlo.collective_permute"
  // CHECK: %[[LATER:.+]]:2 = stablehlo.optimization_barrier %{{.+}}, %[[CAME]] : tensor<64x16x1xi32>, tensor<128x512xf32>
  // CHECK: stablehlo.dynamic_slice %[[LATER]]#0,
  // CHECK: stablehlo.concatenate %{{.+}}, %{{.+}}, dim = 0 : (tensor<128x512xf32>, tensor<128x512xf32>) -> tensor<256x512xf32>
  %0 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg3: tensor<16384x512xf32>, %arg4: tensor<64x16x1xi32>, %arg5: tensor<64x16xi1>) {
    %1 = "stablehlo.gather"(%arg3, %arg4) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 512>}> : (tensor<16384x512xf32>, tensor<64x16x1xi32>) -> tensor<64x16x512xf32>
    %2 = stablehlo.broadcast_in_dim %arg5, dims = [0, 1] : (tensor<64x16xi1>) -> tensor<64x16x512xi1>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<64x16x512xf32>
    %4 = stablehlo.select %2, %1, %3 : tensor<64x16x512xi1>, tensor<64x16x512xf32>
    %5 = stablehlo.reshape %4 : (tensor<64x16x512xf32>) -> tensor<1024x512xf32>
    %6 = "stablehlo.reduce_scatter"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %7 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<1024x512xf32>) -> tensor<256x512xf32>
    sdy.return %6 : tensor<256x512xf32>
  } : (tensor<65536x512xf32>, tensor<64x16x1xi32>, tensor<64x16xi1>) -> tensor<1024x512xf32>
  return %0 : tensor<1024x512xf32>
}

// What is split is a dimension of the table: a part of it is cut out for each block.
// CHECK-LABEL: func.func @parts_of_rows_are_looked_up_in_parts_of_the_table(
func.func @parts_of_rows_are_looked_up_in_parts_of_the_table(%arg0: tensor<64x32xf32>, %arg1: tensor<40x1xi32>) -> tensor<40x32xf32> {
  // CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %{{.+}}, sizes = [64, 8] : (tensor<64x32xf32>, tensor<i32>, tensor<i32>) -> tensor<64x8xf32>
  // CHECK: "stablehlo.gather"(%[[PART]], {{.+}} slice_sizes = array<i64: 1, 8>}> : (tensor<64x8xf32>, tensor<10x1xi32>) -> tensor<10x8xf32>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x"} (%arg2: tensor<64x32xf32>, %arg3: tensor<10x1xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 32>}> : (tensor<64x32xf32>, tensor<10x1xi32>) -> tensor<10x32xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<10x32xf32>) -> tensor<40x8xf32>
    sdy.return %2 : tensor<40x8xf32>
  } : (tensor<64x32xf32>, tensor<40x1xi32>) -> tensor<40x32xf32>
  return %0 : tensor<40x32xf32>
}

// SAID: remark: all_to_all next to a lookup stays as it is: the lookup takes a part of the dimension of its table that would be cut
// CHECK-LABEL: func.func @parts_of_rows(
func.func @parts_of_rows(%arg0: tensor<64x32xf32>, %arg1: tensor<40x2xi32>) -> tensor<40x16xf32> {
  // CHECK: stablehlo.all_to_all
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x"} (%arg2: tensor<64x32xf32>, %arg3: tensor<10x2xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 16>}> : (tensor<64x32xf32>, tensor<10x2xi32>) -> tensor<10x16xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<10x16xf32>) -> tensor<40x4xf32>
    sdy.return %2 : tensor<40x4xf32>
  } : (tensor<64x32xf32>, tensor<40x2xi32>) -> tensor<40x16xf32>
  return %0 : tensor<40x16xf32>
}

// SAID: remark: all_to_all next to a lookup stays as it is: the lookup is used as a whole, too
// CHECK-LABEL: func.func @a_lookup_that_is_returned_too(
func.func @a_lookup_that_is_returned_too(%arg0: tensor<64x32xf32>, %arg1: tensor<8x1xi32>) -> (tensor<8x32xf32>, tensor<32x8xf32>) {
  // CHECK: stablehlo.all_to_all
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<64x8xf32>, %arg3: tensor<8x1xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<64x8xf32>, tensor<8x1xi32>) -> tensor<8x8xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x8xf32>) -> tensor<2x32xf32>
    sdy.return %2, %1 : tensor<2x32xf32>, tensor<8x8xf32>
  } : (tensor<64x32xf32>, tensor<8x1xi32>) -> (tensor<8x32xf32>, tensor<32x8xf32>)
  return %0#0, %0#1 : tensor<8x32xf32>, tensor<32x8xf32>
}
