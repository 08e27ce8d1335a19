// RUN: %reshard-opt %s --split-input-file --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings)' | FileCheck %s

// Each type of element moves as it is.

sdy.mesh @mesh = <["x"=4, "y"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK: (tensor<4x2x3xbf16>) -> tensor<4x2x3xbf16>
// CHECK: (tensor<4x2x3xf16>) -> tensor<4x2x3xf16>
// CHECK: (tensor<4x2x3xf64>) -> tensor<4x2x3xf64>
// CHECK: (tensor<4x2x3xf8E4M3FN>) -> tensor<4x2x3xf8E4M3FN>
// CHECK: (tensor<4x2x3xf8E5M2>) -> tensor<4x2x3xf8E5M2>
// CHECK: (tensor<4x2x3xf8E4M3>) -> tensor<4x2x3xf8E4M3>
// CHECK: (tensor<4x2x3xf8E3M4>) -> tensor<4x2x3xf8E3M4>
// CHECK: (tensor<4x2x3xf8E4M3FNUZ>) -> tensor<4x2x3xf8E4M3FNUZ>
// CHECK: (tensor<4x2x3xf8E5M2FNUZ>) -> tensor<4x2x3xf8E5M2FNUZ>
// CHECK: (tensor<4x2x3xf8E4M3B11FNUZ>) -> tensor<4x2x3xf8E4M3B11FNUZ>
// CHECK: (tensor<4x2x3xf8E8M0FNU>) -> tensor<4x2x3xf8E8M0FNU>
// CHECK: (tensor<4x2x3xf4E2M1FN>) -> tensor<4x2x3xf4E2M1FN>
// CHECK: (tensor<4x2x3xi1>) -> tensor<4x2x3xi1>
// CHECK: (tensor<4x2x3xi4>) -> tensor<4x2x3xi4>
// CHECK: (tensor<4x2x3xui4>) -> tensor<4x2x3xui4>
// CHECK: (tensor<4x2x3xi8>) -> tensor<4x2x3xi8>
// CHECK: (tensor<4x2x3xui8>) -> tensor<4x2x3xui8>
// CHECK: (tensor<4x2x3xi16>) -> tensor<4x2x3xi16>
// CHECK: (tensor<4x2x3xui16>) -> tensor<4x2x3xui16>
// CHECK: (tensor<4x2x3xui32>) -> tensor<4x2x3xui32>
// CHECK: (tensor<4x2x3xi64>) -> tensor<4x2x3xi64>
// CHECK: (tensor<4x2x3xui64>) -> tensor<4x2x3xui64>
// CHECK: (tensor<4x2x3xcomplex<f32>>) -> tensor<4x2x3xcomplex<f32>>
// CHECK: (tensor<4x2x3xcomplex<f64>>) -> tensor<4x2x3xcomplex<f64>>
func.func public @main(%arg0: tensor<8x12xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x12xf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<8x12xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<8x12xf8E4M3FN> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg4: tensor<8x12xf8E5M2> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg5: tensor<8x12xf8E4M3> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg6: tensor<8x12xf8E3M4> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg7: tensor<8x12xf8E4M3FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg8: tensor<8x12xf8E5M2FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg9: tensor<8x12xf8E4M3B11FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg10: tensor<8x12xf8E8M0FNU> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg11: tensor<8x12xf4E2M1FN> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg12: tensor<8x12xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg13: tensor<8x12xi4> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg14: tensor<8x12xui4> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg15: tensor<8x12xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg16: tensor<8x12xui8> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg17: tensor<8x12xi16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg18: tensor<8x12xui16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg19: tensor<8x12xui32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg20: tensor<8x12xi64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg21: tensor<8x12xui64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg22: tensor<8x12xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg23: tensor<8x12xcomplex<f64>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x12xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E4M3FN> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E5M2> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E4M3> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E3M4> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E4M3FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E5M2FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E4M3B11FNUZ> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf8E8M0FNU> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xf4E2M1FN> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xi1> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xi4> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xui4> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xi8> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xui8> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xi16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xui16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xui32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xi64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xui64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x12xcomplex<f64>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15, %arg16, %arg17, %arg18, %arg19, %arg20, %arg21, %arg22, %arg23 : tensor<8x12xbf16>, tensor<8x12xf16>, tensor<8x12xf64>, tensor<8x12xf8E4M3FN>, tensor<8x12xf8E5M2>, tensor<8x12xf8E4M3>, tensor<8x12xf8E3M4>, tensor<8x12xf8E4M3FNUZ>, tensor<8x12xf8E5M2FNUZ>, tensor<8x12xf8E4M3B11FNUZ>, tensor<8x12xf8E8M0FNU>, tensor<8x12xf4E2M1FN>, tensor<8x12xi1>, tensor<8x12xi4>, tensor<8x12xui4>, tensor<8x12xi8>, tensor<8x12xui8>, tensor<8x12xi16>, tensor<8x12xui16>, tensor<8x12xui32>, tensor<8x12xi64>, tensor<8x12xui64>, tensor<8x12xcomplex<f32>>, tensor<8x12xcomplex<f64>>
}
