// RUN: %reshard-opt %s --no-remarks --overlap-collectives='topology=v5p:2x2x1 platform=tpu policy=always' --fuse=kernels | FileCheck %s

// A kernel takes the place of the product that uses weights last; the next weights come once it has run.
// CHECK: "stablehlo.all_gather"
// CHECK: stablehlo.while
// CHECK: %[[MADE:.+]] = stablehlo.custom_call @tpu_custom_call
// CHECK: %[[THEN:.+]]:2 = stablehlo.optimization_barrier %{{.+}}, %[[MADE]]
// CHECK: "stablehlo.all_gather"(%[[THEN]]#0)

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
 sdy.mesh @mesh = <["x"=4]>
 func.func public @main(%s0: tensor<4x4096x1024xbf16>, %s1: tensor<4x3x256x4096xbf16>, %s2: tensor<4x4096x1024xbf16>) -> (tensor<4x4096x1024xbf16>) {
  %r:1 = sdy.manual_computation(%s0, %s1, %s2) in_shardings=[<@mesh, [{"x"}, {}, {}]>, <@mesh, [{"x"}, {}, {}, {}]>, <@mesh, [{"x"}, {}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}]>] manual_axes={"x"} (%t0: tensor<1x4096x1024xbf16>, %t1: tensor<1x3x256x4096xbf16>, %t2: tensor<1x4096x1024xbf16>) {
   %a0 = stablehlo.reshape %t0 : (tensor<1x4096x1024xbf16>) -> tensor<4096x1024xbf16>
%a1 = stablehlo.reshape %t1 : (tensor<1x3x256x4096xbf16>) -> tensor<3x256x4096xbf16>
%a2 = stablehlo.reshape %t2 : (tensor<1x4096x1024xbf16>) -> tensor<4096x1024xbf16>
   %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %L:2 = stablehlo.while(%i = %c0, %r = %a0) : tensor<i32>, tensor<4096x1024xbf16> cond {
     %most = stablehlo.constant dense<3> : tensor<i32>
     %goes = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %goes : tensor<i1> } do {
     %z = stablehlo.constant dense<0> : tensor<i32>
     %ds = stablehlo.dynamic_slice %a1, %i, %z, %z, sizes = [1, 256, 4096] : (tensor<3x256x4096xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x256x4096xbf16>
     %f = stablehlo.reshape %ds : (tensor<1x256x4096xbf16>) -> tensor<256x4096xbf16>
     %g = "stablehlo.all_gather"(%f) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<256x4096xbf16>) -> tensor<1024x4096xbf16>
     %pp = stablehlo.dot_general %r, %g, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<4096x4096xbf16>
     %aa = "stablehlo.all_to_all"(%pp) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> : (tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
     %a = stablehlo.negate %aa : tensor<4096x4096xbf16>
     %x = stablehlo.dot_general %a, %a2, contracting_dims = [1] x [0] : (tensor<4096x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<4096x1024xbf16>
     %n = stablehlo.add %i, %c1 : tensor<i32>
     stablehlo.return %n, %x : tensor<i32>, tensor<4096x1024xbf16> }
   %o0 = stablehlo.reshape %L#1 : (tensor<4096x1024xbf16>) -> tensor<1x4096x1024xbf16>
   sdy.return %o0 : tensor<1x4096x1024xbf16>
  } : (tensor<4x4096x1024xbf16>, tensor<4x3x256x4096xbf16>, tensor<4x4096x1024xbf16>) -> (tensor<4x4096x1024xbf16>)
  return %r#0 : tensor<4x4096x1024xbf16>
 }
}
