// RUN: %reshard-opt %s --no-remarks --report=text -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --no-remarks --report=json -o /dev/null 2>&1 | FileCheck %s --check-prefix=JSON
// RUN: %reshard-opt %s --no-remarks --report=details -o /dev/null 2>&1 | FileCheck %s --check-prefix=DETAILS
// RUN: %reshard-opt %S/../../../docs/tiny.mlir --find-mismatches --report=text -o /dev/null 2>&1 | FileCheck %s --check-prefix=FOUND

// Without a site, the report says that there is no mismatch only where none was skipped and none is unplanned.

// CHECK-NOT: every value is used in the layout
// CHECK: reshard: no site is planned, since what was found is left alone: 1 mismatch, listed below
// CHECK: left alone, by reason, with the first use of each (--remarks=all lists every use):
// CHECK-NEXT: 1 use: it is [{"x"}, {"y"}] on <["x"=4, "y"=2]>, and the op computes
// CHECK-NEXT: operand 0 of tanh{{$}}
// JSON: "no_site": "no site is planned, since what was found is left alone: 1 mismatch
// DETAILS: No site is planned, since what was found is left alone: 1 mismatch
// FOUND: reshard: 1 site found, and none planned: the pipeline has no plan-sites
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["u"=2, "v"=4]>
func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<16x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@other, [{"u"}, {"v"}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}
