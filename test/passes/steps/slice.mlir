// RUN: %reshard-opt %s --policy=always | FileCheck %s

// A slice: factors that own nothing take local digits. Each device keeps the part that its coordinates name; nothing moves.

sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @shuffled = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>

// The coordinate along the major axis is the partition id over the size of what is behind it.
// CHECK-LABEL: func.func public @major_axis(
func.func public @major_axis(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x4xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<8x4xf32>) -> tensor<4x2x4xf32>
  // CHECK-NEXT: %2 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %3 = stablehlo.divide %2, %c : tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %c_1 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %4 = stablehlo.dynamic_slice %1, %3, %c_0, %c_1, sizes = [1, 2, 4] : (tensor<4x2x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2x4xf32>
  // CHECK-NEXT: %5 = stablehlo.reshape %4 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
  // CHECK-NEXT: sdy.return %5 : tensor<2x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// The coordinate along the minor axis is the partition id modulo its size. The digit behind an owned one is taken.
// CHECK-LABEL: func.func public @minor_axis_behind_an_owned_digit(
func.func public @minor_axis_behind_an_owned_digit(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x", "y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x4xf32>) {
  // CHECK-NEXT: %1 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %2 = stablehlo.remainder %1, %c : tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %3 = stablehlo.dynamic_slice %arg1, %2, %c_0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4xf32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<1x4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %5 = stablehlo.reshape %4 : (tensor<4xf32>) -> tensor<1x4xf32>
  // CHECK-NEXT: sdy.return %5 : tensor<1x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// Two axes take digits of two dimensions in one slice.
// CHECK-LABEL: func.func public @two_axes_at_once(
func.func public @two_axes_at_once(%arg0: tensor<8x4xi8> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x4xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"y"}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<8x4xi8>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<8x4xi8>) -> tensor<2x4x4xi8>
  // CHECK-NEXT: %2 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %3 = stablehlo.remainder %2, %c : tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %4 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c_1 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %5 = stablehlo.divide %4, %c_1 : tensor<ui32>
  // CHECK-NEXT: %6 = stablehlo.dynamic_slice %1, %3, %c_0, %5, sizes = [1, 4, 1] : (tensor<2x4x4xi8>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x1xi8>
  // CHECK-NEXT: %7 = stablehlo.reshape %6 : (tensor<1x4x1xi8>) -> tensor<4xi8>
  // CHECK-NEXT: %8 = stablehlo.reshape %7 : (tensor<4xi8>) -> tensor<4x1xi8>
  // CHECK-NEXT: sdy.return %8 : tensor<4x1xi8>
  // CHECK-NEXT: } : (tensor<8x4xi8>) -> tensor<8x4xi8>
  // CHECK-NEXT: return %0 : tensor<8x4xi8>
  return %arg0 : tensor<8x4xi8>
}

// A sub-axis has a coordinate of its own.
// CHECK-LABEL: func.func public @sub_axis(
func.func public @sub_axis(%arg0: tensor<8x4xi1> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x4xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(2)2}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x":(2)2}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x4xi1>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<8x4xi1>) -> tensor<2x4x4xi1>
  // CHECK-NEXT: %2 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %3 = stablehlo.divide %2, %c : tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %4 = stablehlo.remainder %3, %c_0 : tensor<ui32>
  // CHECK-NEXT: %c_1 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %c_2 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %5 = stablehlo.dynamic_slice %1, %4, %c_1, %c_2, sizes = [1, 4, 4] : (tensor<2x4x4xi1>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xi1>
  // CHECK-NEXT: %6 = stablehlo.reshape %5 : (tensor<1x4x4xi1>) -> tensor<4x4xi1>
  // CHECK-NEXT: sdy.return %6 : tensor<4x4xi1>
  // CHECK-NEXT: } : (tensor<8x4xi1>) -> tensor<8x4xi1>
  // CHECK-NEXT: return %0 : tensor<8x4xi1>
  return %arg0 : tensor<8x4xi1>
}

// In a mesh with a device order the position is looked up.
// CHECK-LABEL: func.func public @device_order(
func.func public @device_order(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@shuffled, [{}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@shuffled, [{"y"}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@shuffled, [{}, {}]>] out_shardings=[<@shuffled, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x4xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  // CHECK-NEXT: %2 = stablehlo.partition_id : tensor<ui32>
  // CHECK-NEXT: %c = stablehlo.constant dense<[7, 6, 5, 4, 3, 2, 1, 0]> : tensor<8xui32>
  // CHECK-NEXT: %3 = stablehlo.dynamic_slice %c, %2, sizes = [1] : (tensor<8xui32>, tensor<ui32>) -> tensor<1xui32>
  // CHECK-NEXT: %4 = stablehlo.reshape %3 : (tensor<1xui32>) -> tensor<ui32>
  // CHECK-NEXT: %c_0 = stablehlo.constant dense<2> : tensor<ui32>
  // CHECK-NEXT: %5 = stablehlo.remainder %4, %c_0 : tensor<ui32>
  // CHECK-NEXT: %c_1 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %c_2 = stablehlo.constant dense<0> : tensor<ui32>
  // CHECK-NEXT: %6 = stablehlo.dynamic_slice %1, %5, %c_1, %c_2, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
  // CHECK-NEXT: %7 = stablehlo.reshape %6 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %7 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}
