// Two layers of a network and its loss's gradient by the second one; nobody has said where anything lives.
func.func public @main(%up: tensor<2048x8192xbf16>, %down: tensor<8192x2048xbf16>, %tokens: tensor<16384x2048xbf16>)
    -> (tensor<8192x2048xbf16>, tensor<16384x2048xbf16>) {
  %0 = stablehlo.dot_general %tokens, %up, contracting_dims = [1] x [0] : (tensor<16384x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<16384x8192xbf16>
  %1 = stablehlo.tanh %0 : tensor<16384x8192xbf16>
  %2 = stablehlo.dot_general %1, %down, contracting_dims = [1] x [0] : (tensor<16384x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<16384x2048xbf16>
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [0] x [0] : (tensor<16384x8192xbf16>, tensor<16384x2048xbf16>) -> tensor<8192x2048xbf16>
  %4 = stablehlo.subtract %down, %3 : tensor<8192x2048xbf16>
  return %4, %2 : tensor<8192x2048xbf16>, tensor<16384x2048xbf16>
}
