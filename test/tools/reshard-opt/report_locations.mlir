// RUN: %reshard-opt %s --policy=always --no-remarks --report=text -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %s --policy=always --no-remarks --report=text --report-locations=chain -o /dev/null 2>&1 | FileCheck %s --check-prefix=CHAIN
// RUN: %reshard-opt %s --policy=always --no-remarks --report=json -o /dev/null 2>&1 | FileCheck %s --check-prefix=JSON
// RUN: %reshard-opt %s --policy=always --no-remarks --report=details -o /dev/null 2>&1 | FileCheck %s --check-prefix=DETAILS

// Both constraints stand in one line of a helper: the report names the lines that call it, and the chain on demand.

// CHECK: 0* model.py:20:8 (constraint)
// CHECK: 2* model.py:30:8 (constraint)
// CHECK-NOT: at model.py:8:1 in wsc
// CHAIN: 0* model.py:20:8 (constraint)
// CHAIN: site 0: rewritten
// CHAIN: at model.py:8:1 in wsc
// CHAIN-NEXT: at model.py:20:8 in layer
// CHAIN-NEXT: site 1: rewritten
// JSON: "location": "model.py:20:8",
// JSON: "location_chain": [
// JSON: "function": "wsc",
// JSON-NEXT: "location": "model.py:8:1"
// DETAILS: calls {{ *}}model.py:8:1 wsc < model.py:20:8 layer
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32> loc(callsite("wsc"("model.py":8:1) at "layer"("model.py":20:8)))
  %1 = stablehlo.optimization_barrier %0 : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {}]> : tensor<8x8xf32> loc(callsite("wsc"("model.py":8:1) at "layer"("model.py":30:8)))
  return %2 : tensor<8x8xf32>
}
