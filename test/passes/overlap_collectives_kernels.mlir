// RUN: %reshard-opt %s --overlap-collectives='topology=v5p:2x2x1 platform=tpu policy=always' --fuse=kernels 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=SAID --input-file=%t
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 platform=tpu policy=always fuse=kernels})' 2>&1 | FileCheck %s --check-prefix=V5E

// A product and the all_to_all or all_reduce behind it, or a lookup and the all_to_all behind it, are one call, with the
// places of the device as its first operand.

// V5E-NOT: tpu_custom_call
// V5E: all_to_all next to a product is no kernel, but a pipeline of StableHLO: kernels are for v5p, v6e, tpu7x, not for v5e:2x2 on platform tpu

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @parts_of_a_product_are_sent_by_a_kernel(
func.func @parts_of_a_product_are_sent_by_a_kernel(%arg0: tensor<16384x1024xbf16>, %arg1: tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16> {
  // CHECK: %[[TABLE:.+]] = stablehlo.constant dense<{{.*}}[1, 2, 3, 0], [1, 2, 3, 0]{{.*}}[2, 3, 0, 1], [2, 3, 0, 1]{{.*}}> : tensor<4x2x4xi32>
  // CHECK: %[[OWN:.+]] = stablehlo.dynamic_slice %[[TABLE]], {{.+}}, sizes = [1, 2, 4]
  // CHECK-NEXT: %[[PLACES:.+]] = stablehlo.reshape %[[OWN]] : (tensor<1x2x4xi32>) -> tensor<2x4xi32>
  // CHECK: %[[MADE:.+]] = stablehlo.custom_call @tpu_custom_call(%[[PLACES]], %{{.+}}, %{{.+}}) {{.*}}collective_id\22: 0,{{.*}}kernel_name = "product_all_to_all"{{.*}} : (tensor<2x4xi32>, tensor<1x4096x1024xbf16>, tensor<1x1024x4096xbf16>) -> tensor<1x4096x4096xbf16>
  // CHECK-NEXT: %[[RESULT:.+]] = stablehlo.reshape %[[MADE]] : (tensor<1x4096x4096xbf16>) -> tensor<4096x4096xbf16>
  // CHECK-NEXT: sdy.return %[[RESULT]]
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<4096x1024xbf16>, %arg3: tensor<1024x4096xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    sdy.return %2 : tensor<4096x4096xbf16>
  } : (tensor<16384x1024xbf16>, tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16>
  return %0 : tensor<16384x4096xbf16>
}

// Experts are batches; their weights are [expert, columns, inner]. The sum is rounded to bf16 before it travels.
// CHECK-LABEL: func.func @what_experts_make_goes_back(
func.func @what_experts_make_goes_back(%arg0: tensor<16x4x128x512xbf16>, %arg1: tensor<16x256x512xbf16>) -> tensor<64x1x128x256xbf16> {
  // CHECK: stablehlo.custom_call @tpu_custom_call({{.*}}) {{.*}}collective_id\22: 1,{{.*}} : (tensor<2x4xi32>, tensor<4x512x512xbf16>, tensor<4x256x512xbf16>) -> tensor<16x128x256xbf16>
  // CHECK-NEXT: stablehlo.reshape %{{.+}} : (tensor<16x128x256xbf16>) -> tensor<16x1x128x256xbf16>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}, {}, {}]>, <@mesh, [{"x"}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}, {}]>] manual_axes={"x"} (%arg2: tensor<4x4x128x512xbf16>, %arg3: tensor<4x256x512xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<4x4x128x512xbf16>, tensor<4x256x512xbf16>) -> tensor<4x4x128x256xf32>
    %2 = stablehlo.convert %1 : (tensor<4x4x128x256xf32>) -> tensor<4x4x128x256xbf16>
    %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<4x4x128x256xbf16>) -> tensor<16x1x128x256xbf16>
    sdy.return %3 : tensor<16x1x128x256xbf16>
  } : (tensor<16x4x128x512xbf16>, tensor<16x256x512xbf16>) -> tensor<64x1x128x256xbf16>
  return %0 : tensor<64x1x128x256xbf16>
}

