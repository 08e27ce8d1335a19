// RUN: not %reshard-opt %s 2>&1 | FileCheck %s

// jaxlib has no quantized types: an error at the type says what to do.

// CHECK: quantized.mlir:7:{{.*}}error: `!"quant"<"uniform<i8:f32, 2.0:15>">` type created with unregistered dialect
// CHECK: note: the MLIR in jaxlib has no quantized types; lower them first: func.func(stablehlo-legalize-quant-to-math)
func.func @main(%arg0: tensor<16x!quant.uniform<i8:f32, 2.0:15>>) {
  return
}
