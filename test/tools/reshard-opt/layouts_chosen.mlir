// RUN: %reshard-opt %s --split-input-file --topology v5e:2x4 --layouts chosen --remarks all --report text 2>%t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=SAID < %t.err
// RUN: %reshard-opt %s --split-input-file --topology v5e:2x4 --layouts chosen --no-check --remarks all 2>&1 >%t.mlir | FileCheck %s --check-prefix=LEFT

// Nothing is split along "model", so that devices along it all do the same. With chosen layouts they share the rows,
// and callers see no difference. The program is too large for a run that compares values, so no op is left to XLA.

// CHECK-LABEL: module
// CHECK: func.func @main(%arg0: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// CHECK-SAME: -> (tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK: sdy.manual_computation(%arg0, %arg1, %arg2)
// CHECK: stablehlo.dot_general {{.*}} -> tensor<1024x4096xf32>
// CHECK: stablehlo.all_gather
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7]]>

// SAID: the whole module is written per device: {{XLA is not known to be right with chosen layouts: a run takes|modelled time}}
// SAID: remark: layouts between arguments and results are chosen: modelled time {{.*}} us with chosen layouts, {{.*}} us with those of propagation

// LEFT: remark: layouts between arguments and results stay: nothing is measured as a whole
// LEFT-NOT: are chosen
sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(%x: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %up: tensor<1024x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %down: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x4096xf32>) -> tensor<8192x4096xf32>
  %1 = stablehlo.tanh %0 : tensor<8192x4096xf32>
  %2 = stablehlo.dot_general %1, %down, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x1024xf32>) -> tensor<8192x1024xf32>
  return %2 : tensor<8192x1024xf32>
}

// -----

// Everything is split already.

// SAID: remark: layouts between arguments and results stay: modelled time {{.*}} us either way
// SAID: layouts between arguments and results are chosen, by 2 constraints; sites are those of these layouts
sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(%x: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) -> (tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) {
  %0 = stablehlo.tanh %x : tensor<8192x1024xf32>
  return %0 : tensor<8192x1024xf32>
}
