// RUN: %reshard-opt %s --import-gspmd --no-remarks -o %t
// RUN: FileCheck %s --input-file %t
// RUN: %reshard-opt %t --import-gspmd | diff %t -

// XLA's round-trip form, as an HLO dump of a program with Shardy's shardings has it. GSPMD's shardings beside it are copies.

// CHECK:     module attributes {mhlo.is_dynamic = false} {
// CHECK:       sdy.mesh @mesh = <["x"=2, "y"=4]>
module attributes {mhlo.is_dynamic = false, mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2, \22y\22=4]>}"}} {
  // CHECK-NOT: manual_computation_body
  func.func private @xla.sdy.manual_computation_body.3(%arg0: tensor<4x2xf32>) -> tensor<4x2xf32> {
    %0 = stablehlo.tanh %arg0 : tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
  // CHECK:      func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y", ?}p1]>})
  // CHECK-SAME:   -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  func.func @main(%arg0: tensor<8x8xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22x\22}, {\22y\22, ?}p1]>"}, mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<8x8xf32> {
    // CHECK-NEXT: sdy.sharding_group %arg0 group_id=21
    %0 = stablehlo.custom_call @xla.sdy.ShardingGroup(%arg0) {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.sharding_group_id = "21 : i64"}} : (tensor<8x8xf32>) -> tuple<>
    // CHECK-NEXT: %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {"x"}]>
    %1 = stablehlo.custom_call @Sharding(%arg0) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22y\22}, {\22x\22}]>]>"}, mhlo.sharding = "{replicated}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // CHECK-NEXT: %1 = sdy.propagation_barrier %0 allowed_direction=NONE
    %2 = stablehlo.custom_call @xla.sdy.PropagationBarrier(%1) {mhlo.frontend_attributes = {xla.sdy.allowed_direction = "0 : i64"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // CHECK-NEXT: %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%arg1: tensor<4x2xf32>) {
    // CHECK-NEXT:   %3 = stablehlo.tanh %arg1
    // CHECK-NEXT:   sdy.return %3
    %3 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%2) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {\22y\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22, \22y\22}>"}} : (tensor<8x8xf32>) -> tensor<4x2xf32>
    %4 = func.call @xla.sdy.manual_computation_body.3(%3) : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %5 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%4) {mhlo.frontend_attributes = {xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22, \22y\22}>", xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {\22y\22}]>]>"}} : (tensor<4x2xf32>) -> tensor<8x8xf32>
    // CHECK: return %2
    %6 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%5) {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{}, {\22y\22}]>]>"}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %6 : tensor<8x8xf32>
  }
}
