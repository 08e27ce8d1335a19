// RUN: %reshard-opt %s --pass-pipeline='builtin.module(canonicalize)' --allow-unregistered-dialect | FileCheck %s
// RUN: not %reshard-opt %s --pass-pipeline='builtin.module(canonicalize)' 2>&1 | FileCheck %s --check-prefix=REFUSED

// An op of a dialect that nobody registered is an error at its place, unless the flag lets it pass.

// CHECK: "alien.op"()
// REFUSED: unregistered_dialect.mlir:{{[0-9]+}}:{{[0-9]+}}: error:
func.func @main() {
  "alien.op"() : () -> ()
  return
}
