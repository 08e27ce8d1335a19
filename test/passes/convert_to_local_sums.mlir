// RUN: %reshard-opt %s --convert-to-local --split-input-file | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --topology=v5e:2x4 --split-input-file | FileCheck %s --check-prefix=BY-TIME
// RUN: %reshard-opt %s --convert-to-local=lean=true --split-input-file | FileCheck %s --check-prefix=LEAN

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

// -----

sdy.mesh @mesh = <["x"=8]>

// A residual, and two layers side by side, one of them with a bias: what devices add up is added up together.
// CHECK-LABEL: func.func @layers_side_by_side_are_reduced_once(
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: %[[SUM:.*]] = stablehlo.add {{.*}} : tensor<64x1024xf32>
// CHECK: "stablehlo.all_reduce"(%[[SUM]])
// CHECK-NOT: stablehlo.all_reduce
// CHECK: return
// LEAN-LABEL: func.func @layers_side_by_side_are_reduced_once(
// LEAN-COUNT-2: stablehlo.all_reduce
func.func @layers_side_by_side_are_reduced_once(
    %arg0: tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
    %arg1: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg3: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg4: tensor<1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<1024xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x1024xf32>
  %3 = stablehlo.add %arg0, %2 : tensor<64x1024xf32>
  %4 = stablehlo.dot_general %arg1, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %5 = stablehlo.add %3, %4 : tensor<64x1024xf32>
  return %5 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// In parts on each device: they are added up in these parts.
// CHECK-LABEL: func.func @layers_side_by_side_are_scattered_once(
// CHECK: "stablehlo.reduce_scatter"
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK: stablehlo.add {{.*}} : tensor<8x1024xf32>
func.func @layers_side_by_side_are_scattered_once(
    %arg0: tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg3: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.add %arg0, %0 : tensor<64x1024xf32>
  %2 = stablehlo.dot_general %arg1, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %3 = stablehlo.add %1, %2 : tensor<64x1024xf32>
  return %3 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// The first sum is needed by itself.
// CHECK-LABEL: func.func @layers_one_behind_the_other_are_apart(
// CHECK-COUNT-2: stablehlo.all_reduce
func.func @layers_one_behind_the_other_are_apart(
    %arg0: tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
    %arg1: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg2: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg3: tensor<1024x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.add %arg0, %0 : tensor<64x1024xf32>
  %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x1024xf32>, tensor<1024x4096xf32>) -> tensor<64x4096xf32>
  %3 = stablehlo.dot_general %2, %arg2, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %4 = stablehlo.add %1, %3 : tensor<64x1024xf32>
  return %4 : tensor<64x1024xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=4]>

// Over other axes each: they are added up one by one, as the program has them.
// CHECK-LABEL: func.func @layers_over_other_axes_are_apart(
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: %[[FIRST:.*]] = "stablehlo.all_reduce"
// CHECK: %[[RESIDUAL:.*]] = stablehlo.add %{{.*}}, %[[FIRST]] : tensor<64x1024xf32>
// CHECK: "stablehlo.all_reduce"
// CHECK: stablehlo.add %[[RESIDUAL]], {{.*}} : tensor<64x1024xf32>
func.func @layers_over_other_axes_are_apart(
    %arg0: tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
    %arg1: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg2: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %arg3: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg4: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<64x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %arg1, %arg3, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %1 = stablehlo.add %arg0, %0 : tensor<64x1024xf32>
  %2 = stablehlo.dot_general %arg2, %arg4, contracting_dims = [1] x [0]
      : (tensor<64x4096xf32>, tensor<4096x1024xf32>) -> tensor<64x1024xf32>
  %3 = stablehlo.add %1, %2 : tensor<64x1024xf32>
  return %3 : tensor<64x1024xf32>
}