// CHECK-LABEL: func.func @a_product_with_a_vector_is_added_up_by_a_kernel(
func.func @a_product_with_a_vector_is_added_up_by_a_kernel(%arg0: tensor<8192x8192xbf16>, %arg1: tensor<8192xbf16>) -> tensor<8192xbf16> {
  // CHECK: %[[X:.+]] = stablehlo.reshape %{{.+}} : (tensor<2048xbf16>) -> tensor<1x2048xbf16>
  // CHECK: %[[SUM:.+]] = stablehlo.custom_call @tpu_custom_call(%{{.+}}, %[[X]], %{{.+}}) {{.*}}kernel_name = "product_all_reduce"{{.*}} : (tensor<2x4xi32>, tensor<1x2048xbf16>, tensor<8192x2048xbf16>) -> tensor<1x8192xbf16>
  // CHECK-NEXT: %[[COLUMN:.+]] = stablehlo.transpose %[[SUM]], dims = [1, 0]
  // CHECK-NEXT: stablehlo.reshape %[[COLUMN]] : (tensor<8192x1xbf16>) -> tensor<8192xbf16>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"x"} (%arg2: tensor<8192x2048xbf16>, %arg3: tensor<2048xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<8192x2048xbf16>, tensor<2048xbf16>) -> tensor<8192xbf16>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %3 = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %3 : tensor<bf16>
    }) : (tensor<8192xbf16>) -> tensor<8192xbf16>
    sdy.return %2 : tensor<8192xbf16>
  } : (tensor<8192x8192xbf16>, tensor<8192xbf16>) -> tensor<8192xbf16>
  return %0 : tensor<8192xbf16>
}

// CHECK-LABEL: func.func @few_rows(
func.func @few_rows(%arg0: tensor<8x8192xf32>, %arg1: tensor<8192x8192xf32>) -> tensor<8x8192xf32> {
  // CHECK: stablehlo.custom_call @tpu_custom_call({{.*}}) {{.*}} : (tensor<2x4xi32>, tensor<8x2048xf32>, tensor<2048x8192xf32>) -> tensor<8x8192xf32>
  // CHECK-NEXT: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x"} (%arg2: tensor<8x2048xf32>, %arg3: tensor<2048x8192xf32>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x2048xf32>, tensor<2048x8192xf32>) -> tensor<8x8192xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<8x8192xf32>) -> tensor<8x8192xf32>
    sdy.return %2 : tensor<8x8192xf32>
  } : (tensor<8x8192xf32>, tensor<8192x8192xf32>) -> tensor<8x8192xf32>
  return %0 : tensor<8x8192xf32>
}

// Each device has some columns of the table, looks up the whole batch, and gets all columns of its part of the batch.
// CHECK-LABEL: func.func @looked_up_features_are_sent_by_a_kernel(
func.func @looked_up_features_are_sent_by_a_kernel(%arg0: tensor<65536x2048xf32>, %arg1: tensor<1024x8x1xi32>) -> tensor<1024x8x2048xf32> {
  // CHECK: %[[INDICES:.+]] = stablehlo.reshape %{{.+}} : (tensor<1024x8x1xi32>) -> tensor<8192xi32>
  // CHECK-NEXT: %[[ROWS:.+]] = stablehlo.custom_call @tpu_custom_call(%{{.+}}, %[[INDICES]], %{{.+}}) {{.*}}kernel_name = "lookup_all_to_all"{{.*}} : (tensor<2x4xi32>, tensor<8192xi32>, tensor<65536x512xf32>) -> tensor<2048x2048xf32>
  // CHECK-NEXT: stablehlo.reshape %[[ROWS]] : (tensor<2048x2048xf32>) -> tensor<256x8x2048xf32>
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}]>] manual_axes={"x"} (%arg2: tensor<65536x512xf32>, %arg3: tensor<1024x8x1xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 512>}> : (tensor<65536x512xf32>, tensor<1024x8x1xi32>) -> tensor<1024x8x512xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 2 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<1024x8x512xf32>) -> tensor<256x8x2048xf32>
    sdy.return %2 : tensor<256x8x2048xf32>
  } : (tensor<65536x2048xf32>, tensor<1024x8x1xi32>) -> tensor<1024x8x2048xf32>
  return %0 : tensor<1024x8x2048xf32>
}

// CHECK-LABEL: func.func @looked_up_rows_come_one_behind_the_other(
func.func @looked_up_rows_come_one_behind_the_other(%arg0: tensor<4096x128xf32>, %arg1: tensor<4096xi32>) -> tensor<4096x128xf32> {
  // CHECK: %[[ROWS:.+]] = stablehlo.custom_call @tpu_custom_call({{.*}}) {{.*}} : (tensor<2x4xi32>, tensor<1024xi32>, tensor<1024x128xf32>) -> tensor<1024x128xf32>
  // CHECK-NEXT: sdy.return %[[ROWS]]
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<1024x128xf32>, %arg3: tensor<1024xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 128>}> : (tensor<1024x128xf32>, tensor<1024xi32>) -> tensor<1024x128xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<1024x128xf32>) -> tensor<1024x128xf32>
    sdy.return %2 : tensor<1024x128xf32>
  } : (tensor<4096x128xf32>, tensor<4096xi32>) -> tensor<4096x128xf32>
  return %0 : tensor<4096x128xf32>
}

