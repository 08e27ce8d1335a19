// RUN: %reshard-opt %s --policy=always | FileCheck %s

// An all_to_all: factors move at once, from digits that they own to digits that are local.

sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @cube = <["a"=2, "b"=2, "c"=2]>

// CHECK-LABEL: func.func public @one_axis(
func.func public @one_axis(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<2x8xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<2x8xf32>) -> tensor<2x4x2xf32>
  // CHECK-NEXT: %2 = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<2x4x2xf32>) -> tensor<4x2x2xf32>
  // CHECK-NEXT: %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x2x2xf32>) -> tensor<4x2x2xf32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<4x2x2xf32>) -> tensor<8x2xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<8x2xf32>
  // CHECK-NEXT: } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: return %0 : tensor<8x8xf32>
  return %arg0 : tensor<8x8xf32>
}

// Two axes from two dimensions to a third, in one collective of all devices. 448 elements arrive at each, the least possible.
// CHECK-LABEL: func.func public @issue_21562(
func.func public @issue_21562(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"y"}, {}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x", "y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x16x4xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<8x16x4xf32>) -> tensor<8x8x8xf32>
  // CHECK-NEXT: %2 = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<8x8x8xf32>) -> tensor<8x8x8xf32>
  // CHECK-NEXT: %3 = stablehlo.reshape %2 : (tensor<8x8x8xf32>) -> tensor<8x8x2x4xf32>
  // CHECK-NEXT: %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 1, 2, 3, 4, 5, 6, 7\]\]}}> : tensor<1x8xi64>, split_count = 8 : i64, split_dimension = 0 : i64}> : (tensor<8x8x2x4xf32>) -> tensor<8x8x2x4xf32>
  // CHECK-NEXT: %5 = stablehlo.reshape %4 : (tensor<8x8x2x4xf32>) -> tensor<4x32x4xf32>
  // CHECK-NEXT: %6 = stablehlo.transpose %5, dims = [1, 0, 2] : (tensor<4x32x4xf32>) -> tensor<32x4x4xf32>
  // CHECK-NEXT: %7 = stablehlo.reshape %6 : (tensor<32x4x4xf32>) -> tensor<16x2x16xf32>
  // CHECK-NEXT: sdy.return %7 : tensor<16x2x16xf32>
  // CHECK-NEXT: } : (tensor<16x16x16xf32>) -> tensor<16x16x16xf32>
  // CHECK-NEXT: return %0 : tensor<16x16x16xf32>
  return %arg0 : tensor<16x16x16xf32>
}

// "b" and "c" take the digit behind the leading one, which is local to all; then "a" leaves the leading one. No permute.
// CHECK-LABEL: func.func public @digit_in_the_middle(
func.func public @digit_in_the_middle(%arg0: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@cube, [{}, {"a"}]>})
    -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@cube, [{"a", "b", "c"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@cube, [{}, {"a"}]>] out_shardings=[<@cube, [{"a", "b", "c"}, {}]>] manual_axes={"a", "b", "c"} (%arg1: tensor<16x2xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<16x2xf32>) -> tensor<2x2x2x2x2xf32>
  // CHECK-NEXT: %c = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %2 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %3 = stablehlo.divide %2, %c_0 : tensor<ui32>
  // CHECK-NEXT: %c_1 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %4 = stablehlo.remainder %3, %c_1 : tensor<ui32>
  // CHECK-NEXT: %5 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c_2 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %6 = stablehlo.remainder %5, %c_2 : tensor<ui32>
  // CHECK-NEXT: %c_3 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %c_4 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %7 = stablehlo.dynamic_slice %1, %c, %4, %6, %c_3, %c_4, sizes = [2, 1, 1, 2, 2] : (tensor<2x2x2x2x2xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<2x1x1x2x2xf32>
  // CHECK-NEXT: %8 = stablehlo.reshape %7 : (tensor<2x1x1x2x2xf32>) -> tensor<2x2x2xf32>
  // CHECK-NEXT: %9 = "stablehlo.all_to_all"(%8) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 4\], \[1, 5\], \[2, 6\], \[3, 7\]\]}}> : tensor<4x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x2x2xf32>) -> tensor<2x2x2xf32>
  // CHECK-NEXT: %10 = stablehlo.transpose %9, dims = [1, 0, 2] : (tensor<2x2x2xf32>) -> tensor<2x2x2xf32>
  // CHECK-NEXT: %11 = stablehlo.reshape %10 : (tensor<2x2x2xf32>) -> tensor<2x4xf32>
  // CHECK-NEXT: sdy.return %11 : tensor<2x4xf32>
  // CHECK-NEXT: } : (tensor<16x4xf32>) -> tensor<16x4xf32>
  // CHECK-NEXT: return %0 : tensor<16x4xf32>
  return %arg0 : tensor<16x4xf32>
}

// The minor axis of a dimension goes to another dimension, the major one stays.
// CHECK-LABEL: func.func public @minor_axis(
func.func public @minor_axis(%arg0: tensor<8x8xi16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
    -> (tensor<8x8xi16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%arg1: tensor<1x8xi16>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<1x8xi16>) -> tensor<2x4xi16>
  // CHECK-NEXT: %2 = stablehlo.optimization_barrier %1 : tensor<2x4xi16>
  // CHECK-NEXT: %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 1\], \[2, 3\], \[4, 5\], \[6, 7\]\]}}> : tensor<4x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x4xi16>) -> tensor<2x4xi16>
  // CHECK-NEXT: sdy.return %3 : tensor<2x4xi16>
  // CHECK-NEXT: } : (tensor<8x8xi16>) -> tensor<8x8xi16>
  // CHECK-NEXT: return %0 : tensor<8x8xi16>
  return %arg0 : tensor<8x8xi16>
}
