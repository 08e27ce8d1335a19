// RUN: %reshard-opt %s --synthesize-collectives --split-input-file --verify-diagnostics | FileCheck %s

// What is not rewritten stays as it is, and a remark says why.

// The module never saw find-mismatches.
// CHECK-LABEL: func.func @no_findings(
// CHECK-NEXT: sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
// expected-remark@below {{nothing is rewritten: the module has no findings; run find-mismatches first}}
module {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @no_findings(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}

// -----

#x = #sdy.sharding<@mesh, [{"x"}, {}]>
#y = #sdy.sharding<@mesh, [{"y"}, {}]>
// What is left keeps its findings.
// CHECK: module attributes {reshard.findings = {sites = 4 : i64, skipped = [], version = 1 : i64}}
module attributes {reshard.findings = {sites = 4 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @without_verdict(
// CHECK-NEXT: stablehlo.tanh %arg0 {reshard.operand_sites = [{{.*}}site = 0 : i64
func.func @without_verdict(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-remark@below {{site 0 is left to XLA: it has no verdict; run plan-sites first}}
  %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 0 : i64, source = #x, target = #y, why = "w"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// plan-sites has said why.
// CHECK-LABEL: func.func @to_keep(
// CHECK-NEXT: stablehlo.tanh %arg0 {reshard.operand_sites = [{{.*}}site = 1 : i64
func.func @to_keep(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 1 : i64, source = #x, target = #y, why = "w", verdict = "keep", reason = "stock XLA does as well"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// A verdict does not help where there is no chain.
// CHECK-LABEL: func.func @on_an_unknown_mesh(
// CHECK-NEXT: stablehlo.tanh %arg0 {reshard.operand_sites = [{{.*}}site = 2 : i64
func.func @on_an_unknown_mesh(%arg0: tensor<7x4xf32>) -> tensor<7x4xf32> {
  // expected-remark@below {{site 2 is left to XLA: no chain: unknown mesh in #sdy.sharding<@other, [{"x"}, {}]>}}
  %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 2 : i64, source = #sdy.sharding<@other, [{"x"}, {}]>, target = #sdy.sharding<@other, [{"y"}, {}]>, why = "w", verdict = "rewrite"}]} : tensor<7x4xf32>
  return %0 : tensor<7x4xf32>
}

// CHECK-LABEL: func.func @on_an_axis_that_is_not_there(
// CHECK-NEXT: stablehlo.tanh %arg0 {reshard.operand_sites = [{{.*}}site = 3 : i64
func.func @on_an_axis_that_is_not_there(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-remark@below {{site 3 is left to XLA: no chain: }}
  %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "argument", operand = 0 : i64, site = 3 : i64, source = #sdy.sharding<@mesh, [{"z"}, {}]>, target = #y, why = "w", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}
