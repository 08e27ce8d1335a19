// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s

// Lookups and writes along a split dimension: each device works on the places that it has.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @lookup_in_split_rows(
// CHECK-NOT: all_gather
// CHECK: stablehlo.clamp
// CHECK: "stablehlo.gather"({{.*}} slice_sizes = array<i64: 1, 16>{{.*}} : (tensor<256x16xf32>, tensor<4x1xi32>) -> tensor<4x16xf32>
// CHECK: dense<-0.000000e+00>
// CHECK: stablehlo.select
// CHECK: "stablehlo.all_reduce"
func.func @lookup_in_split_rows(%table: tensor<1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %rows: tensor<4x1xi32>)
    -> (tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = "stablehlo.gather"(%table, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 16>}>
    : (tensor<1024x16xf32>, tensor<4x1xi32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @sum_into_split_rows(
// CHECK: stablehlo.subtract
// CHECK: "stablehlo.scatter"({{.*}}
// CHECK: (tensor<256x16xf32>, tensor<4x1xi32>, tensor<4x16xf32>) -> tensor<256x16xf32>
// CHECK-NOT: all_gather
func.func @sum_into_split_rows(%table: tensor<1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %rows: tensor<4x1xi32>,
    %updates: tensor<4x16xf32>) -> (tensor<1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = "stablehlo.scatter"(%table, %rows, %updates) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<1024x16xf32>, tensor<4x1xi32>, tensor<4x16xf32>) -> tensor<1024x16xf32>
  return %0 : tensor<1024x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Each device sums its own updates into zeros; the parts are added up.

// CHECK-LABEL: func.func @sum_of_split_updates(
// CHECK: "stablehlo.scatter"({{.*}}
// CHECK: (tensor<8x16xf32>, tensor<512x1xi32>, tensor<512x16xf32>) -> tensor<8x16xf32>
// CHECK: "stablehlo.all_reduce"
func.func @sum_of_split_updates(%rows: tensor<1024x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %updates: tensor<1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%zeros, %rows, %updates) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<1024x1xi32>, tensor<1024x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// A new entry of a cache whose places are split: one device writes it, the others write what they have.

// CHECK-LABEL: func.func @entry_of_a_split_cache(
// CHECK-NOT: all_gather
// CHECK: stablehlo.dynamic_slice {{.*}} sizes = [4, 1, 16] : (tensor<4x256x16xf32>
// CHECK: stablehlo.select
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<4x256x16xf32>, tensor<4x1x16xf32>
// CHECK-NOT: all_gather
func.func @entry_of_a_split_cache(%cache: tensor<8x1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>},
    %entry: tensor<8x1x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}, %place: tensor<i32>)
    -> (tensor<8x1024x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %cache, %entry, %zero, %place, %zero
    : (tensor<8x1024x16xf32>, tensor<8x1x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x1024x16xf32>
  return %0 : tensor<8x1024x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// XLA would add the starts of both slices as they are; the first one has to be in range.

// CHECK-LABEL: func.func @own_part_of_a_dynamic_slice(
// CHECK: %[[START:.*]] = stablehlo.clamp
// CHECK: stablehlo.dynamic_slice %{{.*}}, %[[START]],
// CHECK: stablehlo.partition_id
// CHECK: stablehlo.dynamic_slice
func.func @own_part_of_a_dynamic_slice(%a: tensor<8x16xf32>, %start: tensor<i32>)
    -> (tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, %start, %zero, sizes = [4, 16] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<4x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Nothing is written, so no device has a part of it.

// CHECK-LABEL: func.func @update_without_elements(
// CHECK: stablehlo.dynamic_update_slice
func.func @update_without_elements(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %u: tensor<0x16xf32>, %i: tensor<i32>)
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = stablehlo.dynamic_update_slice %a, %u, %i, %i : (tensor<8x16xf32>, tensor<0x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// The windows have size 1 along the dimension that the indices point into: they lose it.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @sum_of_columns_with_windows_of_one_element(
// CHECK-NOT: all_gather
// CHECK: "stablehlo.scatter"({{.*}}update_window_dims = [0], inserted_window_dims = [1]
// CHECK: (tensor<4x64xf32>, tensor<4x1xi32>, tensor<4x4xf32>) -> tensor<4x64xf32>
// CHECK-NOT: all_gather
func.func @sum_of_columns_with_windows_of_one_element(%table: tensor<8x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %columns: tensor<4x1xi32>, %updates: tensor<8x4x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
    -> (tensor<8x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %0 = "stablehlo.scatter"(%table, %columns, %updates) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 2], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x256xf32>, tensor<4x1xi32>, tensor<8x4x1xf32>) -> tensor<8x256xf32>
  return %0 : tensor<8x256xf32>
}

// -----

sdy.mesh @mesh = <["x"=64]>

// The rows that are looked up are wanted where the indices are, and columns of the table are on all devices: these look
// up their columns of all rows, which is less than the table.
// CHECK-LABEL: func.func @columns_of_a_table_stay_split(
// CHECK: "stablehlo.all_gather"({{.*}}) -> tensor<128x64x1xi32>
// CHECK: "stablehlo.gather"({{.*}}) -> tensor<128x64x16xbf16>
// CHECK: "stablehlo.all_to_all"
// CHECK-NOT: -> tensor<4096x1024xbf16>
// CHECK: sdy.return
func.func @columns_of_a_table_stay_split(
    %table: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %tokens: tensor<128x64x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>},
    %rows: tensor<128x64x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
    -> (tensor<128x64x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
  %0 = "stablehlo.gather"(%table, %tokens) <{dimension_numbers = #stablehlo.gather<offset_dims = [2],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1024>}>
      : (tensor<4096x1024xbf16>, tensor<128x64x1xi32>) -> tensor<128x64x1024xbf16>
  %1 = stablehlo.add %0, %rows : tensor<128x64x1024xbf16>
  return %1 : tensor<128x64x1024xbf16>
}
