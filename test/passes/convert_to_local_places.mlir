// RUN: %reshard-opt %s --convert-to-local --report=json -o /dev/null 2>&1 | FileCheck %s

// An argument has no place in the program; what is said of its change of layout is where the op is that asks for it.

sdy.mesh @mesh = <["x"=4]>

// CHECK: "location": "step.py:7:3"
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc(unknown),
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>} loc(unknown))
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.add %a, %b {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32> loc("step.py":7:3)
  return %0 : tensor<8x8xf32>
}
