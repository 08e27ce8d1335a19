// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always --verify-diagnostics -o /dev/null

// A site that is left alone has a remark at its edge, whatever the policy.

sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @half = <["z"=4]>

func.func @meshes_over_different_devices(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@half, [{"z"}, {}]>}) {
  // expected-remark-re@below {{site {{[0-9]+}} (function_result) is left to XLA: source and target are on meshes over different devices}}
  return %arg0 : tensor<8x8xf32>
}

func.func @a_dynamic_dimension(%arg0: tensor<?x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<?x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // expected-remark@below {{operand 0 of return is left alone: dimension 0 of tensor<?x8xf32> is dynamic}}
  return %arg0 : tensor<?x8xf32>
}

func.func @elements_without_a_width(%arg0: tensor<8x8xindex> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xindex> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // expected-remark-re@below {{site {{[0-9]+}} (function_result) is left to XLA: no chain: elements of type index have no width}}
  return %arg0 : tensor<8x8xindex>
}

// An op with several conversions is decided as a whole: where one has no chain, none is rewritten.
func.func @an_op_with_one_operand_that_has_no_chain(%arg0: tensor<28x8xf32>, %arg1: tensor<32x8xf32>) -> tensor<60x8xf32> {
  %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"}
      (%arg2: tensor<7x8xf32>, %arg3: tensor<8x8xf32>) {
    // expected-remark-re@below {{site {{[0-9]+}} (constraint) is left to XLA: no chain: dimension 0 of size 7 does not divide}}
    %1 = sdy.sharding_constraint %arg2 <@mesh, [{"y"}, {}]> : tensor<7x8xf32>
    %2 = sdy.sharding_constraint %arg3 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
    // expected-remark-re@below {{site {{[0-9]+}} (operand) is left to XLA: no chain: dimension 0 of size 7 does not divide}}
    // expected-remark-re@below {{site {{[0-9]+}} (operand) is left to XLA: no chain: dimension 0 of size 7 does not divide}}
    %3 = stablehlo.concatenate %1, %2, dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : (tensor<7x8xf32>, tensor<8x8xf32>) -> tensor<15x8xf32>
    sdy.return %3 : tensor<15x8xf32>
  } : (tensor<28x8xf32>, tensor<32x8xf32>) -> tensor<60x8xf32>
  return %0 : tensor<60x8xf32>
}
