// RUN: %reshard-opt %s --convert-to-local | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --mlir-pass-statistics --report=json -o /dev/null 2>&1 | FileCheck %s --check-prefix=SAID

// What repeats a value is written once more in another layout of the dimensions that it adds: nothing is sent, and no
// part is cut out.

sdy.mesh @mesh = <["x"=4]>

// SAID-DAG: 1 repeated
// SAID-DAG: "why": "broadcast once more, in this layout"
// SAID-DAG: "chain": "no chain"

// CHECK-LABEL: func.func @two_layouts(
// CHECK: sdy.manual_computation{{.*}}, %[[V:[a-z0-9]+]]: tensor<64xf32>) {
// CHECK-DAG: stablehlo.broadcast_in_dim %[[V]], dims = [1] : (tensor<64xf32>) -> tensor<8x64xf32>
// CHECK-DAG: stablehlo.broadcast_in_dim %[[V]], dims = [1] : (tensor<64xf32>) -> tensor<32x64xf32>
// CHECK-NOT: all_gather
// CHECK-NOT: partition_id
// CHECK: sdy.return
func.func @two_layouts(
    %rows: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %whole: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %v: tensor<64xf32>)
    -> (tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<64xf32>) -> tensor<32x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<32x64xf32>
  %2 = stablehlo.multiply %rows, %1 : tensor<32x64xf32>
  %3 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<32x64xf32>
  %4 = stablehlo.multiply %whole, %3 : tensor<32x64xf32>
  return %2, %4 : tensor<32x64xf32>, tensor<32x64xf32>
}
