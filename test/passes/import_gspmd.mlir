// RUN: %reshard-opt %s --import-gspmd --split-input-file --no-remarks | FileCheck %s
// RUN: %reshard-opt %s --import-gspmd --split-input-file --no-remarks -o %t
// RUN: %reshard-opt %t --import-gspmd --split-input-file | diff %t -

// Strings become meshes, shardings, constraints and manual computations; what is imported is left alone.

// CHECK:      sdy.mesh @mesh = <["axis_0"=2, "axis_1"=4]>
// CHECK-NEXT: func.func public @arguments_and_results(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}, {"axis_0"}]>},
// CHECK-SAME:   %arg1: tensor<8x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<8x8xf32>, %arg3: tensor<8x8xf32>)
// CHECK-SAME:   -> (tensor<8x8xf32> {jax.result_info = "r", sdy.sharding = #sdy.sharding<@mesh, [{}, {"axis_1"}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
func.func public @arguments_and_results(
    %arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"},
    %arg1: tensor<8x8xf32> {jax.buffer_donor = true, mhlo.sharding = "{replicated}"},
    %arg2: tensor<8x8xf32> {mhlo.sharding = "{unknown}"}, %arg3: tensor<8x8xf32> {mhlo.sharding = ""})
    -> (tensor<8x8xf32> {jax.result_info = "r", mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
        tensor<f32> {mhlo.sharding = "{replicated}"}) {
  %0 = stablehlo.constant dense<0.0> : tensor<f32>
  return %arg0, %0 : tensor<8x8xf32>, tensor<f32>
}

// CHECK-LABEL: @custom_calls_are_constraints
func.func @custom_calls_are_constraints(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK-NEXT: %0 = sdy.sharding_constraint %arg0 <@mesh, [{"axis_0"}, {}]>
  %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %1 = sdy.sharding_constraint %0 <@mesh, [{"axis_0"}, {?}]>
  %1 = stablehlo.custom_call @Sharding(%0) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %2 = sdy.sharding_constraint %1 <@mesh, [{}, {}]>
  %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{replicated}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: return %2
  %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{unknown}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// An op's sharding, as dumps of XLA have them, is one of its result.

// CHECK-LABEL: @shardings_of_ops
func.func @shardings_of_ops(%arg0: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  // CHECK:      %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  // CHECK-NEXT: %1 = sdy.sharding_constraint %0 <@mesh, [{"axis_0", "axis_1"}, {}]>
  %0 = stablehlo.tanh %arg0 {mhlo.sharding = "{devices=[8,1]<=[8]}"} : tensor<8x8xf32>
  %1 = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<f32>
  // CHECK:      %2:2 = stablehlo.reduce(%1 init: %cst), (%1 init: %cst)
  %2:2 = stablehlo.reduce(%0 init: %1), (%0 init: %1) across dimensions = [0]
      {mhlo.sharding = "{{devices=[2,4]<=[8] last_tile_dim_replicate}, {replicated}}"} :
      (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>)
      reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<f32>, %d: tensor<f32>) {
    stablehlo.return %a, %c : tensor<f32>, tensor<f32>
  }
  // CHECK-DAG: sdy.sharding_constraint %2#0 <@mesh, [{"axis_0"}]>
  // CHECK-DAG: sdy.sharding_constraint %2#1 <@mesh, [{}]>
  return %2#0, %2#1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// Manual along all axes; the constraint before the region is what its in_sharding says, a constant is copied into it.

// CHECK-LABEL: @tiles
func.func @tiles(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> (tensor<8x8xf32>, tensor<f32>) {
  %cst = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK:      sdy.manual_computation(%arg0, %arg1)
  // CHECK-SAME:   in_shardings=[<@mesh, [{"axis_0"}, {"axis_1"}]>, <@mesh, [{"axis_0"}, {"axis_1"}]>]
  // CHECK-SAME:   out_shardings=[<@mesh, [{}, {"axis_0", "axis_1"}]>] manual_axes={"axis_0", "axis_1"} (%arg2: tensor<2x4xf32>, %arg3: tensor<2x4xf32>) {
  // CHECK:        stablehlo.constant dense<2.0
  // CHECK:        stablehlo.broadcast_in_dim
  // CHECK:        call @body
  // CHECK:        sdy.return
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x8xf32>) -> tensor<2x4xf32>
  %2 = stablehlo.custom_call @SPMDFullToShardShape(%arg1) {mhlo.sharding = "{manual}"} : (tensor<8x8xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<2x4xf32>
  %5 = func.call @body(%1, %4) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<8x1xf32>
  %6 = stablehlo.custom_call @Sharding(%5) {mhlo.sharding = "{manual}"} : (tensor<8x1xf32>) -> tensor<8x1xf32>
  %7 = stablehlo.custom_call @SPMDShardToFullShape(%6) {mhlo.sharding = "{devices=[1,8]<=[8]}"} : (tensor<8x1xf32>) -> tensor<8x8xf32>
  return %7, %cst : tensor<8x8xf32>, tensor<f32>
}
// CHECK: func.func private @body(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> tensor<8x1xf32>
func.func private @body(%arg0: tensor<2x4xf32> {mhlo.sharding = "{manual}"}, %arg1: tensor<2x4xf32>) -> (tensor<8x1xf32> {mhlo.sharding = "{manual}"}) {
  %0 = stablehlo.add %arg0, %arg1 {mhlo.sharding = "{manual}"} : tensor<2x4xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x4xf32>) -> tensor<8x1xf32>
  return %1 : tensor<8x1xf32>
}

// -----

// Manual along one axis, as `shard_map(..., axis_names={"x"})`; inside, constraints speak of the other axes.

// CHECK-LABEL: @tiles_along_one_axis
func.func @tiles_along_one_axis(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK:      sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"axis_0", ?}, {?}]>]
  // CHECK-SAME:   out_shardings=[<@mesh, [{"axis_0", ?}, {?}]>] manual_axes={"axis_0"} (%arg1: tensor<4x8xf32>) {
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT:   sdy.sharding_constraint %arg1 <@mesh, [{}, {"axis_1"}]>
  %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT:   sdy.return
  %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// -----

