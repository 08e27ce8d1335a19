// RUN: %reshard-opt %s '--convert-to-local=hold=1000000 stay=unknown' | FileCheck %s

// A barrier of the program's own stays one while sums are held: what is behind it is left to XLA.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.while
// CHECK-NOT: stablehlo.all_
// CHECK: stablehlo.return
// CHECK: stablehlo.all_reduce
// CHECK: stablehlo.custom_call @unknown
func.func public @main(%x: tensor<5x16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
   -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<64x64xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<5> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<64x64xf32>
  %v = stablehlo.add %w, %w : tensor<64x64xf32>
  %b = sdy.propagation_barrier %v allowed_direction=NONE : tensor<64x64xf32>
  %c = stablehlo.custom_call @unknown(%b) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %none) : tensor<i32>, tensor<64x64xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %y3 = stablehlo.dynamic_slice %x, %i, %zero, %zero, sizes = [1, 16, 64] : (tensor<5x16x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x64xf32>
      %y = stablehlo.reshape %y3 : (tensor<1x16x64xf32>) -> tensor<16x64xf32>
      %p = stablehlo.dot_general %y, %y, contracting_dims = [0] x [0] : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<64x64xf32>
      %s = stablehlo.add %sum, %p : tensor<64x64xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %s : tensor<i32>, tensor<64x64xf32>
    }
  return %0#1, %c : tensor<64x64xf32>, tensor<64x64xf32>
}
