// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(find-mismatches)'

// What Shardy's passes do not survive, and XLA does not compile: the module is left as it came.

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @named_computation(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-remark @+1 {{the module is left alone: sdy.named_computation is for the inside of Shardy's propagation, and XLA compiles no module with one}}
  %0 = sdy.named_computation<"f">(%arg0) (%arg1: tensor<8x8xf32>) {
    sdy.return %arg1 : tensor<8x8xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

func.func public @data_flow_edge(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-remark @+1 {{the module is left alone: sdy.data_flow_edge is for the inside of Shardy's propagation}}
  %0 = sdy.data_flow_edge %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

func.func private @declared(tensor<8x8xf32>) -> tensor<8x8xf32>
func.func public @calls_a_function_without_a_body(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-remark @+1 {{the module is left alone: @declared, which is called here, has no body, and XLA compiles no such call; link it in}}
  %0 = call @declared(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// expected-remark @+1 {{the module is left alone: mesh @huge has more than 2^63-1 devices; make its axes smaller}}
sdy.mesh @huge = <["x"=1099511627776, "y"=1099511627776]>
func.func public @more_devices_than_64_bits_count(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@huge, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  return %arg0 : tensor<8x8xf32>
}

// -----

func.func public @windows_of_arrays(%arg0: tensor<4x2xf32>, %arg1: tensor<2xf32>) -> tensor<2x1xf32> {
  // expected-remark @+1 {{the module is left alone: stablehlo.reduce_window starts from tensor<2xf32>, and Shardy and XLA know such windows of scalars only}}
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) ({
    ^bb0(%a: tensor<2xf32>, %b: tensor<2xf32>):
      %1 = stablehlo.add %a, %b : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
  }) {padding = dense<[[2, 2], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 4, 2>, window_strides = array<i64: 3, 1>}
    : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<2x1xf32>
  return %0 : tensor<2x1xf32>
}

// -----

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @results_are_partial_sums_along_different_axes(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  // expected-remark @+1 {{the module is left alone: results of stablehlo.sort are partial sums along different axes; reduce them before they meet}}
  %0:2 = "stablehlo.sort"(%arg0, %arg0) <{dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
      %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
  }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"x"}>, <@mesh, [{}, {}], unreduced={"y"}>]>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  return %0#0, %0#1 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @values_that_no_network_moves(%arg0: tensor<4611686018427387904xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<4611686018427387904xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) {
  // expected-remark @+1 {{operand 0 of return is left alone: tensor<4611686018427387904xi8> has more than 2^52 elements, which no network moves}}
  return %arg0 : tensor<4611686018427387904xi8>
}