// A list of devices that no mesh counts through keeps its order; one named mesh serves unnamed shardings too.

// CHECK: sdy.mesh @mesh_0 = <["axis_0"=2, "axis_1"=3], device_ids=[0, 3, 1, 4, 2, 5]>
// CHECK: func.func @mesh(%arg0: tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"axis_0"}, {"axis_1"}]>})
func.func @mesh(%arg0: tensor<6x6xf32> {mhlo.sharding = "{devices=[2,3]<=[2,3]T(1,0)}"}) {
  return
}

// -----

// CHECK: sdy.mesh @mesh = <["x"=2, "y"=4]>
// CHECK: func.func @named(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
func.func @named(
    %arg0: tensor<8x8xf32> {mhlo.sharding = "{mesh['x'=2,'y'=4], [{'x'}, {'y':(1)2, ?}]}"},
    %arg1: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) {
  return
}

// -----

// What runs on one device, or orders such ops, keeps its placement; infeeds keep their string, as XLA does.

// CHECK:     sdy.mesh @mesh = <["axis_0"=2]>
// CHECK:     sdy.mesh @maximal_mesh_1 = <[], device_ids=[1]>
// CHECK-LABEL: @on_one_device
func.func @on_one_device(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, %arg1: !stablehlo.token) -> tensor<8xf32> {
  // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg0) {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_1, []>]>
  %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg0) {mhlo.sharding = "{maximal device=1}"} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: stablehlo.after_all %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_1, []>]>}
  %1 = stablehlo.after_all %arg1 {mhlo.sharding = "{maximal device=1}"} : !stablehlo.token
  // CHECK-NEXT: "stablehlo.infeed"(%arg1) {{.*}}mhlo.sharding = "{replicated}"
  %2:2 = "stablehlo.infeed"(%arg1) {infeed_config = "", layout = [[0]], mhlo.sharding = "{replicated}"} : (!stablehlo.token) -> (tensor<8xf32>, !stablehlo.token)
  return %0 : tensor<8xf32>
}

// -----

// Nothing is split: nothing to import.

// CHECK-LABEL: @replicated
// CHECK-SAME:  mhlo.sharding = "{replicated}"
func.func @replicated(%arg0: tensor<8xf32> {mhlo.sharding = "{replicated}"}) {
  return
}

// -----

// Nothing is split, but the program is for several devices: what is replicated stays so.

// CHECK: sdy.mesh @mesh = <["axis_0"=8]>
module attributes {mhlo.num_partitions = 8 : i32} {
  // CHECK: func.func @replicated_on_eight(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
  func.func @replicated_on_eight(%arg0: tensor<8xf32> {mhlo.sharding = "{replicated}"}) {
    return
  }
}

// -----

// Manual on the second of two meshes: all of that mesh's axes.

// CHECK: sdy.mesh @mesh_0 = <["axis_0"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
// CHECK-LABEL: @tiles_on_the_second_mesh
func.func @tiles_on_the_second_mesh(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[8]7,6,5,4,3,2,1,0}"}, %arg1: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<8xf32> {
  // CHECK-NEXT: sdy.manual_computation(%arg0) in_shardings=[<@mesh_0, [{"axis_0"}]>] out_shardings=[<@mesh_0, [{"axis_0"}]>] manual_axes={"axis_0"} (%arg2: tensor<1xf32>) {
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<1xf32>
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[8]7,6,5,4,3,2,1,0}"} : (tensor<1xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
