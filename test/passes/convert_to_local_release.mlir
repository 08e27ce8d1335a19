// RUN: %reshard-opt %s --convert-to-local=release=1 --report=text 2>&1 | FileCheck %s
// RUN: %reshard-opt %s '--convert-to-local=release=1 platform=tpu' | FileCheck %s --check-prefix=TPU
// RUN: %reshard-opt %s --convert-to-local | FileCheck %s --check-prefix=ONCE

// The rows are gathered for the first product and for the last one. In between, %z and what it is made of are held, so
// they are gathered a second time, once something from behind that moment is there.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @main(
// CHECK: %[[TILE:.*]] = stablehlo.tanh
// CHECK: "stablehlo.all_gather"(%[[TILE]])
// CHECK: stablehlo.popcnt
// CHECK: %[[BITS:.*]] = stablehlo.bitcast_convert %[[TILE]] : (tensor<16x64xf32>) -> tensor<16x64xi32>
// CHECK: %[[SAME:.*]] = stablehlo.xor %[[BITS]], %{{.*}} : tensor<16x64xi32>
// CHECK: %[[AGAIN:.*]] = stablehlo.bitcast_convert %[[SAME]] : (tensor<16x64xi32>) -> tensor<16x64xf32>
// CHECK: "stablehlo.all_gather"(%[[AGAIN]])
// CHECK: site 3: rewritten: the whole module is written per device; made again, so that less is held in memory

// TPU-LABEL: func.func @main(
// TPU: %[[WHOLE:.*]] = "stablehlo.all_gather"(%[[TILE:.*]]) <
// TPU: %[[BARRIER:.*]]:2 = stablehlo.optimization_barrier %[[TILE]], %{{.*}}
// TPU: "stablehlo.all_gather"(%[[BARRIER]]#0)

// ONCE-LABEL: func.func @main(
// ONCE-COUNT-1: "stablehlo.all_gather"
// ONCE-NOT: "stablehlo.all_gather"
func.func @main(
    %x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %w: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %v: tensor<512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %t = stablehlo.tanh %x : tensor<64x64xf32>
  %a = sdy.sharding_constraint %t <@mesh, [{}, {}]> : tensor<64x64xf32>
  %y = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  %yy = stablehlo.sine %y : tensor<64x512xf32>
  %z = stablehlo.dot_general %yy, %v, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x64xf32>) -> tensor<64x64xf32>
  %dy = stablehlo.dot_general %z, %v, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<512x64xf32>) -> tensor<64x512xf32>
  %dz = stablehlo.multiply %dy, %yy : tensor<64x512xf32>
  %e = stablehlo.dot_general %dz, %dz, contracting_dims = [1] x [1] : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x64xf32>
  %dw = stablehlo.dot_general %a, %dz, contracting_dims = [0] x [0] : (tensor<64x64xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  return %e, %dw : tensor<64x64xf32>, tensor<64x512xf32>
}
