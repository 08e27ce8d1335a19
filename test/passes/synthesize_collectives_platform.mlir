// RUN: %reshard-opt %s --pass-pipeline="synthesize-collectives{platform=tpu}" | FileCheck %s
// RUN: %reshard-opt %s --synthesize-collectives --compile-for=tpu:v5e:2x2 --no-check | FileCheck %s
// RUN: %reshard-opt %s --synthesize-collectives --compile-for=cpu:4 --no-check | FileCheck %s --check-prefix=CPU
// RUN: %reshard-opt %s --topology=v5e:2x4 --pass-pipeline='builtin.module(synthesize-collectives)' --dump-pass-pipeline -o /dev/null 2>&1 | FileCheck %s --check-prefix=OF-NETWORK
// RUN: %reshard-opt %s --topology=v5e:2x4 --pass-pipeline='builtin.module(synthesize-collectives{platform=gpu})' --dump-pass-pipeline -o /dev/null 2>&1 | FileCheck %s --check-prefix=NAMED

// The network says which platform it is, where the pipeline does not.
// OF-NETWORK: synthesize-collectives{platform=tpu topology=v5e:2x4}
// NAMED: synthesize-collectives{platform=gpu topology=v5e:2x4}

// A TPU's compiler gathers along any dimension; CPU devices join tiles along the leading one, and copy.

#columns = #sdy.sharding<@mesh, [{}, {"x"}]>
#whole = #sdy.sharding<@mesh, [{}, {}]>

module attributes {reshard.findings = {sites = 1 : i64, skipped = [], version = 1 : i64}} {
sdy.mesh @mesh = <["x"=2, "y"=2]>

// CHECK-LABEL: func.func @columns_are_gathered(
// CHECK: (%arg1: tensor<8x2xf32>)
// CHECK-NEXT: "stablehlo.all_gather"(%arg1) <{all_gather_dim = 1 : i64
// CHECK-NEXT: sdy.return
// CPU-LABEL: func.func @columns_are_gathered(
// CPU: "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64
// CPU: stablehlo.transpose
func.func @columns_are_gathered(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> {reshard.operand_sites = [{kind = "constraint", operand = 0 : i64, site = 0 : i64, source = #columns, target = #whole, why = "", verdict = "rewrite"}]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
}
