// RUN: %reshard-opt %s --convert-to-local --no-remarks | FileCheck %s
// RUN: %reshard-opt %s --emit=local --no-remarks | FileCheck %s
// RUN: %reshard-opt %s --emit=local --no-remarks -o %t.once.mlir
// RUN: %reshard-opt %t.once.mlir --emit=local -o %t.twice.mlir
// RUN: diff %t.once.mlir %t.twice.mlir

// Each public function becomes one manual computation over all axes: ops on tiles, chains where a layout changes.

sdy.mesh @mesh = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @elementwise(
// CHECK-SAME: %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
// CHECK-SAME: -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
// CHECK-NEXT: sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>]
// CHECK-SAME: manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>)
// CHECK-NEXT: stablehlo.tanh %arg1 : tensor<4x4xf32>
// CHECK-NEXT: sdy.return
func.func @elementwise(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @constraint_is_one_all_to_all(
// CHECK: stablehlo.all_to_all
// CHECK-NOT: sdy.sharding_constraint
func.func @constraint_is_one_all_to_all(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @contracted_dimension_is_summed_up(
// CHECK: %[[PART:.*]] = stablehlo.dot_general
// CHECK-SAME: (tensor<4x4xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
// CHECK: "stablehlo.all_reduce"(%[[PART]])
func.func @contracted_dimension_is_summed_up(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}

// What a reduction starts from counts once, not once for each device.
// CHECK-LABEL: func.func @reduction_starts_once(
// CHECK: %[[THREE:.*]] = stablehlo.constant dense<3.0{{.*}}> : tensor<f32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.0{{.*}}> : tensor<f32>
// CHECK: stablehlo.reduce({{.*}} init: %[[ZERO]])
// CHECK: %[[SUM:.*]] = "stablehlo.all_reduce"
// CHECK: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %[[THREE]]
// CHECK: stablehlo.add %[[SUM]], %[[WIDE]]
func.func @reduction_starts_once(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16xf32> {
  %c = stablehlo.constant dense<3.0> : tensor<f32>
  %0 = stablehlo.reduce(%arg0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// CHECK-LABEL: func.func @calls_are_inlined(
// CHECK: stablehlo.sine {{.*}} : tensor<4x16xf32>
// CHECK-NOT: call
func.func @calls_are_inlined(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  %0 = call @sine(%arg0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-NOT: @sine
func.func private @sine(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.sine %arg0 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @loop(
// CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %{{.*}}) : tensor<i32>, tensor<4x16xf32>
// CHECK: stablehlo.tanh {{.*}} : tensor<4x16xf32>
func.func @loop(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %v = %arg0) : tensor<i32>, tensor<8x16xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.tanh %v : tensor<8x16xf32>
      stablehlo.return %1, %2 : tensor<i32>, tensor<8x16xf32>
    }
  return %0#1 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @nothing_is_split(
// CHECK-NEXT: stablehlo.tanh %arg0 : tensor<8x16xf32>
func.func @nothing_is_split(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @arguments_keep_their_attributes(
// CHECK-SAME: jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
func.func @arguments_keep_their_attributes(
    %arg0: tensor<8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  return %arg0 : tensor<8x16xf32>
}

// Sums of partial sums are added up once, and in the layout that all users want.
// CHECK-LABEL: func.func @partial_sums_are_added_before_they_are_reduced(
// CHECK: %[[A:.*]] = stablehlo.dot_general
// CHECK-NOT: all_reduce
// CHECK: %[[B:.*]] = stablehlo.dot_general
// CHECK-NOT: all_reduce
// CHECK: %[[SUM:.*]] = stablehlo.add %[[A]], %[[B]] : tensor<8x32xf32>
// CHECK: "stablehlo.reduce_scatter"(%{{.*}})
// CHECK-NOT: all_reduce
// CHECK: return
func.func @partial_sums_are_added_before_they_are_reduced(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<8x32xf32>
  %2 = stablehlo.tanh %arg0 : tensor<8x16xf32>
  %3 = stablehlo.dot_general %2, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %4 = sdy.sharding_constraint %3 <@mesh, [{}, {}]> : tensor<8x32xf32>
  %5 = stablehlo.add %1, %4 : tensor<8x32xf32>
  %6 = sdy.sharding_constraint %5 <@mesh, [{}, {}]> : tensor<8x32xf32>
  %7 = sdy.sharding_constraint %6 <@mesh, [{}, {"y"}]> : tensor<8x32xf32>
  %8 = sdy.sharding_constraint %6 <@mesh, [{}, {"y"}]> : tensor<8x32xf32>
  return %7, %8 : tensor<8x32xf32>, tensor<8x32xf32>
}

// What a constraint asks for is not written if all its users take the tile from before it.
// CHECK-LABEL: func.func @nobody_takes_what_the_constraint_asks_for(
// CHECK: manual_axes={"x", "y"} (%[[TILE:.*]]: tensor<2x16xf32>) {
// CHECK-NEXT: stablehlo.negate %[[TILE]] : tensor<2x16xf32>
// CHECK-NEXT: sdy.return
func.func @nobody_takes_what_the_constraint_asks_for(
    %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"y"}]> : tensor<8x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x16xf32>
  %2 = stablehlo.negate %1 : tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
