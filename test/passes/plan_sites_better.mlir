// RUN: %reshard-opt %s --find-mismatches --plan-sites --verify-diagnostics=only-expected | FileCheck %s
// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=strict --verify-diagnostics=only-expected | FileCheck %s --check-prefix=STRICT

// The policies better and strict compare each site with what stock XLA does there; both forms are compiled in a child
// process. Under better the modelled time decides, under strict each cost has a veto.

sdy.mesh @mesh = <["x"=4, "y"=2]>

// Stock XLA gathers the whole tensor.
// CHECK-LABEL: func.func @a_site_that_is_worth_it(
// STRICT-LABEL: func.func @a_site_that_is_worth_it(
// STRICT: reason = "better than stock XLA in received bytes 14,336 -> 1,792, largest collective tile in bytes 16,384 -> 2,048, {{.*}}collectives 2 -> 1", {{.*}}stock_bytes = 14336 : i64, {{.*}}verdict = "rewrite"
// CHECK: our_bytes = 1792 : i64, {{.*}}our_us = {{[0-9.e+]+}} : f64, possible = "strict", reason = "faster than stock XLA, modelled {{[0-9.]+}} us -> {{[0-9.]+}} us, received 14,336 bytes -> 1,792 bytes", {{.*}}stock_bytes = 14336 : i64, {{.*}}verdict = "rewrite"
func.func @a_site_that_is_worth_it(%arg0: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %arg0 : tensor<16x16x16xf32>
}

// CHECK-LABEL: func.func @a_site_that_stock_does_as_well(
// CHECK: stock_bytes = 96 : i64, {{.*}}verdict = "keep"
func.func @a_site_that_stock_does_as_well(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  // expected-remark@below {{is left to XLA: stock XLA moves 96 bytes in 1 all_to_all, as we would}}
  return %arg0 : tensor<16x8xf32>
}

// Two operands are one question: how is this op best partitioned with its operands as they are?
// CHECK-LABEL: func.func @an_op_is_judged_with_all_its_operands(
// CHECK: stock_bytes = [[STOCK:[0-9]+]] : i64, {{.*}}stock_bytes = [[STOCK]] : i64
func.func @an_op_is_judged_with_all_its_operands(
    %arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.concatenate %arg0, %arg1, dim = 0 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<32x16xf32>
  %1 = stablehlo.slice %0 [0:32:2, 0:16] : (tensor<32x16xf32>) -> tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}
