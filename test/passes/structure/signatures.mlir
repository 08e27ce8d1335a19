// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// What a function says of its arguments and results besides their layout stays as it is.

// Donation.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(%arg0: tensor<16x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
// CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0 : tensor<16x16xf32>
}

// -----

// Memory kinds.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(%arg0: tensor<16x16xf32> {mhlo.memory_kind = "device", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {mhlo.memory_kind = "device", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
// CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {mhlo.memory_kind = "device", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {mhlo.memory_kind = "device", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0 : tensor<16x16xf32>
}

// -----

// Layouts that the compiler chooses.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(%arg0: tensor<16x16xf32> {mhlo.layout_mode = "auto", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {mhlo.layout_mode = "auto", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
// CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {mhlo.layout_mode = "auto", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32> {mhlo.layout_mode = "auto", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0 : tensor<16x16xf32>
}

// -----

// An output in the buffer of an input.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = stablehlo.negate %arg0 : tensor<16x16xf32>
  return %0, %0 : tensor<16x16xf32>, tensor<16x16xf32>
}

// -----

// Open dimensions, priorities, axes that must stay replicated.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p0, {?}p1], replicated={"y"}>}
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p0, {?}p1], replicated={"y"}>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", ?}]>}) {
  %0 = stablehlo.optimization_barrier %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x", ?}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}

// -----

// No results.
sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"}
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return
}

// -----

// A mesh that is written where it is used.
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: sdy.manual_computation(%arg0) in_shardings=[<mesh<["x"=4, "y"=2]>, [{"x"}, {}]>] out_shardings=[<mesh<["x"=4, "y"=2]>, [{}, {"x"}]>]
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=4, "y"=2]>, [{"x"}, {}]>}) -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=4, "y"=2]>, [{}, {"x"}]>}) {
  return %arg0 : tensor<16x16xf32>
}
