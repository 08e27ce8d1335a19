// RUN: %reshard-opt %s --pass-pipeline='builtin.module(strip-findings)' | FileCheck %s

// Our discardable attributes go, on the module, on ops and on ends of regions; those of others stay.

// CHECK: module attributes {mhlo.num_partitions = 8 : i32} {
module attributes {mhlo.num_partitions = 8 : i32, reshard.findings = {sites = 1 : i64, skipped = [], version = 1 : i64}} {
  sdy.mesh @mesh = <["x"=8]>
  // CHECK-LABEL: func.func public @all_of_them
  func.func public @all_of_them(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
    // CHECK-NEXT: stablehlo.tanh %arg0 {mhlo.frontend_attributes = {reshard = "theirs"}} : tensor<8x8xf32>
    %0 = stablehlo.tanh %arg0 {mhlo.frontend_attributes = {reshard = "theirs"}, reshard.id = 3 : i64, reshard.result_sites = []} : tensor<8x8xf32>
    // CHECK-NEXT: return %0 : tensor<8x8xf32>
    return {reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = 0 : i64}]} %0 : tensor<8x8xf32>
  }
}
