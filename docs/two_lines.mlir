// Two lines with constraints: the first gathers a value for a product that works on rows, the second splits its result by columns.
sdy.mesh @mesh = <["data"=4, "model"=2]>

func.func public @main(
    %x: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %w: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>})
    -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) {
  %0 = stablehlo.tanh %x : tensor<512x512xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<512x512xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"data", "model"}]> : tensor<512x512xf32>
  %4 = stablehlo.exponential %3 : tensor<512x512xf32>
  return %4 : tensor<512x512xf32>
}
