// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always | FileCheck %s
// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always --strip-findings > %t.stripped
// RUN: %reshard-opt %s --pass-pipeline='builtin.module()' > %t.read
// RUN: diff %t.stripped %t.read
// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always --plan-sites=policy=always > %t.twice
// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always > %t.once
// RUN: diff %t.once %t.twice
// RUN: not %reshard-opt %s --plan-sites=policy=never 2>&1 | FileCheck %s --check-prefix=POLICY
// RUN: not %reshard-opt %s --plan-sites=oracle=model 2>&1 | FileCheck %s --check-prefix=ORACLE

// What planning adds to a site: the chain, its costs in bytes per device, the verdict and its reason. Nothing else changes.

// POLICY: error: plan-sites: policy=never is not available; choose from better, strict, always
// ORACLE: error: plan-sites: oracle=model is not available; choose from lone

sdy.mesh @mesh = <["x"=4, "y"=2]>

// Seven of eight parts of the tile of 2048 bytes arrive from others: 448 elements.
// CHECK-LABEL: func.func @one_collective_at_the_bound(
// CHECK: return {reshard.operand_sites = [{bound_bytes = 1792 : i64, bytes_received = 1792 : i64, chain = "all_to_all x: dim 2 -> 1, y: dim 0 -> 1", collectives = 1 : i64, kind = "function_result", largest_tile_bytes = 2048 : i64, operand = 0 : i64, possible = "better", reason = "the policy is always", site = {{[0-9]+}} : i64, {{.*}} verdict = "rewrite", why = "{{.*}}"}]}
func.func @one_collective_at_the_bound(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}

// CHECK-LABEL: func.func @a_slice_receives_nothing(
// CHECK: return {reshard.operand_sites = [{bound_bytes = 0 : i64, bytes_received = 0 : i64, chain = "slice x: dim 0", collectives = 0 : i64,
func.func @a_slice_receives_nothing(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  return %arg0 : tensor<8x8xf32>
}

// Half a byte per element.
// CHECK-LABEL: func.func @four_bits(
// CHECK: return {reshard.operand_sites = [{bound_bytes = 24 : i64, bytes_received = 24 : i64, chain = "all_gather x: dim 0", collectives = 1 : i64, {{.*}}largest_tile_bytes = 32 : i64
func.func @four_bits(%arg0: tensor<8x8xi4> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xi4> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  return %arg0 : tensor<8x8xi4>
}

// One site, two edges: both have the same plan.
// CHECK-LABEL: func.func @two_uses(
// CHECK: return {reshard.operand_sites = [{{.*}}operand = 0 : i64, {{.*}}site = [[SITE:[0-9]+]] : i64, {{.*}}operand = 1 : i64, {{.*}}site = [[SITE]] : i64
func.func @two_uses(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0, %arg0 : tensor<8x8xf32>, tensor<8x8xf32>
}

// No element, no traffic, no step.
// CHECK-LABEL: func.func @no_elements(
// CHECK: return {reshard.operand_sites = [{bound_bytes = 0 : i64, bytes_received = 0 : i64, chain = "nothing",
func.func @no_elements(%arg0: tensor<0x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<0x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0 : tensor<0x8xf32>
}