// CHECK-LABEL: func.func @rows_are_looked_up_in_a_table_that_a_kernel_brings(
func.func @rows_are_looked_up_in_a_table_that_a_kernel_brings(%arg0: tensor<4096x128xf32>, %arg1: tensor<4096xi32>) -> tensor<4096x128xf32> {
  // CHECK: %[[TABLE:.+]] = stablehlo.custom_call @tpu_custom_call(
  // CHECK: %[[ROWS:.+]] = stablehlo.custom_call @tpu_custom_call(%{{.+}}, %{{.+}}, %[[TABLE]])
  // CHECK-NEXT: sdy.return %[[ROWS]]
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<1024x128xf32>, %arg3: tensor<1024xi32>) {
    %1 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 128>}> : (tensor<1024x128xf32>, tensor<1024xi32>) -> tensor<1024x128xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<1024x128xf32>) -> tensor<1024x128xf32>
    %3 = "stablehlo.gather"(%2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 128>}> : (tensor<1024x128xf32>, tensor<1024xi32>) -> tensor<1024x128xf32>
    %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<1024x128xf32>) -> tensor<1024x128xf32>
    sdy.return %4 : tensor<1024x128xf32>
  } : (tensor<4096x128xf32>, tensor<4096xi32>) -> tensor<4096x128xf32>
  return %0 : tensor<4096x128xf32>
}

// SAID: all_to_all next to a product is no kernel, but a pipeline of StableHLO: a part of 1024 x 100 is no multiple of 16 x 128
// CHECK-LABEL: func.func @parts_that_are_no_whole_tiles_of_memory(
func.func @parts_that_are_no_whole_tiles_of_memory(%arg0: tensor<16384x1024xbf16>, %arg1: tensor<4096x100xbf16>) -> tensor<16384x100xbf16> {
  // CHECK-NOT: tpu_custom_call
  // CHECK: stablehlo.collective_permute
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<4096x1024xbf16>, %arg3: tensor<1024x100xbf16>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x100xbf16>) -> tensor<4096x100xbf16>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x100xbf16>) -> tensor<4096x100xbf16>
    sdy.return %2 : tensor<4096x100xbf16>
  } : (tensor<16384x1024xbf16>, tensor<4096x100xbf16>) -> tensor<16384x100xbf16>
  return %0 : tensor<16384x100xbf16>
}

// SAID: all_to_all next to a product is no kernel, but a pipeline of StableHLO: there are other ops between product and collective
// SAID: note: the first of 2 remarks with this reason
// SAID: all_reduce next to a product is no kernel, but a pipeline of StableHLO: a product of 8192 x 8192 has more than 64 rows and columns
func.func @what_no_kernel_is_for(%arg0: tensor<16384x1024xbf16>, %arg1: tensor<4096x4096xbf16>, %arg2: tensor<8192x8192xf32>, %arg3: tensor<8192x8192xf32>) -> (tensor<16384x4096xbf16>, tensor<8192x8192xf32>) {
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg4: tensor<4096x1024xbf16>, %arg5: tensor<1024x4096xbf16>) {
    %2 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
    %3 = stablehlo.tanh %2 : tensor<4096x4096xbf16>
    %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    sdy.return %4 : tensor<4096x4096xbf16>
  } : (tensor<16384x1024xbf16>, tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16>
  %1 = sdy.manual_computation(%arg2, %arg3) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x"} (%arg4: tensor<8192x2048xf32>, %arg5: tensor<2048x8192xf32>) {
    %2 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0] : (tensor<8192x2048xf32>, tensor<2048x8192xf32>) -> tensor<8192x8192xf32>
    %3 = "stablehlo.all_reduce"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
    sdy.return %3 : tensor<8192x8192xf32>
  } : (tensor<8192x8192xf32>, tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
  return %0, %1 : tensor<16384x4096xbf16>, tensor<8192x8192xf32>
}

