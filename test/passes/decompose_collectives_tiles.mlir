// RUN: %reshard-opt %s --pass-pipeline='builtin.module(decompose-collectives{platform=tpu topology=v5e:2x4})' 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{platform=gpu topology=h100:1x8})' | FileCheck %s --check-prefix=AS-IT-CAME
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(decompose-collectives{platform=tpu topology=v5e:2x4 keep-sums=true})' | FileCheck %s --check-prefix=AS-IT-CAME

// Compilers for TPUs sum whole what leaves no device whole tiles of memory. All gradients in one buffer are such, and so
// is a row for each device. In rows of tiles the reduce_scatter stays one. What has whole tiles anyway stays as it is.

// CHECK: tiles.mlir: remark: 1 collective stays as it is: no chain is faster by 10% on v5e:2x4

sdy.mesh @mesh = <["d"=8]>
func.func @buffer_rows_and_tiles(%arg0: tensor<262144xf32>, %arg1: tensor<8x131072xf32>, %arg2: tensor<64x4096xf32>) -> (tensor<262144xf32>, tensor<8x131072xf32>, tensor<64x4096xf32>) {
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<262144xf32>) -> tensor<8x256x128xf32>
  // CHECK: "stablehlo.reduce_scatter"({{.*}}scatter_dimension = 0
  // CHECK: (tensor<8x256x128xf32>) -> tensor<1x256x128xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<1x256x128xf32>) -> tensor<32768xf32>
  // CHECK: (tensor<8x1024x128xf32>) -> tensor<1x1024x128xf32>
  // CHECK: (tensor<64x4096xf32>) -> tensor<8x4096xf32>
  // AS-IT-CAME: (tensor<262144xf32>) -> tensor<32768xf32>
  // AS-IT-CAME: (tensor<8x131072xf32>) -> tensor<1x131072xf32>
  // AS-IT-CAME: (tensor<64x4096xf32>) -> tensor<8x4096xf32>
  %0:3 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{}]>, <@mesh, [{}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"d"}]>, <@mesh, [{"d"}, {}]>, <@mesh, [{"d"}, {}]>] manual_axes={"d"} (%arg3: tensor<262144xf32>, %arg4: tensor<8x131072xf32>, %arg5: tensor<64x4096xf32>) {
    %1 = "stablehlo.reduce_scatter"(%arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<262144xf32>) -> tensor<32768xf32>
    %2 = "stablehlo.reduce_scatter"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<8x131072xf32>) -> tensor<1x131072xf32>
    %3 = "stablehlo.reduce_scatter"(%arg5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<64x4096xf32>) -> tensor<8x4096xf32>
    sdy.return %1, %2, %3 : tensor<32768xf32>, tensor<1x131072xf32>, tensor<8x4096xf32>
  } : (tensor<262144xf32>, tensor<8x131072xf32>, tensor<64x4096xf32>) -> (tensor<262144xf32>, tensor<8x131072xf32>, tensor<64x4096xf32>)
  return %0#0, %0#1, %0#2 : tensor<262144xf32>, tensor<8x131072xf32>, tensor<64x4096xf32>
}
