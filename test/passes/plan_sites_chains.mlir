// RUN: %reshard-opt %s --find-mismatches --plan-sites=policy=always | FileCheck %s

// Constraints of constraints: where nobody else looks at the layouts between, the last one names those that vanish in it.

sdy.mesh @mesh = <["x"=2, "y"=2]>

// The plan of the last is that of the whole chain, from "x" to columns by "y".
// CHECK-LABEL: func.func @nobody_looks_between(
// CHECK-NEXT: sdy.sharding_constraint %arg0 {{.*}}reason = "merged into site [[SITE:[0-9]+]]"
// CHECK-NEXT: sdy.sharding_constraint %0 {{.*}}chain = "slice y: dim 1; all_gather x: dim 0"{{.*}}merges = [{{[0-9]+}}], {{.*}}site = [[SITE]] : i64
func.func @nobody_looks_between(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @three_in_a_row(
// CHECK-NEXT: reason = "merged into site [[LAST:[0-9]+]]"
// CHECK-NEXT: reason = "merged into site [[LAST]]"
// CHECK-NEXT: merges = [{{[0-9]+}}, {{[0-9]+}}], {{.*}}site = [[LAST]] : i64
func.func @three_in_a_row(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// The ends agree: nothing is left to do.
// CHECK-LABEL: func.func @there_and_back(
// CHECK-NEXT: reason = "merged into site
// CHECK-NEXT: chain = "nothing", {{.*}}merges = [
func.func @there_and_back(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @somebody_looks_between(
// CHECK-NOT: merge
// CHECK: return
func.func @somebody_looks_between(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}

// The site of the first constraint has another edge: the second constraint like it is somebody, too.
// CHECK-LABEL: func.func @somebody_asks_for_the_same_layout(
// CHECK-NOT: merge
// CHECK: return
func.func @somebody_asks_for_the_same_layout(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  return %0, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}

// A branch may not be taken, so what is in front of it stays there.
// CHECK-LABEL: func.func @the_second_is_in_a_branch(
// CHECK-NOT: merge
// CHECK: return
func.func @the_second_is_in_a_branch(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<i32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %1 = "stablehlo.case"(%arg1) ({
    %2 = sdy.sharding_constraint %0 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
    stablehlo.return %2 : tensor<8x8xf32>
  }) : (tensor<i32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
