# SPDX-License-Identifier: Apache-2.0
"""Which conversions are written once more, and where."""

import pytest

from reshard.dialect_utils.conversions.repeated import Candidate, chosen
from reshard.dialect_utils.platform.bindings import ir, make_context

# Each of %p and %q is made of a quarter of it, needed early and late; %full is the largest value, in the middle.
_TEXT = """
func.func @main(%a: tensor<8xf32>, %b: tensor<8x8xf32>) -> (tensor<32xf32>, tensor<32xf32>, tensor<f32>) {
  %p = stablehlo.custom_call @gather(%a) : (tensor<8xf32>) -> tensor<32xf32>
  %q = stablehlo.custom_call @gather(%a) : (tensor<8xf32>) -> tensor<32xf32>
  %e = stablehlo.custom_call @use(%p, %q) : (tensor<32xf32>, tensor<32xf32>) -> tensor<f32>
  %full = stablehlo.custom_call @make(%e) : (tensor<f32>) -> tensor<64xf32>
  %g = stablehlo.custom_call @use(%full) : (tensor<64xf32>) -> tensor<f32>
  %r = stablehlo.custom_call @use(%p, %g) : (tensor<32xf32>, tensor<f32>) -> tensor<32xf32>
  %s = stablehlo.custom_call @use(%q, %g) : (tensor<32xf32>, tensor<f32>) -> tensor<32xf32>
  return %r, %s, %g : tensor<32xf32>, tensor<32xf32>, tensor<f32>
}
"""


@pytest.fixture
def block():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_TEXT)
        yield module.body.operations[0].regions[0].blocks[0]


def _candidates(block, *seconds: float) -> list[Candidate]:
    made = [op.results[0] for op in list(block.operations)[:2]]
    return [Candidate(at, block.arguments[0], value, cost) for at, (value, cost) in enumerate(zip(made, seconds))]


@pytest.mark.parametrize(("seconds", "first"), [((1.0, 2.0), 0), ((2.0, 1.0), 1)])
def test_the_one_that_costs_less_is_repeated_first(block, seconds, first):
    ((found, gap),) = chosen(block, _candidates(block, *seconds), release_bytes=4 * 32)
    assert found.number == first
    assert gap.before == list(block.operations)[5 + first].operation and len(gap.uses) == 1
    assert gap.awaited == list(block.operations)[4].results[0]


def test_what_is_waited_for_comes_from_the_fullest_moment(block):
    ops = list(block.operations)
    number = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
    with ir.InsertionPoint(ops[5]):  # smaller, behind it in the text, and there at once
        early = ir.Operation.create("stablehlo.partition_id", [number])
        used = {"call_target_name": ir.StringAttr.get("use")}
        ir.Operation.create("stablehlo.custom_call", [], [early.results[0]], used)
    ((_, gap),) = chosen(block, _candidates(block, 1.0, 2.0), 1)
    assert gap.awaited in (ops[3].results[0], ops[4].results[0])


def test_of_two_conversions_in_a_row_one_is_repeated(block):
    first, second = list(block.operations)[:2]
    second.operands[0] = first.results[0]
    first.results[0].set_type(ir.RankedTensorType.get([16], ir.F32Type.get()))
    candidates = [
        Candidate(0, block.arguments[0], first.results[0], 1.0),
        Candidate(1, first.results[0], second.results[0], 1.0),
    ]
    assert len(chosen(block, candidates, 10**6)) == 1


def test_as_many_are_repeated_as_are_needed(block):
    candidates = _candidates(block, 1.0, 2.0)
    assert [len(chosen(block, candidates, each)) for each in (0, 1, 128, 129, 10**6)] == [0, 1, 1, 2, 2]


def test_what_is_needed_at_the_fullest_moment_stays(block):
    ops = list(block.operations)
    full = Candidate(0, block.arguments[0], ops[3].results[0], 1.0)
    behind = Candidate(1, block.arguments[0], ops[5].results[0], 1.0)
    assert not chosen(block, [full, behind], 10**6)


def test_nothing_is_repeated_whose_operand_is_as_large(block):
    large = block.arguments[1]  # of the caller, held anyway
    ops = list(block.operations)
    same = Candidate(0, ops[0].results[0], ops[1].results[0], 1.0)
    assert chosen(block, [Candidate(0, large, ops[1].results[0], 1.0)], 1)
    ops[6].operands[0] = ops[0].results[0]  # %q ends early, and is no candidate
    assert not chosen(block, [same], 1)
