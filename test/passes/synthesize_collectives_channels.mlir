// RUN: %reshard-opt %s --synthesize-collectives | FileCheck %s

// Channel handles are unique in the module: 7 is taken, wherever it is, so the islands count from 8.

#x = #sdy.sharding<@mesh, [{"x"}, {}]>
#y = #sdy.sharding<@mesh, [{"y"}, {}]>

module attributes {reshard.findings = {sites = 2 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @before_a_collective_that_is_there(
func.func @before_a_collective_that_is_there(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 8, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %1 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %0 : tensor<8x4xf32>
  return {reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = 0 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} %arg0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @after_it(
func.func @after_it(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, source_target_pairs = dense<{{\[\[0, 3\]\]}}> : tensor<1x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
  // CHECK-NEXT: %2 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 9, type = 1>, source_target_pairs = dense<{{\[\[0, 0\], \[1, 2\], \[2, 1\], \[3, 3\]\]}}> : tensor<4x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: sdy.return %2 : tensor<4x4xf32>
  // CHECK-NEXT: } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %1 : tensor<8x4xf32>
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x", "y"} (%arg1: tensor<4x4xf32>) {
    %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, source_target_pairs = dense<[[0, 3]]> : tensor<1x2xi64>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    sdy.return %1 : tensor<4x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return {reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = 1 : i64, source = #x, target = #y, why = "", verdict = "rewrite"}]} %0 : tensor<8x4xf32>
}

}
