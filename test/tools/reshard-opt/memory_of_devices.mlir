// RUN: %reshard-opt %s --no-check --pass-pipeline='plan-sites{topology=h100:2x4}' --memory-limit=device --dump-pass-pipeline 2>&1 | FileCheck %s --check-prefix=NAMED
// RUN: %reshard-opt %s --no-check --emit=local --compile-for=tpu:v5e:2x4 --memory-limit=device --dump-pass-pipeline 2>&1 | FileCheck %s --check-prefix=TARGET
// RUN: not %reshard-opt %s --no-check --topology=cpu --memory-limit=device 2>&1 | FileCheck %s --check-prefix=OPEN
// RUN: not %reshard-opt %s --no-check --pass-pipeline='plan-sites{topology=h100:2x4},plan-sites{topology=v5e:2x4}' --memory-limit=device 2>&1 | FileCheck %s --check-prefix=TWO

// What a device has is that of the network that the passes are for: of --topology, of the pipeline, or of the target.

// NAMED: plan-sites{{.*}}memory-limit=60000000000
// TARGET: memory-limit=16911433728
// OPEN: error: --memory-limit: how many devices share this host's memory is not known on the network 'cpu'
// TWO: error: --memory-limit=device: the pipeline names several networks (h100:2x4, v5e:2x4); give --topology
sdy.mesh @mesh = <["x"=4, "y"=2]>

func.func @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
