// RUN: %reshard-opt %s -o %t
// RUN: diff %s %t
// RUN: %reshard-opt %s --emit-bytecode | %reshard-opt - --import-gspmd --no-remarks | FileCheck %s

// With nothing to rewrite, the shardings stay in the form in which they came.

// CHECK: sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {}]>
func.func   public @main(%arg0: tensor<16x16xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> (tensor<16x16xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>   // a comment
  return %0 : tensor<16x16xf32>
}
