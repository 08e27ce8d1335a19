// A step in jax.shard_map on 16 devices: the weight is gathered, the gradient is summed.
module @step {
  sdy.mesh @mesh = <["data"=16]>
  func.func @main(%weight: tensor<4096x4096xf32>, %gradient: tensor<16x4194304xf32>)
      -> (tensor<4096x4096xf32>, tensor<16x4194304xf32>) {
    %0:2 = sdy.manual_computation(%weight, %gradient)
        in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]
        out_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"data"}, {}]>]
        manual_axes={"data"} (%own: tensor<256x4096xf32>, %partial: tensor<1x4194304xf32>) {
      %1 = "stablehlo.all_gather"(%own) <{all_gather_dim = 0 : i64,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]> : tensor<1x16xi64>,
          use_global_device_ids}> : (tensor<256x4096xf32>) -> tensor<4096x4096xf32>
      %2 = "stablehlo.all_reduce"(%partial) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]> : tensor<1x16xi64>,
          use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %3 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1x4194304xf32>) -> tensor<1x4194304xf32>
      sdy.return %1, %2 : tensor<4096x4096xf32>, tensor<1x4194304xf32>
    } : (tensor<4096x4096xf32>, tensor<16x4194304xf32>) -> (tensor<4096x4096xf32>, tensor<16x4194304xf32>)
    return %0#0, %0#1 : tensor<4096x4096xf32>, tensor<16x4194304xf32>
  }
}
