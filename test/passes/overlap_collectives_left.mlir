// RUN: %reshard-opt %s --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 policy=always})' -o %t 2>&1 | FileCheck %s --check-prefix=SAID
// RUN: FileCheck %s --input-file=%t
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=cpu:4})' | FileCheck %s --check-prefix=CPU
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives)' | FileCheck %s --check-prefix=CPU
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 policy=always leave=0})' | FileCheck %s --check-prefix=CPU
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(overlap-collectives{topology=v5e:2x2 policy=always keep-sums=true})' -o %t 2>&1 | FileCheck %s --check-prefix=SUMS

// A product that is used as a whole is computed as a whole. Beside collectives of CPU devices in one process nothing runs; without
// a network nothing is known.

sdy.mesh @mesh = <["x"=4]>

// SAID: overlap_collectives_left.mlir:{{[0-9]+:[0-9]+}}: remark: reduce_scatter next to a product stays as it is: the product is used as a whole, too
// CHECK-LABEL: func.func @a_product_that_is_returned_too(
func.func @a_product_that_is_returned_too(%arg0: tensor<64x64xf32>, %arg1: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<256x64xf32>) {
  // CHECK: stablehlo.reduce_scatter
  %0:2 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<64x16xf32>, %arg3: tensor<16x64xf32>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<64x64xf32>) -> tensor<16x64xf32>
    sdy.return %2, %1 : tensor<16x64xf32>, tensor<64x64xf32>
  } : (tensor<64x64xf32>, tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<256x64xf32>)
  return %0#0, %0#1 : tensor<64x64xf32>, tensor<256x64xf32>
}

// SAID: remark: reduce_scatter next to a product stays as it is: its reduction is no sum
// CHECK-LABEL: func.func @a_maximum(
func.func @a_maximum(%arg0: tensor<64x64xf32>, %arg1: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // CHECK: stablehlo.reduce_scatter
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<64x16xf32>, %arg3: tensor<16x64xf32>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<64x64xf32>) -> tensor<16x64xf32>
    sdy.return %2 : tensor<16x64xf32>
  } : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// SUMS: remark: reduce_scatter next to a product stays as it is: in another order its sum may round otherwise
// CPU-LABEL: func.func @a_sum(
// CHECK-LABEL: func.func @a_sum(
func.func @a_sum(%arg0: tensor<64x64xf32>, %arg1: tensor<64x64xf32>) -> tensor<64x64xf32> {
  // CHECK-NOT: stablehlo.reduce_scatter
  // CHECK: stablehlo.collective_permute
  // CPU: stablehlo.reduce_scatter
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg2: tensor<64x16xf32>, %arg3: tensor<16x64xf32>) {
    %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
    %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<64x64xf32>) -> tensor<16x64xf32>
    sdy.return %2 : tensor<16x64xf32>
  } : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// SAID: remark: all_gather next to a product stays as it is: the size of the product next to it is unknown
// CHECK-LABEL: func.func @a_product_of_unknown_size(
func.func @a_product_of_unknown_size(%arg0: tensor<64x64xf32>, %arg1: tensor<64x?xf32>) -> tensor<64x?xf32> {
  // CHECK: stablehlo.all_gather
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x"} (%arg2: tensor<16x64xf32>, %arg3: tensor<64x?xf32>) {
    %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<16x64xf32>) -> tensor<64x64xf32>
    %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x?xf32>) -> tensor<64x?xf32>
    sdy.return %2 : tensor<64x?xf32>
  } : (tensor<64x64xf32>, tensor<64x?xf32>) -> tensor<64x?xf32>
  return %0 : tensor<64x?xf32>
}

// SAID: remark: all_reduce next to a product stays as it is: its members divide no dimension of its tile
// CHECK-LABEL: func.func @sums_that_members_do_not_divide(
func.func @sums_that_members_do_not_divide(%arg0: tensor<3x64xf32>, %arg1: tensor<64x5xf32>, %arg2: tensor<64xf32>) -> (tensor<3x5xf32>, tensor<f32>) {
  // CHECK-COUNT-2: stablehlo.all_reduce
  %0:2 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"x"}, {}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}, {}]>, <@mesh, []>] manual_axes={"x"} (%arg3: tensor<3x16xf32>, %arg4: tensor<16x5xf32>, %arg5: tensor<16xf32>) {
    %1 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [1] x [0] : (tensor<3x16xf32>, tensor<16x5xf32>) -> tensor<3x5xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %5 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<3x5xf32>) -> tensor<3x5xf32>
    %3 = stablehlo.dot_general %arg5, %arg5, contracting_dims = [0] x [0] : (tensor<16xf32>, tensor<16xf32>) -> tensor<f32>
    %t = stablehlo.transpose %3, dims = [] : (tensor<f32>) -> tensor<f32>
    %4 = "stablehlo.all_reduce"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 6, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %5 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    sdy.return %2, %4 : tensor<3x5xf32>, tensor<f32>
  } : (tensor<3x64xf32>, tensor<64x5xf32>, tensor<64xf32>) -> (tensor<3x5xf32>, tensor<f32>)
  return %0#0, %0#1 : tensor<3x5xf32>, tensor<f32>
}
