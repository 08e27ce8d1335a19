// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always --verify-diagnostics -o /dev/null

// A site that is left alone has a remark at its edge, whatever the policy.

sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @flat = <["z"=8]>
sdy.mesh @shuffled = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>

func.func @two_meshes(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@flat, [{"z"}, {}]>}) {
  // expected-remark-re@below {{site {{[0-9]+}} (function_result) is left to XLA: source and target are on different meshes}}
  return %arg0 : tensor<8x8xf32>
}

// Equal axes over the same devices in another order are another mesh.
func.func @another_device_order(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@shuffled, [{"x"}, {}]>}) {
  // expected-remark-re@below {{site {{[0-9]+}} (function_result) is left to XLA: source and target are on different meshes}}
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
func.func @an_op_with_one_operand_that_has_no_chain(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@shuffled, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // expected-remark-re@below {{site {{[0-9]+}} (argument) is left to XLA: source and target are on different meshes}}
  // expected-remark-re@below {{site {{[0-9]+}} (argument) is left to XLA: source and target are on different meshes}}
  // expected-remark-re@below {{site {{[0-9]+}} (result) is left to XLA: source and target are on different meshes}}
  %0 = stablehlo.add %arg0, %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
