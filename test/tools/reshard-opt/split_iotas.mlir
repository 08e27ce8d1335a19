// RUN: %reshard-opt %s --no-check --split-input-file 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --no-check --split-input-file --report=text -o /dev/null 2>&1 | FileCheck %s --check-prefix=REPORT

// Iotas of which XLA's partitioner would round numbers twice are written as integers; others stay.

// REPORT: numbers of 2 iotas are written as integers: stock XLA rounds those of a part twice

// CHECK: split_iotas.mlir:{{[0-9]+}}:8: remark: the numbers of this iota are written as integers, then converted

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: @parts_have_numbers_that_the_type_does_not_hold
func.func public @parts_have_numbers_that_the_type_does_not_hold()
    -> (tensor<4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  // CHECK-NEXT: %[[NUMBERS:.*]] = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4096xi32>
  // CHECK-NEXT: %[[ROUNDED:.*]] = stablehlo.convert %[[NUMBERS]] {sdy.sharding = {{.*}}} : (tensor<4096xi32>) -> tensor<4096xbf16>
  // CHECK-NEXT: return %[[ROUNDED]]
  %0 = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4096xbf16>
  return %0 : tensor<4096xbf16>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: @the_layout_is_propagated
func.func public @the_layout_is_propagated(%a: tensor<8x104xf8E5M2> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> tensor<8x104xf8E5M2> {
  // CHECK-NEXT: stablehlo.iota dim = 1 : tensor<8x104xi32>
  // CHECK-NEXT: stablehlo.convert
  %0 = stablehlo.iota dim = 1 : tensor<8x104xf8E5M2>
  %1 = stablehlo.add %a, %0 : tensor<8x104xf8E5M2>
  return %1 : tensor<8x104xf8E5M2>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: @another_dimension_is_split
func.func public @another_dimension_is_split(%a: tensor<8x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> tensor<8x4096xbf16> {
  // CHECK-NEXT: stablehlo.iota dim = 1 : tensor<8x4096xbf16>
  %0 = stablehlo.iota dim = 1 : tensor<8x4096xbf16>
  %1 = stablehlo.add %a, %0 : tensor<8x4096xbf16>
  return %1 : tensor<8x4096xbf16>
}

// -----

// CHECK-LABEL: @nothing_is_split
func.func public @nothing_is_split() -> tensor<4096xbf16> {
  // CHECK-NEXT: stablehlo.iota dim = 0 : tensor<4096xbf16>
  %0 = stablehlo.iota dim = 0 : tensor<4096xbf16>
  return %0 : tensor<4096xbf16>
}
