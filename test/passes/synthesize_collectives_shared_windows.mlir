// RUN: %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives)' | FileCheck %s
// Users that look at one converted value through windows filled with different values get it through barriers: XLA would give one of
// them the filling of the other.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// CHECK-LABEL: func.func public @two_pads_by_different_values
func.func public @two_pads_by_different_values(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x24xf32>, tensor<16x24xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  // CHECK: %[[ISLAND:.*]] = sdy.manual_computation
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x", "y"}]> : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %a <@mesh, [{}, {"x", "y"}]> : tensor<16x16xf32>
  // CHECK: stablehlo.pad %[[ISLAND]],
  %2 = stablehlo.pad %0, %one, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  // CHECK: %[[APART:.*]] = stablehlo.optimization_barrier %[[ISLAND]]
  // CHECK-NEXT: stablehlo.pad %[[APART]],
  %3 = stablehlo.pad %1, %two, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  return %2, %3 : tensor<16x24xf32>, tensor<16x24xf32>
}

// CHECK-LABEL: func.func public @two_pads_by_the_same_value
func.func public @two_pads_by_the_same_value(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x24xf32>, tensor<16x24xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %too = stablehlo.constant dense<1.0> : tensor<f32>
  // CHECK-NOT: stablehlo.optimization_barrier
  // CHECK: return
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x", "y"}]> : tensor<16x16xf32>
  %1 = stablehlo.pad %0, %one, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  %2 = stablehlo.pad %0, %too, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  return %1, %2 : tensor<16x24xf32>, tensor<16x24xf32>
}

// CHECK-LABEL: func.func public @pads_in_functions_that_are_called
func.func public @pads_in_functions_that_are_called(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x24xf32>, tensor<16x24xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  // CHECK: %[[ISLAND:.*]] = sdy.manual_computation
  %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x", "y"}]> : tensor<16x16xf32>
  // CHECK: %[[APART:.*]] = stablehlo.optimization_barrier %[[ISLAND]]
  // CHECK-NEXT: call @pad(%[[APART]],
  %1 = call @pad(%0, %one) : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  // CHECK-NEXT: call @pad(%[[ISLAND]],
  %2 = call @pad(%0, %two) : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  return %1, %2 : tensor<16x24xf32>, tensor<16x24xf32>
}

// XLA may be right about the value as it came, and no longer once the layouts of what is made of it are held.
// CHECK-LABEL: func.func public @pads_of_a_value_that_no_island_gives
func.func public @pads_of_a_value_that_no_island_gives(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<16x24xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  // CHECK: stablehlo.pad %arg0,
  %0 = stablehlo.pad %a, %one, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  // CHECK: %[[APART:.*]] = stablehlo.optimization_barrier %arg0
  // CHECK: stablehlo.pad %[[APART]],
  %1 = stablehlo.pad %a, %two, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  return %0, %1 : tensor<16x24xf32>, tensor<16x24xf32>
}

func.func private @pad(%a: tensor<16x16xf32>, %by: tensor<f32>) -> tensor<16x24xf32> {
  %0 = stablehlo.pad %a, %by, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<16x16xf32>, tensor<f32>) -> tensor<16x24xf32>
  return %0 : tensor<16x24xf32>
}