// A reshape is such an op, too: the second of the two remarks.
func.func @a_product_in_another_shape(%arg0: tensor<16384x1024xbf16>, %arg1: tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16> {
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg4: tensor<4096x1024xbf16>, %arg5: tensor<1024x4096xbf16>) {
    %2 = stablehlo.dot_general %arg4, %arg5, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
    %3 = stablehlo.reshape %2 : (tensor<4096x4096xbf16>) -> tensor<4096x4096x1xbf16>
    %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4096x4096x1xbf16>) -> tensor<4096x4096x1xbf16>
    %5 = stablehlo.reshape %4 : (tensor<4096x4096x1xbf16>) -> tensor<4096x4096xbf16>
    sdy.return %5 : tensor<4096x4096xbf16>
  } : (tensor<16384x1024xbf16>, tensor<4096x4096xbf16>) -> tensor<16384x4096xbf16>
  return %0 : tensor<16384x4096xbf16>
}

// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: its elements are bfloat16, single rows can be copied of float32
// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: its indices are i64, kernels take i32
// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: it sends parts of rows, kernels send whole ones
// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: there are other ops between lookup and collective
// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: its lookup takes something else than whole rows of a matrix
// SAID: all_to_all next to a lookup is no kernel, but a pipeline of StableHLO: its parts are apart in memory
// CHECK-LABEL: func.func @lookups_that_no_kernel_is_for(
func.func @lookups_that_no_kernel_is_for(%arg0: tensor<1024x512xbf16>, %arg1: tensor<1024x512xf32>, %arg2: tensor<512x1xi32>, %arg3: tensor<512x1xi64>, %arg4: tensor<64x8x1xi32>) -> (tensor<512x2048xbf16>, tensor<512x2048xf32>, tensor<8192x128xf32>, tensor<64x2048xf32>, tensor<512x512xf32>, tensor<64x32x512xf32>) {
  // CHECK-NOT: tpu_custom_call
  // CHECK: sdy.return
  %0:6 = sdy.manual_computation(%arg0, %arg1, %arg2, %arg3, %arg4) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}, {}]>] manual_axes={"x"} (%half: tensor<1024x512xbf16>, %table: tensor<1024x512xf32>, %narrow: tensor<512x1xi32>, %long: tensor<512x1xi64>, %wide: tensor<64x8x1xi32>) {
    %1 = "stablehlo.gather"(%half, %narrow) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 512>}> : (tensor<1024x512xbf16>, tensor<512x1xi32>) -> tensor<512x512xbf16>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<512x512xbf16>) -> tensor<128x2048xbf16>
    %3 = "stablehlo.gather"(%table, %long) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 512>}> : (tensor<1024x512xf32>, tensor<512x1xi64>) -> tensor<512x512xf32>
    %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<512x512xf32>) -> tensor<128x2048xf32>
    %5 = "stablehlo.gather"(%table, %narrow) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 512>}> : (tensor<1024x512xf32>, tensor<512x1xi32>) -> tensor<512x512xf32>
    %6 = "stablehlo.all_to_all"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<512x512xf32>) -> tensor<2048x128xf32>
    %7 = "stablehlo.gather"(%table, %wide) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 512>}> : (tensor<1024x512xf32>, tensor<64x8x1xi32>) -> tensor<64x8x512xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<64x8x512xf32>, tensor<f32>) -> tensor<64x512xf32>
    %9 = "stablehlo.all_to_all"(%8) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<64x512xf32>) -> tensor<16x2048xf32>
    %10 = "stablehlo.gather"(%table, %narrow) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 128>}> : (tensor<1024x512xf32>, tensor<512x1xi32>) -> tensor<512x128xf32>
    %11 = "stablehlo.all_to_all"(%10) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<512x128xf32>) -> tensor<128x512xf32>
    %12 = "stablehlo.gather"(%table, %wide) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 512>}> : (tensor<1024x512xf32>, tensor<64x8x1xi32>) -> tensor<64x8x512xf32>
    %13 = "stablehlo.all_to_all"(%12) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<64x8x512xf32>) -> tensor<16x32x512xf32>
    sdy.return %2, %4, %6, %9, %11, %13 : tensor<128x2048xbf16>, tensor<128x2048xf32>, tensor<2048x128xf32>, tensor<16x2048xf32>, tensor<128x512xf32>, tensor<16x32x512xf32>
  } : (tensor<1024x512xbf16>, tensor<1024x512xf32>, tensor<512x1xi32>, tensor<512x1xi64>, tensor<64x8x1xi32>) -> (tensor<512x2048xbf16>, tensor<512x2048xf32>, tensor<8192x128xf32>, tensor<64x2048xf32>, tensor<512x512xf32>, tensor<64x32x512xf32>)
  return %0#0, %0#1, %0#2, %0#3, %0#4, %0#5 : tensor<512x2048xbf16>, tensor<512x2048xf32>, tensor<8192x128xf32>, tensor<64x2048xf32>, tensor<512x512xf32>, tensor<64x32x512xf32>
}
