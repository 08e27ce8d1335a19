// RUN: %reshard-opt %s --synthesize-collectives --split-input-file --verify-diagnostics
// RUN: %reshard-opt %s --plan-sites --split-input-file --verify-diagnostics

// Findings that find-mismatches did not write, or that the op has outlived.

// expected-error@below {{cannot read reshard.findings; run strip-findings and find-mismatches again}}
module attributes {reshard.findings = {sites = 1 : i64}} {
}

// -----

// expected-error@below {{cannot read reshard.findings; run strip-findings and find-mismatches again}}
module attributes {reshard.findings = {sites = 0 : i64, skipped = [], version = 2 : i64}} {
}

// -----

#x = #sdy.sharding<@mesh, [{"x"}, {}]>
module attributes {reshard.findings = {sites = 1 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @the_op_has_lost_an_operand(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{cannot read reshard.operand_sites; run strip-findings and find-mismatches again}}
  %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [{kind = "operand", operand = 1 : i64, site = 0 : i64, source = #x, target = #x, why = "w"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}

// -----

module attributes {reshard.findings = {sites = 1 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @an_entry_is_missing(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{cannot read reshard.result_sites; run strip-findings and find-mismatches again}}
  %0 = stablehlo.tanh %arg0 {reshard.result_sites = [{site = 0 : i64}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}
