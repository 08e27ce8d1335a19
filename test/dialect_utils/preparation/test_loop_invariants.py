# SPDX-License-Identifier: Apache-2.0
"""Loops capture the values that they carry unchanged, and a constraint opens those that have a sharding."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.loop_invariants import (
    capture_invariants,
    invariant_numbers,
    loops_with_results,
    open_captured,
)


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


LOOP = """
sdy.mesh @mesh = <["x"=2]>
func.func public @main(
    %i: tensor<i32>, %a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}
) -> tensor<4xf32> {
  %0:3 = stablehlo.while(%k = %i, %w = %a, %s = %a) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %k, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %n = stablehlo.add %k, %k : tensor<i32>
    %t = stablehlo.add %s, %w : tensor<4xf32>
    stablehlo.return %n, %w, %t : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#2 : tensor<4xf32>
}"""


def test_a_value_that_a_loop_carries_unchanged_is_captured_and_opened():
    module = ir.Module.parse(LOOP)
    (loop,) = loops_with_results(module.operation)
    assert invariant_numbers(loop) == [1]
    carried = capture_invariants([loop])
    argument = module.body.operations[1].regions[0].blocks[0].arguments[1]
    assert carried[loop.results[0]] == {argument: [1]}
    ((constraint, of_loop, numbers),) = open_captured([loop], carried)
    assert (constraint.name, of_loop, numbers) == ("sdy.sharding_constraint", loop, (1,))
    assert "[{?}]" in str(constraint.attributes["sharding"])
    (add,) = [op for op in ops_in(loop) if op.name == "stablehlo.add" and op.results[0].type == argument.type]
    assert add.operands[1] == constraint.results[0]
    assert module.operation.verify()
