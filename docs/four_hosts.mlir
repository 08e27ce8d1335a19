// The end of a training step in jax.shard_map on 16 devices: the gradient of a weight, one sum over all devices, and
// the new weight.
module @step {
  sdy.mesh @mesh = <["data"=16]>
  func.func @main(%weight: tensor<2048x2048xf32>, %rows: tensor<4096x2048xf32>, %errors: tensor<4096x2048xf32>)
      -> tensor<2048x2048xf32> {
    %0 = sdy.manual_computation(%weight, %rows, %errors)
        in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>]
        out_shardings=[<@mesh, [{}, {}]>]
        manual_axes={"data"} (%w: tensor<2048x2048xf32>, %x: tensor<256x2048xf32>, %e: tensor<256x2048xf32>) {
      %1 = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0]
          : (tensor<256x2048xf32>, tensor<256x2048xf32>) -> tensor<2048x2048xf32>
      %2 = "stablehlo.all_reduce"(%1) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]> : tensor<1x16xi64>,
          use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %5 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %5 : tensor<f32>
      }) : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
      %3 = stablehlo.subtract %w, %2 : tensor<2048x2048xf32>
      sdy.return %3 : tensor<2048x2048xf32>
    } : (tensor<2048x2048xf32>, tensor<4096x2048xf32>, tensor<4096x2048xf32>) -> tensor<2048x2048xf32>
    return %0 : tensor<2048x2048xf32>
  }
}
