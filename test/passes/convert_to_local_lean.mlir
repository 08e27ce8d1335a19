// RUN: %reshard-opt %s --convert-to-local=topology=h100:2x4 | FileCheck %s --check-prefixes=CHECK,FAST
// RUN: %reshard-opt %s --convert-to-local='topology=h100:2x4 lean=true' | FileCheck %s --check-prefixes=CHECK,LEAN

// The gradient of an embedding. It is fastest to add up rows of a whole table on each device, and to sum the tables; with
// a little more time, rows are sent to the part of the table that they belong to, and no device has a whole table.

sdy.mesh @mesh = <["data"=2, "fsdp"=2, "tensor"=2]>

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.scatter
// FAST: }) : (tensor<2048x256xf32>, {{.*}}) -> tensor<2048x256xf32>
// FAST: stablehlo.all_reduce
// LEAN: }) : (tensor<2048x64xf32>, {{.*}}) -> tensor<2048x64xf32>
// LEAN-NOT: all_reduce
// CHECK: sdy.return
func.func @main(%rows: tensor<8x256x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "fsdp"}, {"tensor"}, {}]>},
    %where: tensor<8x256x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "fsdp"}, {"tensor"}, {}]>})
    -> (tensor<2048x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tensor"}, {"fsdp"}]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2048x256xf32>
  %0 = "stablehlo.scatter"(%zeros, %where, %rows) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<2048x256xf32>, tensor<8x256x1xi32>, tensor<8x256x256xf32>) -> tensor<2048x256xf32>
  return %0 : tensor<2048x256xf32>
}
