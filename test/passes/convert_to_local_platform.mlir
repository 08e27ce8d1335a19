// RUN: %reshard-opt %s --pass-pipeline="convert-to-local{platform=tpu}" --no-remarks | FileCheck %s
// RUN: %reshard-opt %s --emit=local --compile-for=tpu:v5e:2x4 --no-check --no-remarks | FileCheck %s

// The forms of TPUs: collectives on the dimensions that they change.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @gathered_along_its_dimension(
// CHECK: "stablehlo.all_gather"(%arg1) <{all_gather_dim = 1 : i64
// CHECK-NOT: stablehlo.transpose
func.func @gathered_along_its_dimension(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @summed_and_split_along_its_dimension(
// CHECK: %[[PART:.*]] = stablehlo.dot_general
// CHECK: "stablehlo.reduce_scatter"(%[[PART]])
// CHECK-SAME: scatter_dimension = 1 : i64
// CHECK: (tensor<4x32xf32>) -> tensor<4x8xf32>
func.func @summed_and_split_along_its_dimension(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}

// Columns that arrive in parts are joined by one op; see synthesis/forms/side_by_side.py.
// CHECK-LABEL: func.func @columns_in_parts(
// CHECK: %[[PARTS:.*]] = "stablehlo.all_to_all"
// CHECK-SAME: (tensor<2x8x128xf32>) -> tensor<2x8x128xf32>
// CHECK-NOT: stablehlo.transpose
// CHECK: %[[FIRST:.*]] = stablehlo.slice %[[PARTS]] [0:1, 0:8, 0:128]
// CHECK: %[[ONE:.*]] = stablehlo.reshape %[[FIRST]] : (tensor<1x8x128xf32>) -> tensor<8x128xf32>
// CHECK: %[[SECOND:.*]] = stablehlo.slice %[[PARTS]] [1:2, 0:8, 0:128]
// CHECK: %[[OTHER:.*]] = stablehlo.reshape %[[SECOND]] : (tensor<1x8x128xf32>) -> tensor<8x128xf32>
// CHECK: stablehlo.concatenate %[[ONE]], %[[OTHER]], dim = 1
func.func @columns_in_parts(%arg0: tensor<16x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<16x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<16x256xf32>
  return %0 : tensor<16x256xf32>
}

// A product that is used transposed names its operands the other way round, and so its sum is scattered along the
// dimension that the result has.
// CHECK-LABEL: func.func @gradient_of_a_weight(
// CHECK: %[[PRODUCT:.*]] = stablehlo.dot_general
// CHECK-SAME: (tensor<4x16xf32>, tensor<4x32xf32>) -> tensor<16x32xf32>
// CHECK-NOT: stablehlo.transpose
// CHECK: "stablehlo.reduce_scatter"(%[[PRODUCT]])
// CHECK-SAME: scatter_dimension = 0 : i64
func.func @gradient_of_a_weight(
    %arg0: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>},
    %arg1: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
    -> (tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) {
  %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
  return %1 : tensor<16x32xf32>
}

// What is made of a large value, and is all that needs it behind a loop, is made before the loop, which waits for it.
// CHECK-LABEL: func.func @gradient_behind_a_loop(
// CHECK: %[[LARGE:.*]] = stablehlo.dot_general
// CHECK: %[[CARRIED:.*]] = stablehlo.dot_general %[[LARGE]]
// CHECK: %[[GRADIENT:.*]] = stablehlo.dot_general %[[LARGE]]
// CHECK: %[[WAITING:.*]]:2 = stablehlo.optimization_barrier %[[CARRIED]], %[[GRADIENT]]
// CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[WAITING]]#0)
// CHECK: sdy.return %{{.*}}#1, %[[WAITING]]#1
func.func @gradient_behind_a_loop(
    %arg0: tensor<8192x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>},
    %arg1: tensor<64x1024xf32>, %arg2: tensor<1024x64xf32>, %arg3: tensor<1024x8xf32>)
    -> (tensor<8192x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>},
        tensor<8192x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8192x64xf32>, tensor<64x1024xf32>) -> tensor<8192x1024xf32>
  %1 = stablehlo.dot_general %0, %arg2, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x64xf32>) -> tensor<8192x64xf32>
  %2:2 = stablehlo.while(%i = %zero, %x = %1) : tensor<i32>, tensor<8192x64xf32>
  cond {
    %4 = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
  } do {
    %4 = stablehlo.add %i, %one : tensor<i32>
    %5 = stablehlo.add %x, %x : tensor<8192x64xf32>
    stablehlo.return %4, %5 : tensor<i32>, tensor<8192x64xf32>
  }
  %3 = stablehlo.dot_general %0, %arg3, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x8xf32>) -> tensor<8192x8xf32>
  return %2#1, %3 : tensor<8192x64xf32>, tensor<8192x8xf32>
}
