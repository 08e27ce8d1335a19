# SPDX-License-Identifier: Apache-2.0
"""How often a `stablehlo.while` runs its body, where that follows from constants."""

from __future__ import annotations

from ..platform.bindings import ir
from .ops import CONSTANTS, producer_of, terminator_of

_UNKNOWN = 1


def trips_of(loop: ir.Operation) -> int:
    """Returns the number of iterations; 1 if it is not known.

    Known are loops that count a carried scalar up by a constant, from a constant, while it is below a constant.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = producer_of(terminator_of(condition).operands[0])
    if (
        compare is None
        or compare.name != "stablehlo.compare"
        or "LT" not in str(compare.attributes["comparison_direction"])
    ):
        return _UNKNOWN
    counter, end = compare.operands[0], _constant(compare.operands[1])
    if not isinstance(counter.owner, ir.Block) or end is None:
        return _UNKNOWN
    number = ir.BlockArgument(counter).arg_number
    start, step = _constant(loop.operands[number]), _step(body, number)
    if start is None or not step or step < 0:
        return _UNKNOWN
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
