sdy.mesh @mesh = <["x"=4, "y"=2]>

func.func public @main(
    %a: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>},
    %b: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  %0 = stablehlo.tanh %a : tensor<16x16x16xf32>
  %1 = stablehlo.add %0, %b : tensor<16x16x16xf32>
  return %1 : tensor<16x16x16xf32>
}
