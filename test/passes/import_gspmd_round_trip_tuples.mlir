// RUN: %reshard-opt %s --import-gspmd --no-remarks -o %t
// RUN: FileCheck %s --input-file %t
// RUN: %reshard-opt %t --import-gspmd | diff %t -

// HLO's custom calls return tuples; what is said of their results is said of the elements. LAPACK's calls have sharding rules.

module @linear_algebra attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2, \22y\22=4]>}"}} {
  // CHECK-LABEL: func.func @main
  func.func @main(%arg0: tensor<8x8xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22x\22}, {\22y\22}]>"}}) -> tensor<8x8xf32> {
    // CHECK-NEXT: %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%arg0) {
    // CHECK-SAME:   backend_config = {uplo = 76 : ui8}
    // CHECK-SAME:   sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([k, l], []) {i=8, j=8, k=8, l=8}, custom>
    // CHECK-SAME: : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i32>)
    %0 = stablehlo.custom_call @lapack_spotrf_ffi(%arg0) {api_version = 4 : i32, backend_config = {uplo = 76 : ui8}, mhlo.frontend_attributes = {num_batch_dims = "0", xla.sdy.sharding_rule = "#sdy.op_sharding_rule<([i, j])->([k, l], []) {i=8, j=8, k=8, l=8}, custom>"}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>], result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]} : (tensor<8x8xf32>) -> tuple<tensor<8x8xf32>, tensor<i32>>
    %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<8x8xf32>, tensor<i32>>) -> tensor<8x8xf32>
    // CHECK-NEXT: %1 = stablehlo.tanh %0#0
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    // CHECK-NEXT: %2:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%1)
    // CHECK-SAME: sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>, <@mesh, [{}, {"x"}]>]>
    %3 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%2) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22y\22}, {}]>, <@mesh, [{}, {\22x\22}]>]>"}} : (tensor<8x8xf32>) -> tuple<tensor<8x8xf32>, tensor<8x8xf32>>
    %4 = stablehlo.get_tuple_element %3[1] : (tuple<tensor<8x8xf32>, tensor<8x8xf32>>) -> tensor<8x8xf32>
    // CHECK-NEXT: return %2#1
    return %4 : tensor<8x8xf32>
  }
}
