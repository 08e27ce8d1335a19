module @updated attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func public @main(%arg0: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
      -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
    %0 = stablehlo.negate %arg0 : tensor<8x2xf32>
    %1 = stablehlo.slice %0 [0:8, 0:1] : (tensor<8x2xf32>) -> tensor<8x1xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %far = stablehlo.constant dense<5> : tensor<i32>
    %offset = stablehlo.optimization_barrier %far : tensor<i32>
    %2 = stablehlo.dynamic_update_slice %0, %1, %zero, %offset
      : (tensor<8x2xf32>, tensor<8x1xf32>, tensor<i32>, tensor<i32>) -> tensor<8x2xf32>
    %3 = stablehlo.abs %2 : tensor<8x2xf32>
    return %3 : tensor<8x2xf32>
  }
}
