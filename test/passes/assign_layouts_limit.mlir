// RUN: not %reshard-opt %s --auto-partition --mesh x=8 --memory-limit 1KiB 2>&1 | FileCheck %s
// RUN: not %reshard-opt %s --mesh x=8 2>&1 | FileCheck %s --check-prefix=ALONE
// RUN: not %reshard-opt %s --auto-partition --mesh x=8,x=2 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: %reshard-opt %s --auto-partition --mesh x=7 --no-check 2>&1 >/dev/null | FileCheck %s --check-prefix=NONE

// What cannot be is said, with the next thing to do.

// CHECK: error: no layout fits into 1.0 KiB: with every tensor split over all of <["x"=8]> that can be, at least 64.0 KiB are alive at once; allow 64KiB or more, or use more devices, a smaller batch, or donate arguments
// ALONE: error: --mesh needs --auto-partition
// TWICE: error: argument --mesh: mesh axis "x" is declared twice
// NONE: warning: axis x of size 7 splits nothing: devices along it all do the same
func.func public @main(%arg0: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %0 : tensor<256x256xf32>
}
