// RUN: %reshard-opt %s --convert-to-local --report=json -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --mlir-print-debuginfo --mlir-print-local-scope | \
// RUN:   FileCheck %s --check-prefix=WRITTEN

// An argument has no place in the program; what is said of its change of layout is where the op is that asks for it.

sdy.mesh @mesh = <["x"=4]>

// CHECK: "location": "step.py:7:3"
// WRITTEN-LABEL: @main
// WRITTEN: "stablehlo.all_to_all"{{.*}} loc("reshard/0/all_to_all"("step.py":7:3))
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc(unknown),
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>} loc(unknown))
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.add %a, %b {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32> loc("step.py":7:3)
  return %0 : tensor<8x8xf32>
}

// JAX writes functions of its own with names of ops alone; an op in them is where they are called from.

// CHECK: "location": "step.py:9:5"
// WRITTEN-LABEL: @calls_library
// WRITTEN: "stablehlo.all_to_all"{{.*}} loc("reshard/{{[0-9]+}}/all_to_all"({{.*}}"step.py":9:5))
func.func @calls_library(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc(unknown))
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = call @outer(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("jit(outer)"("step.py":9:5))
  return %0 : tensor<8x8xf32> loc(unknown)
}
func.func private @outer(%a: tensor<8x8xf32> loc(unknown)) -> tensor<8x8xf32> {
  %0 = call @inner(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("jit(inner)")
  return %0 : tensor<8x8xf32> loc(unknown)
}
func.func private @inner(%a: tensor<8x8xf32> loc(unknown)) -> tensor<8x8xf32> {
  %0 = "stablehlo.sort"(%a) <{dimension = 0 : i64}> ({
  ^bb0(%b: tensor<f32> loc(unknown), %c: tensor<f32> loc(unknown)):
    %1 = stablehlo.compare LT, %b, %c : (tensor<f32>, tensor<f32>) -> tensor<i1> loc(unknown)
    stablehlo.return %1 : tensor<i1> loc(unknown)
  }) : (tensor<8x8xf32>) -> tensor<8x8xf32> loc("sort")
  return %0 : tensor<8x8xf32> loc(unknown)
}
