// RUN: %reshard-opt %s --policy=always --no-remarks -o %t
// RUN: FileCheck %s --input-file %t
// RUN: %reshard-opt %t --no-remarks | diff %t -

// The default pipeline imports GSPMD's shardings and rewrites; its own output it leaves alone.

// CHECK:      sdy.mesh @mesh = <["axis_0"=4, "axis_1"=2]>
// CHECK:      func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {"axis_1"}]>})
// CHECK-SAME:   -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}, {"axis_0"}]>}) {
// CHECK:      sdy.manual_computation
// CHECK-NOT:  mhlo.sharding
func.func public @main(%arg0: tensor<16x16xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"})
    -> (tensor<16x16xf32> {mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0)}"}) {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
