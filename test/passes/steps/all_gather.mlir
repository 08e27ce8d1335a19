// RUN: %reshard-opt %s --policy=always | FileCheck %s

// An all_gather: owned digits become local. The pieces arrive in front of the tile, a relayout puts them where they belong.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func public @leading_dimension(
func.func public @leading_dimension(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<8x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// The groups are those of the axis: devices that differ in it alone.
// CHECK-LABEL: func.func public @other_dimension(
func.func public @other_dimension(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {"y"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x2xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 1\], \[2, 3\], \[4, 5\], \[6, 7\]\]}}> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<8x2xf32>) -> tensor<16x2xf32>
  // CHECK-NEXT: %2 = stablehlo.reshape %1 : (tensor<16x2xf32>) -> tensor<2x8x2xf32>
  // CHECK-NEXT: %3 = stablehlo.transpose %2, dims = [1, 0, 2] : (tensor<2x8x2xf32>) -> tensor<8x2x2xf32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<8x2x2xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: sdy.return %4 : tensor<8x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// Two axes of two dimensions in one collective.
// CHECK-LABEL: func.func public @two_axes_at_once(
func.func public @two_axes_at_once(%arg0: tensor<8x4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
    -> (tensor<8x4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x2xi32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 1\], \[2, 3\], \[4, 5\], \[6, 7\]\]}}> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<2x2xi32>) -> tensor<4x2xi32>
  // CHECK-NEXT: %2 = stablehlo.reshape %1 : (tensor<4x2xi32>) -> tensor<2x2x2xi32>
  // CHECK-NEXT: %3 = stablehlo.transpose %2, dims = [1, 0, 2] : (tensor<2x2x2xi32>) -> tensor<2x2x2xi32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<2x2x2xi32>) -> tensor<2x4xi32>
  // CHECK-NEXT: %5 = "stablehlo.all_gather"(%4) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<2x4xi32>) -> tensor<8x4xi32>
  // CHECK-NEXT: sdy.return %5 : tensor<8x4xi32>
  // CHECK-NEXT: } : (tensor<8x4xi32>) -> tensor<8x4xi32>
  // CHECK-NEXT: return %0 : tensor<8x4xi32>
  return %arg0 : tensor<8x4xi32>
}

// The minor of two axes on one dimension.
// CHECK-LABEL: func.func public @minor_axis(
func.func public @minor_axis(%arg0: tensor<8x4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
    -> (tensor<8x4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<1x4xbf16>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 1\], \[2, 3\], \[4, 5\], \[6, 7\]\]}}> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<1x4xbf16>) -> tensor<2x4xbf16>
  // CHECK-NEXT: sdy.return %1 : tensor<2x4xbf16>
  // CHECK-NEXT: } : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
  // CHECK-NEXT: return %0 : tensor<8x4xbf16>
  return %arg0 : tensor<8x4xbf16>
}

// The minor half of an axis.
// CHECK-LABEL: func.func public @sub_axis(
func.func public @sub_axis(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x":(1)2}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 2\], \[1, 3\], \[4, 6\], \[5, 7\]\]}}> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}
