// RUN: %reshard-opt %s --pass-pipeline='builtin.module(canonicalize,cse)' -o %t
// RUN: diff %s %t
// RUN: %reshard-opt %s --pass-pipeline='builtin.module(canonicalize,cse)' --mlir-print-debuginfo | FileCheck %s

// A module that no pass changes is copied byte by byte: comments, spacing and value names stay.

// With other wishes for the output it is printed.
// CHECK: loc({{.*}}unchanged_input.mlir":

func.func   @keeps_its_spacing(%my_argument: tensor<4xf32>) -> tensor<4xf32> {
      return %my_argument : tensor<4xf32>   // and its comments
}
