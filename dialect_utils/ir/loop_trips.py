# SPDX-License-Identifier: Apache-2.0
"""How often a `stablehlo.while` runs its body, where that follows from constants, and how often ops run in a step."""

from __future__ import annotations

import functools

from ..platform.bindings import ir
from .ops import CONSTANTS, LOOPS, ops_in, parent_of, producer_of, terminator_of

_CALL, _FUNCTION, _MODULE = "func.call", "func.func", "builtin.module"


class Runs:
    """How often the ops of a module run in a step: once per trip of the loops around them, and per call.

    A branch counts as taken. The module must not change meanwhile.
    """

    def __init__(self, module: ir.Module):
        self._module = module
        self._of_block: dict[ir.Block, int | None] = {}

    def of(self, op: ir.Operation) -> int | None:
        """Returns the number of runs; None if it is not known."""
        block = op.block
        if block not in self._of_block:
            self._of_block[block] = self._in(parent_of(op))
        return self._of_block[block]

    def _in(self, parent: ir.Operation) -> int | None:
        """Returns how often the ops in the regions of an op run."""
        if parent.name == _MODULE:
            return 1
        if parent.name == _FUNCTION:
            name = ir.StringAttr(parent.attributes["sym_name"]).value
            calls = self._calls.get(name)
            return 1 if calls is None else _sum([self.of(each) for each in calls])
        runs, trips = self.of(parent), known_trips_of(parent) if parent.name in LOOPS else 1
        return None if runs is None or trips is None else runs * trips

    @functools.cached_property
    def _calls(self) -> dict[str, list[ir.Operation]]:
        calls: dict[str, list[ir.Operation]] = {}
        for op in ops_in(self._module.operation):
            if op.name == _CALL:
                calls.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, []).append(op)
        return calls


def _sum(runs: list[int | None]) -> int | None:
    return None if None in runs else sum(each for each in runs if each is not None)


def trips_of(loop: ir.Operation) -> int:
    """Returns the number of iterations; 1 if it is not known."""
    known = known_trips_of(loop)
    return 1 if known is None else known


def known_trips_of(loop: ir.Operation) -> int | None:
    """Returns the number of iterations; None if it is not known.

    Known are loops that count a carried scalar up by a constant, from a constant, while it is below a constant.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = producer_of(terminator_of(condition).operands[0])
    if (
        compare is None
        or compare.name != "stablehlo.compare"
        or "LT" not in str(compare.attributes["comparison_direction"])
    ):
        return None
    counter, end = compare.operands[0], _constant(compare.operands[1])
    if not isinstance(counter.owner, ir.Block) or end is None:
        return None
    number = ir.BlockArgument(counter).arg_number
    start, step = _constant(loop.operands[number]), _step(body, number)
    if start is None or not step or step < 0:
        return None
    return max(0, -(-(end - start) // step))


def _step(body: ir.Block, number: int) -> int | None:
    add = producer_of(terminator_of(body).operands[number])
    if add is None or add.name != "stablehlo.add":
        return None
    one, other = add.operands
    for counter, step in ((one, other), (other, one)):
        if counter == body.arguments[number]:
            return _constant(step)
    return None


def _constant(value: ir.Value) -> int | None:
    op = producer_of(value)
    if op is None or op.name not in CONSTANTS:
        return None
    kind = ir.ShapedType(value.type)
    if kind.shape or not isinstance(kind.element_type, ir.IntegerType):
        return None
    return int(ir.DenseIntElementsAttr(op.attributes["value"])[0])
