// RUN: %reshard-opt %s --convert-to-local --verify-diagnostics=only-expected --split-input-file
// RUN: not %reshard-opt %s --emit=local --split-input-file -o %t.out 2>&1 | FileCheck %s
// RUN: test ! -e %t.out

// What has no meaning on tiles that we know is an error at the op.

// CHECK: convert_to_local_invalid.mlir:13:8: error: emit=local cannot convert stablehlo.custom_call @mystery: it has no rule for tiles
// CHECK: note: --emit=manual rewrites the sites alone and leaves the ops to XLA

sdy.mesh @mesh = <["x"=2]>
func.func @custom_call(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  // expected-error @+1 {{emit=local cannot convert stablehlo.custom_call @mystery: it has no rule for tiles}}
  %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
func.func @rng(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %a: tensor<f32>, %s: tensor<1xi64>) -> tensor<8xf32> {
  // expected-error @+1 {{emit=local cannot convert stablehlo.rng: it has no rule for tiles}}
  %0 = stablehlo.rng %a, %a, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
  %1 = stablehlo.add %0, %arg0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @partly_manual(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {?}]>] out_shardings=[<@mesh, [{"x"}, {?}]>] manual_axes={"x"} (%arg1: tensor<4x8xf32>) {
    // expected-error @+1 {{emit=local cannot convert stablehlo.collective_permute: it does not run in equal groups along the axes of the manual computations around it alone}}
    %1 = "stablehlo.collective_permute"(%arg1) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    sdy.return %1 : tensor<4x8xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error @+1 {{emit=local needs dimensions that divide; argument 0, tensor<7xf32>, is to be [{"x"}]}}
func.func @uneven_argument(%arg0: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<7xf32> {
  return %arg0 : tensor<7xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
sdy.mesh @turned = <["x"=2], device_ids=[1, 0]>
// expected-error @+1 {{emit=local takes one mesh per function; this one is on @mesh and @turned}}
func.func @two_meshes(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@turned, [{"x"}]> : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error @+1 {{emit=local has no tiles of a value of type tensor<?xf32>}}
func.func @dynamic_dimension(%arg0: tensor<?xf32>, %arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  return %arg1 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-error @+1 {{emit=local takes and gives no unreduced values}}
func.func @unreduced_argument(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>}) -> tensor<8xf32> {
  return %arg0 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @sum_of_nothing_known(%arg0: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> tensor<8x2xf32> {
  // expected-error @+1 {{emit=local cannot convert sdy.all_reduce: what it sums up is no value of the whole module}}
  %0 = sdy.all_reduce {"x"} %arg0 out_sharding=<@mesh, [{"y"}, {}]> : tensor<8x2xf32>
  return %0 : tensor<8x2xf32>
}

// -----

// As jax.debug.print has it: no result, and yet a sharding.
sdy.mesh @mesh = <["x"=2]>
sdy.mesh @device_0 = <[], device_ids=[0]>
func.func @callback_without_results(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  // expected-error @+1 {{emit=local has no tiles for stablehlo.custom_call @callback on one device, #sdy.sharding<@device_0, []>}}
  stablehlo.custom_call @callback(%arg0) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@device_0, []>]>} : (tensor<8xf32>) -> ()
  return %arg0 : tensor<8xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
func.func @chlo_that_is_not_elementwise(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8xf32>) -> tensor<8x8xf32> {
  // expected-error @+1 {{emit=local cannot convert chlo.broadcast_add: it has no rule for tiles}}
  %0 = chlo.broadcast_add %arg0, %arg1 : (tensor<8x8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
