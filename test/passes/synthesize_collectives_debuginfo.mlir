// RUN: %reshard-opt %s --policy=always --mlir-print-debuginfo | FileCheck %s

// The ops of an island carry the user's location under a name that says which site and step they are, for profiles.

// CHECK: [[USER:#loc[0-9]*]] = loc("model.py":12:5)
// CHECK: sdy.manual_computation
// CHECK-SAME: loc("model.py":12:5)
// CHECK-NEXT: stablehlo.reshape {{.*}} loc([[RELAYOUT:#loc[0-9]+]])
// CHECK-NEXT: stablehlo.transpose {{.*}} loc([[RELAYOUT]])
// CHECK-NEXT: "stablehlo.all_to_all"{{.*}} loc([[SWAP:#loc[0-9]+]])
// CHECK-NEXT: stablehlo.reshape {{.*}} loc([[SWAP]])
// CHECK-NEXT: sdy.return {{.*}} loc([[USER]])
// CHECK-NEXT: loc([[SITE:#loc[0-9]+]])
// CHECK: [[SITE]] = loc("reshard/0"([[USER]]))
// CHECK-NEXT: [[RELAYOUT]] = loc("reshard/0/relayout"([[USER]]))
// CHECK-NEXT: [[SWAP]] = loc("reshard/0/all_to_all"([[USER]]))
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x4xf32> loc("model.py":12:5)
  return %0 : tensor<8x4xf32>
}
