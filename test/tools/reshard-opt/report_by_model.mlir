// RUN: %reshard-opt %s --no-remarks --decompose-collectives --topology=a2mega:4x4 --report=text -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --no-check --no-remarks --compile-for=tpu:v5e:2x4:2 --decompose-collectives --dump-pass-pipeline -o /dev/null 2>&1 | FileCheck %s --check-prefix=TARGET

// A pipeline without a pass that plans sites: nothing is compiled, and the network is that of the target.

// CHECK: the whole module: nothing measured; what is written here is decided by the model alone
// TARGET: decompose-collectives{{.*}}topology=v5e:2x4*2

func.func @main(%arg0: tensor<2048x2048xf32>) -> tensor<2048x2048xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>]
      manual_axes={"data"} (%arg1: tensor<2048x2048xf32>) {
    %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]> : tensor<1x16xi64>,
        use_global_device_ids}> ({
    ^bb0(%lhs: tensor<f32>, %rhs: tensor<f32>):
      %2 = stablehlo.add %lhs, %rhs : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
    sdy.return %1 : tensor<2048x2048xf32>
  } : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  return %0 : tensor<2048x2048xf32>
}
sdy.mesh @mesh = <["data"=16]>
