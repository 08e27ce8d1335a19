// RUN: %reshard-opt %s --policy=always | FileCheck %s

// A permute: the blocks stay as they are, devices change hands. Pairs of a device with itself move nothing.

sdy.mesh @square = <["x"=2, "y"=2]>
sdy.mesh @three = <["x"=3, "y"=2]>

// CHECK-LABEL: func.func public @another_axis_owns_the_digit(
func.func public @another_axis_owns_the_digit(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"y"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@square, [{"x"}, {}]>] out_shardings=[<@square, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func public @other_order_of_two_axes(
func.func public @other_order_of_two_axes(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"x", "y"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"y", "x"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@square, [{"x", "y"}, {}]>] out_shardings=[<@square, [{"y", "x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<2x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// Dimensions exchange their axes, which have the same size.
// CHECK-LABEL: func.func public @two_dimensions_exchange_axes(
func.func public @two_dimensions_exchange_axes(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"x"}, {"y"}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@square, [{"y"}, {"x"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@square, [{"x"}, {"y"}]>] out_shardings=[<@square, [{"y"}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x2xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x2xf32>) -> tensor<4x2xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x2xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// Six blocks in the radices 3, 2 become six blocks in the radices 2, 3.
// CHECK-LABEL: func.func public @other_radices(
func.func public @other_radices(%arg0: tensor<6x4xi32> {sdy.sharding = #sdy.sharding<@three, [{"x", "y"}, {}]>})
    -> (tensor<6x4xi32> {sdy.sharding = #sdy.sharding<@three, [{"y", "x"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@three, [{"x", "y"}, {}]>] out_shardings=[<@three, [{"y", "x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<1x4xi32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 4\], \[3, 1\], \[4, 3\], \[5, 5\]\]}}> : tensor<6x2xi64>}> : (tensor<1x4xi32>) -> tensor<1x4xi32>
  // CHECK-NEXT: sdy.return %1 : tensor<1x4xi32>
  // CHECK-NEXT: } : (tensor<6x4xi32>) -> tensor<6x4xi32>
  // CHECK-NEXT: return %0 : tensor<6x4xi32>
  return %arg0 : tensor<6x4xi32>
}
