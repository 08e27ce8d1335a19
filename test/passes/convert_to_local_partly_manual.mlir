// RUN: %reshard-opt %s --convert-to-local | FileCheck %s

// The body of a manual computation over some axes is split along the others; its collective runs on a part of the tile,
// and a change of layout is among the devices that share the tile.

sdy.mesh @mesh = <["data"=4, "model"=2]>

// CHECK-LABEL: func.func @summed(
// CHECK-NEXT: sdy.manual_computation(%arg0, %arg1)
// CHECK-SAME: manual_axes={"data", "model"} (%[[X:.*]]: tensor<4x16xf32>, %[[W:.*]]: tensor<16x16xf32>)
// CHECK-NEXT: %[[PRODUCT:.*]] = stablehlo.dot_general %[[X]], %[[W]]
// CHECK-SAME: -> tensor<4x16xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[PRODUCT]])
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 2, 4, 6], [1, 3, 5, 7]]>
// CHECK: (tensor<4x16xf32>) -> tensor<4x16xf32>
// CHECK-NEXT: sdy.return %[[SUM]]
func.func @summed(
    %x: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) -> tensor<4x32xf32> {
  %0 = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"data", ?}, {?}]>, <@mesh, [{?}, {?}]>]
      out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"data"} (%a: tensor<4x16xf32>, %b: tensor<16x32xf32>) {
    %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x32xf32>) -> tensor<4x32xf32>
    sdy.return %2 : tensor<4x32xf32>
  } : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
  return %0 : tensor<4x32xf32>
}

// A gather along the split dimension takes it whole.
// CHECK-LABEL: func.func @gathered(
// CHECK: manual_axes={"data", "model"} (%[[X:arg[0-9]]]: tensor<4x16xf32>)
// CHECK-NEXT: %[[PART:.*]] = stablehlo.reshape %[[X]] : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
// CHECK: "stablehlo.all_gather"
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 1], [2, 3], [4, 5], [6, 7]]>
// CHECK: "stablehlo.all_gather"
// CHECK-SAME: all_gather_dim = 1
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 2, 4, 6], [1, 3, 5, 7]]>
// CHECK-SAME: (tensor<4x32xf32>) -> tensor<4x128xf32>
func.func @gathered(%x: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) -> tensor<4x128xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}, {"model"}]>] out_shardings=[<@mesh, [{}, {}]>]
      manual_axes={"data"} (%a: tensor<4x32xf32>) {
    %1 = "stablehlo.all_gather"(%a) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<4x32xf32>) -> tensor<4x128xf32>
    sdy.return %1 : tensor<4x128xf32>
  } : (tensor<16x32xf32>) -> tensor<4x128xf32>
  return %0 : tensor<4x128xf32>
}
