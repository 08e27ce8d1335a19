// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always canary=off},synthesize-collectives)' | FileCheck %s
// What is read from an array that an island gives, and written into it, is read first: see docs/upstream/update-in-place.md.

sdy.mesh @mesh = <["x"=2]>

// CHECK-LABEL: func.func public @rows_written_into_their_own_array
func.func public @rows_written_into_their_own_array(%a: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %i: tensor<i32>)
    -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK: %[[ISLAND:.*]] = sdy.manual_computation
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<4x8xf32>
  // CHECK: %[[ROWS:.*]] = stablehlo.slice %[[ISLAND]]
  %1 = stablehlo.slice %0 [0:2, 0:8] : (tensor<4x8xf32>) -> tensor<2x8xf32>
  // CHECK: %[[READ:.*]] = stablehlo.optimization_barrier %[[ROWS]]
  // CHECK-NEXT: stablehlo.dynamic_update_slice %[[ISLAND]], %[[READ]],
  %2 = stablehlo.dynamic_update_slice %0, %1, %i, %i : (tensor<4x8xf32>, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func public @rows_of_another_array
func.func public @rows_of_another_array(%a: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %i: tensor<i32>,
    %b: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // CHECK-NOT: stablehlo.optimization_barrier
  // CHECK: return
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<4x8xf32>
  %1 = stablehlo.dynamic_update_slice %0, %b, %i, %i : (tensor<4x8xf32>, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
