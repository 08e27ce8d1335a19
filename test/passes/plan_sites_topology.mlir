// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always})' | FileCheck %s --check-prefix=ONE
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always topology=uniform})' | FileCheck %s --check-prefix=ONE
// RUN: %reshard-opt %s --no-remarks --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always topology=h100:2x2})' | FileCheck %s --check-prefix=TWO
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(find-mismatches,plan-sites{memory-limit=-1})' 2>&1 | FileCheck %s --check-prefix=NEGATIVE

// Plans are made for the network: over two nodes each device sends half as much over the slow link, and the devices of a
// node exchange the halves.

// ONE: chain = "all_gather node: dim 0",
// TWO: chain = "slice gpu: dim 0; all_gather node: dim 0, gpu: dim 0",
// NEGATIVE: error: {{.*}}memory-limit=-1 is negative; it is in bytes per device
sdy.mesh @mesh = <["node"=2, "gpu"=2]>
func.func @main(%arg0: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"node"}, {}]>})
    -> (tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  return %arg0 : tensor<1024x1024xf32>
}
