// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// A value goes from one mesh to another over the same devices: an island on each, where they differ.

// The devices in another order: they trade tiles, then a second island says on which mesh the result is. It moves nothing.
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @reversed = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
// CHECK-LABEL: func.func public @main(
// CHECK:         sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>]
// CHECK:           stablehlo.collective_permute
// CHECK:           stablehlo.all_to_all
// CHECK:         sdy.manual_computation({{.*}}) in_shardings=[<@reversed, {{.*}}>] out_shardings=[<@reversed, [{}, {"x"}]>]
// CHECK-NEXT:      sdy.return
func.func public @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@reversed, [{}, {"x"}]>}) {
  return %arg0 : tensor<16x8xf32>
}

// -----

// Other axes: eight rows of devices where there were four by two. A constraint between two ops.
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @flat = <["z"=8]>
// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.negate
// CHECK:         sdy.manual_computation
// CHECK:           stablehlo.all_to_all
// CHECK:         out_shardings=[<@flat, [{"z"}, {}]>]
// CHECK-NOT:     sdy.sharding_constraint
func.func public @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x8xf32> {
  %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : tensor<16x8xf32>
  %1 = sdy.sharding_constraint %0 <@flat, [{"z"}, {}]> : tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}

// -----

// Axes that are no digits of each other, and rows that do not divide: devices exchange what overlaps.
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @odd = <["a"=8], device_ids=[0, 3, 5, 1, 7, 2, 6, 4]>
// CHECK-LABEL: func.func public @main(
// CHECK:         sdy.manual_computation
// CHECK:           stablehlo.collective_permute
// CHECK:         out_shardings=[<@odd, [{"a"}]>]
func.func public @main(%arg0: tensor<24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>})
    -> (tensor<24xf32> {sdy.sharding = #sdy.sharding<@odd, [{"a"}]>}) {
  return %arg0 : tensor<24xf32>
}

// -----

// Devices that hold the same tile change places: nothing moves, and the module stays as it is.
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @swapped = <["x"=4, "y"=2], device_ids=[1, 0, 3, 2, 5, 4, 7, 6]>
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT:    return %arg0
func.func public @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@swapped, [{"x"}, {}]>}) {
  return %arg0 : tensor<16x8xf32>
}
