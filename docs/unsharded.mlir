// Much like a training step of two layers, x @ up, tanh, @ down; nobody has said where anything lives.
func.func public @main(%up: tensor<2048x8192xbf16>, %down: tensor<8192x2048xbf16>, %x: tensor<16384x2048xbf16>)
    -> (tensor<2048x8192xbf16>, tensor<8192x2048xbf16>) {
  %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<16384x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<16384x8192xbf16>
  %h = stablehlo.tanh %0 : tensor<16384x8192xbf16>
  %y = stablehlo.dot_general %h, %down, contracting_dims = [1] x [0] : (tensor<16384x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<16384x2048xbf16>
  %1 = stablehlo.dot_general %h, %y, contracting_dims = [0] x [0] : (tensor<16384x8192xbf16>, tensor<16384x2048xbf16>) -> tensor<8192x2048xbf16>
  %2 = stablehlo.dot_general %y, %down, contracting_dims = [1] x [1] : (tensor<16384x2048xbf16>, tensor<8192x2048xbf16>) -> tensor<16384x8192xbf16>
  %3 = stablehlo.multiply %h, %2 : tensor<16384x8192xbf16>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] : (tensor<16384x2048xbf16>, tensor<16384x8192xbf16>) -> tensor<2048x8192xbf16>
  %5 = stablehlo.subtract %up, %4 : tensor<2048x8192xbf16>
  %6 = stablehlo.subtract %down, %1 : tensor<8192x2048xbf16>
  return %5, %6 : tensor<2048x8192xbf16>, tensor<8192x2048xbf16>
}
