// RUN: %reshard-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(assign-layouts)'

// Nothing says on which devices the program is to run.
// expected-error @+1 {{the module has no mesh; name one, as with the option mesh=x=4,y=2, or --mesh x=4,y=2}}
module {
  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
}

// -----

// expected-error @+1 {{the module has 2 meshes; name one}}
module {
  sdy.mesh @one = <["x"=8]>
  sdy.mesh @other = <["x"=4]>
  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
}

// -----

// expected-error @+1 {{2 public functions; layouts are chosen for one program}}
module {
  sdy.mesh @mesh = <["x"=8]>
  func.func public @one(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
  func.func public @other(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
}

// -----

module {
  sdy.mesh @mesh = <["x"=8]>
  // expected-error @+1 {{splits by a part of an axis; the option annotations=free leaves such shardings out, as `reshard auto --free` does}}
  func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
}
