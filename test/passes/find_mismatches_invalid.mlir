// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(find-mismatches)'

// What Shardy refuses is reported at the user's op, as Shardy says it.

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @unknown_mesh(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error @+1 {{unknown mesh: @other}}
  %0 = sdy.sharding_constraint %arg0 <@other, [{"x"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @unknown_axis(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error @+1 {{unknown axis name: "z"}}
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"z"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// A group with values inside and outside a manual computation is found out by propagation, not by the verifier.
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @group_across_a_manual_computation(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  sdy.sharding_group %arg0 group_id=0 : tensor<8x8xf32>
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg1: tensor<2x8xf32>) {
    // expected-error @+1 {{ShardingGroupOps values cannot cross ManualComputationOp boundaries for groupId: 0}}
    sdy.sharding_group %arg1 group_id=0 : tensor<2x8xf32>
    sdy.return %arg1 : tensor<2x8xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// XLA would take another sharding of an argument or a result, and say nothing.

sdy.mesh @mesh = <["x"=4, "y"=2]>
// expected-error @+2 {{argument 0 of type tensor<15x8xf32> is sharded [{"x"}, {}]: dimension 0 of size 15 does not divide into 4 shards}}
// expected-error @+1 {{result 0 of type tensor<15x8xf32> is sharded [{"y"}, {}]: dimension 0 of size 15 does not divide into 2 shards}}
func.func public @ends_that_do_not_divide(%arg0: tensor<15x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<15x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  return %arg0 : tensor<15x8xf32>
}

// -----

// Recursion would be the end of Shardy, and of the process.
func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = call @f(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func private @f(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = call @g(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func private @g(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error @+1 {{@f calls itself by way of this call; XLA compiles no recursion, write a loop}}
  %0 = call @f(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
