// RUN: %reshard-opt %S/remarks.mlir --no-remarks --report=text -o /dev/null 2>&1 | FileCheck %s
// RUN: %reshard-opt %S/remarks.mlir --remarks=all --report=text --report-file=%t.txt -o /dev/null 2>/dev/null
// RUN: FileCheck %s --input-file %t.txt --check-prefix=ALL
// RUN: %reshard-opt %S/remarks.mlir --no-remarks --report=details -o /dev/null 2>&1 | FileCheck %s --check-prefix=DETAILS
// RUN: %reshard-opt %S/remarks.mlir --no-remarks --report=html -o /dev/null 2>&1 | FileCheck %s --check-prefix=PAGE
// RUN: %reshard-opt %S/remarks.mlir --no-remarks --report=json -o /dev/null 2>&1 | FileCheck %s --check-prefix=JSON

// Reports count the uses that are left alone by reason, and tell the first of each; the whole list is there on demand.

// CHECK: left alone, by reason, with the first use of each
// CHECK-NEXT: 3 uses: it is … on …, and the op computes … on …; Shardy converts no operand
// CHECK-NEXT: remarks.mlir:27:{{[0-9]+}}: operand 0 of tanh: it is [{"x"}, {"y"}] on
// CHECK-NEXT: 1 use: a constant is made in any layout without traffic
// CHECK-NEXT: operand 1 of add{{$}}
// CHECK-NOT: negate
// ALL: {{^}}left alone:
// ALL-NEXT: operand 0 of tanh is left alone
// ALL-NEXT: operand 0 of negate is left alone
// ALL: operand 0 of tanh is left alone
// DETAILS: remarks by reason, with the first of each
// DETAILS-NEXT: 3 remarks: it is
// DETAILS-NOT: negate is left alone
// PAGE: <h2>Remarks</h2>
// PAGE: <td class="n">3</td><td>it is
// PAGE: negate is left alone
// JSON: "reasons": [
// JSON: "count": 3,
// JSON-NEXT: "is_left_alone": true,
