// RUN: %reshard-opt %s --policy=always | FileCheck %s

// A relayout: the local digits change their order in memory, before a collective that wants its pieces in front, and after
// one that leaves them there. Where the order is right already there is none.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func public @none_where_pieces_arrive_in_front(
func.func public @none_where_pieces_arrive_in_front(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<2x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<8x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func public @after(
func.func public @after(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<8x1xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<8x1xf32>) -> tensor<32x1xf32>
  // CHECK-NEXT: %2 = stablehlo.reshape %1 : (tensor<32x1xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: sdy.return %3 : tensor<8x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return %arg0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func public @before(
func.func public @before(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
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

// CHECK-LABEL: func.func public @before_and_after(
func.func public @before_and_after(%arg0: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>})
    -> (tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}) {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {"x"}, {}]>] out_shardings=[<@mesh, [{}, {}, {"x"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x2x8xf32>) {
  // CHECK-NEXT: %1 = stablehlo.reshape %arg1 : (tensor<4x2x8xf32>) -> tensor<8x4x2xf32>
  // CHECK-NEXT: %2 = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<8x4x2xf32>) -> tensor<4x8x2xf32>
  // CHECK-NEXT: %3 = stablehlo.reshape %2 : (tensor<4x8x2xf32>) -> tensor<4x4x2x2xf32>
  // CHECK-NEXT: %4 = "stablehlo.all_to_all"(%3) <{channel_handle = #stablehlo.channel_handle<handle = {{[0-9]+}}, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<{{\[\[0, 2, 4, 6\], \[1, 3, 5, 7\]\]}}> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x4x2x2xf32>) -> tensor<4x4x2x2xf32>
  // CHECK-NEXT: %5 = stablehlo.reshape %4 : (tensor<4x4x2x2xf32>) -> tensor<4x4x4xf32>
  // CHECK-NEXT: %6 = stablehlo.transpose %5, dims = [1, 0, 2] : (tensor<4x4x4xf32>) -> tensor<4x4x4xf32>
  // CHECK-NEXT: %7 = stablehlo.reshape %6 : (tensor<4x4x4xf32>) -> tensor<4x8x2xf32>
  // CHECK-NEXT: sdy.return %7 : tensor<4x8x2xf32>
  // CHECK-NEXT: } : (tensor<4x8x8xf32>) -> tensor<4x8x8xf32>
  // CHECK-NEXT: return %0 : tensor<4x8x8xf32>
  return %arg0 : tensor<4x8x8xf32>
}
