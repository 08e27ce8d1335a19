// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --topology=v5e:2x4 --split-input-file | FileCheck %s --check-prefix=BY-TIME

// What is added to other partial sums is added up with them, once.

sdy.mesh @mesh = <["x"=8]>

// The gradient of what two products take: in parts of the sequence, which two ops need.
// CHECK-LABEL: func.func @three_products_are_scattered_once(
// CHECK-COUNT-3: stablehlo.dot_general
// CHECK: stablehlo.add {{.*}} : tensor<64x1024xf32>
// CHECK: stablehlo.reduce_scatter
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK-NOT: stablehlo.all_reduce
// CHECK: stablehlo.tanh {{.*}} : tensor<8x1024xf32>
// CHECK: stablehlo.multiply {{.*}} : tensor<8x1024xf32>
// BY-TIME-LABEL: func.func @three_products_are_scattered_once(
// BY-TIME-COUNT-3: stablehlo.dot_general
// BY-TIME: stablehlo.reduce_scatter
// BY-TIME-NOT: stablehlo.reduce_scatter
// BY-TIME: sdy.return
func.func @three_products_are_scattered_once(
    %arg0: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg3: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.dot_general %arg0, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %3 = stablehlo.add %0, %1 : tensor<64x1024xf32>
  %4 = stablehlo.add %3, %2 : tensor<64x1024xf32>
  %5 = stablehlo.tanh %4 : tensor<64x1024xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<64x1024xf32>
  return %6 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// Whole on all devices, and two ops take it.
// CHECK-LABEL: func.func @a_difference_is_reduced_once(
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: stablehlo.subtract {{.*}} : tensor<64x1024xf32>
// CHECK: stablehlo.all_reduce
// CHECK-NOT: stablehlo.all_reduce
// CHECK: stablehlo.multiply
func.func @a_difference_is_reduced_once(
    %arg0: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<64x1024xf32>
  %3 = stablehlo.tanh %2 : tensor<64x1024xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<64x1024xf32>
  return %4 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Sums over different axes are no like terms, and what others take, too, is needed as it is.
// CHECK-LABEL: func.func @unlike_sums_are_apart(
// CHECK-COUNT-2: stablehlo.all_reduce
// CHECK: stablehlo.add
// CHECK-NOT: stablehlo.all_reduce
// CHECK: sdy.return
func.func @unlike_sums_are_apart(
    %arg0: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %arg3: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x1024xf32>
  return %2 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// One of the sums is a result, too.
// CHECK-LABEL: func.func @a_sum_that_is_needed_is_apart(
// CHECK-COUNT-2: stablehlo.all_reduce
// CHECK: stablehlo.add
// CHECK: sdy.return
func.func @a_sum_that_is_needed_is_apart(
    %arg0: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
        tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x1024xf32>
  return %2, %1 : tensor<64x1024xf32>, tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// Constraints on what is added keep nothing apart.
// CHECK-LABEL: func.func @constrained_sums_are_scattered_once(
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: stablehlo.reduce_scatter
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK: sdy.return
func.func @constrained_sums_are_scattered_once(
    %arg0: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<64x1024xf32>
  %2 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {}]> : tensor<64x1024xf32>
  %4 = stablehlo.add %1, %3 : tensor<64x1024xf32>
  return %4 : tensor<64x1024xf32>
}
