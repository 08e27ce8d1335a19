# SPDX-License-Identifier: Apache-2.0
"""Between which numbers the elements of an integer tensor lie, where that follows from the ops that compute them.

Interval arithmetic from a value back to constants, iotas, counters of loops and the bounds of types, through calls. A
sum or product that may leave its type wraps around, so it may be any number of the type. What nobody knows is any
number, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..platform.bindings import ir, stablehlo
from .functions import CALL, ENTRY, FUNCTION, calls_by_name, function_called, has_body, is_public, symbol
from .loop_trips import counter_of, has_readable_integers
from .ops import CONSTANTS, CONSTRAINTS, LOOPS, owner_of_argument, parent_of, producer_of, terminator_of

Range = tuple[int, int]  # the least and the largest number
_DEEPEST = 64  # ops behind one another that are looked at


def lies_inside(start: Range | None, most: int) -> bool:
    """Returns whether a start is known to lie between 0 and `most`, both inclusive."""
    return start is not None and 0 <= start[0] and start[1] <= most


@dataclass(slots=True)
class Ranges:
    """The ranges of values, each found once. The module must not change meanwhile.

    Attributes:
      known: what was found so far. A value that is being looked at has the range of its type there.
      depth: how many values are being looked at.
      calls: the calls of private functions by name, of each module that was looked at.
      given: the ranges of results of functions for the ranges of their arguments.
      along_known: what was found of single places, by value, dimension and place.
    """

    known: dict[ir.Value, Range] = field(default_factory=dict)
    depth: int = 0
    calls: dict[ir.Operation, dict[str, list[ir.Operation]]] = field(default_factory=dict)
    given: dict[tuple, Range | None] = field(default_factory=dict)
    along_known: dict[tuple[ir.Value, int, int], Range | None] = field(default_factory=dict)

    def of(self, value: ir.Value) -> Range | None:
        """Returns between which numbers all elements lie, both inclusive; None if they are no integers."""
        whole = range_of_type(value)
        if whole is None or self.depth == _DEEPEST:
            return whole
        if value not in self.known:
            self.known[value] = whole
            self.depth += 1
            op = producer_of(value)
            found = self._of_argument(value) if op is None else self._of_result(op, value)
            self.depth -= 1
            if found is not None and whole[0] <= found[0] and found[1] <= whole[1]:
                self.known[value] = found
        return self.known[value]

    def along(self, value: ir.Value, dimension: int, place: int) -> Range | None:
        """Returns the range of the elements at one place of a dimension, such as one component of starts."""
        whole, op = self.of(value), producer_of(value)
        is_static = ir.ShapedType(value.type).has_static_shape
        if whole is None or op is None or not is_static or self.depth == _DEEPEST:
            return whole
        key = value, dimension, place
        if key not in self.along_known:
            self.depth += 1
            found = self._of_slice(op, value, dimension, place) or whole
            self.depth -= 1
            both = max(found[0], whole[0]), min(found[1], whole[1])
            self.along_known[key] = both if both[0] <= both[1] else whole
        return self.along_known[key]

    def _of_slice(self, op: ir.Operation, value: ir.Value, dimension: int, place: int) -> Range | None:
        """Returns the range of what an op writes at one place of a dimension; None if it is that of all places."""
        if op.name in CONSTANTS:
            return _of_constant(op, (slice(None),) * dimension + (place,))
        if op.name == "stablehlo.iota" and dimension == ir.IntegerAttr(op.attributes["iota_dimension"]).value:
            inside = range_of_type(value)
            return (place, place) if inside is not None and place <= inside[1] else None  # what is more wraps around
        if op.name == "stablehlo.concatenate":
            return self._of_part(op, dimension, place)
        if op.name == "stablehlo.broadcast_in_dim":
            return self._of_broadcast(op, dimension, place)
        if op.name == "stablehlo.reshape":
            before = _same_dimension(op, dimension)
            return None if before is None else self.along(op.operands[0], before, place)
        if op.name in CONSTRAINTS:
            return self.along(op.operands[0], dimension, place)
        if op.name not in _BY_OPERANDS:
            return None
        rank, whole = ir.ShapedType(value.type).rank, range_of_type(value)
        ranges = [self.along(each, dimension, place) if _rank(each) == rank else self.of(each) for each in op.operands]
        known = [each for each in ranges if each is not None]
        found = _BY_OPERANDS[op.name](op, known) if len(known) == len(ranges) else None
        is_inside = found is not None and whole is not None and whole[0] <= found[0] and found[1] <= whole[1]
        return found if is_inside else None

    def _of_part(self, concatenate: ir.Operation, dimension: int, place: int) -> Range | None:
        if dimension != ir.IntegerAttr(concatenate.attributes["dimension"]).value:
            return None
        for operand in concatenate.operands:
            size = ir.ShapedType(operand.type).shape[dimension]
            if place < size:
                return self.along(operand, dimension, place)
            place -= size
        return None

    def _of_broadcast(self, broadcast: ir.Operation, dimension: int, place: int) -> Range | None:
        operand, dims = broadcast.operands[0], [*ir.DenseI64ArrayAttr(broadcast.attributes["broadcast_dimensions"])]
        if dimension not in dims:
            return None
        before = dims.index(dimension)
        return self.along(operand, before, min(place, ir.ShapedType(operand.type).shape[before] - 1))

    def _of_all(self, values: Sequence[ir.Value]) -> list[Range] | None:
        """Returns the range of each; None if one has none."""
        found = [each for value in values if (each := self.of(value)) is not None]
        return found if len(found) == len(values) else None

    def _of_result(self, op: ir.Operation, value: ir.Value) -> Range | None:
        if op.name in LOOPS:
            return self._of_carried(op, ir.OpResult(value).result_number, is_behind=True)
        if op.name == CALL:
            return self._of_call(op, ir.OpResult(value).result_number)
        if op.name in CONSTANTS:
            return _of_constant(op)
        if op.name == "stablehlo.iota":
            return _of_iota(op)
        if op.name in _LIKE_OPERANDS:
            ranges = self._of_all(_LIKE_OPERANDS[op.name](op, ir.OpResult(value).result_number))
            return None if ranges is None else _union(ranges)
        if op.name not in _BY_OPERANDS or (ranges := self._of_all(op.operands)) is None:
            return None
        return _BY_OPERANDS[op.name](op, ranges)

    def _of_argument(self, value: ir.Value) -> Range | None:
        op = owner_of_argument(value)
        if op.name == FUNCTION:
            operands = [call.operands[ir.BlockArgument(value).arg_number] for call in self._calls_of(op)]
            ranges = self._of_all(operands)
            return _union(ranges) if ranges else None
        if op.name not in LOOPS:
            return None
        is_of_condition = value.owner == op.regions[0].blocks[0]
        return self._of_carried(op, ir.BlockArgument(value).arg_number, is_behind=is_of_condition)

    def _of_carried(self, loop: ir.Operation, number: int, is_behind: bool) -> Range | None:
        """Returns the range of a carried value in the body of a loop, or in its condition and behind it."""
        start = self.of(loop.operands[number])
        body = loop.regions[1].blocks[0]
        if terminator_of(body).operands[number] == body.arguments[number]:
            return start
        counter = counter_of(loop)
        if start is None or counter is None or counter.number != number or counter.step <= 0:
            return None
        end, whole = self.of(counter.end), range_of_type(loop.operands[number])
        if end is None or whole is None or end[1] - 1 + counter.step > whole[1]:
            return None
        if is_behind:
            return start[0], max(start[1], end[1] - 1 + counter.step)
        return start[0], max(start[0], end[1] - 1)

    def _of_call(self, call: ir.Operation, number: int) -> Range | None:
        """Returns the range of a result of a function, if its arguments are as they are in this call."""
        function = function_called(call)
        if function is None or not has_body(function):
            return None
        block = function.regions[0].blocks[0]
        given = tuple(self.of(operand) for operand in call.operands)
        key = function, number, given
        if key not in self.given:
            self.given[key] = None  # what a function that calls itself gives there
            known = {argument: each for argument, each in zip(block.arguments, given) if each is not None}
            inside = Ranges(known, self.depth, self.calls, self.given)
            self.given[key] = inside.of(terminator_of(block).operands[number])
        return self.given[key]

    def _calls_of(self, function: ir.Operation) -> list[ir.Operation]:
        """Returns the calls of a function; none if others than `func.call` may run it."""
        if is_public(function) or symbol(function) == ENTRY:
            return []
        module = parent_of(function)
        if module not in self.calls:
            self.calls[module] = calls_by_name(module)
        return self.calls[module].get(symbol(function), [])


def range_of_type(value: ir.Value) -> Range | None:
    """Returns the numbers that the type of a value has; None if it is no tensor of integers."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    element = ir.ShapedType(value.type).element_type
    if not isinstance(element, ir.IntegerType):
        return None
    if element.width == 1:
        return 0, 1
    if element.is_unsigned:
        return 0, 2**element.width - 1
    return -(2 ** (element.width - 1)), 2 ** (element.width - 1) - 1


def _rank(value: ir.Value) -> int:
    return ir.ShapedType(value.type).rank


def _same_dimension(reshape: ir.Operation, dimension: int) -> int | None:
    """Returns which dimension of its operand a dimension of a reshape is; None if it has been cut or joined."""
    before, after = (ir.ShapedType(each.type).shape for each in (reshape.operands[0], reshape.results[0]))
    outer = math.prod(after[:dimension])
    same = (dim for dim, size in enumerate(before) if size == after[dimension] and math.prod(before[:dim]) == outer)
    return next(same, None)


def _union(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


# ---- what has no operands


def _of_constant(op: ir.Operation, part: tuple[slice | int, ...] = ()) -> Range | None:
    """Returns the range of a constant, or of a part of it."""
    attr = op.attributes["value"]
    if not isinstance(attr, ir.DenseIntElementsAttr) or not has_readable_integers(attr):
        return None
    if attr.is_splat:
        return int(attr[0]), int(attr[0])
    elements = np.array(attr)[part]
    return (int(elements.min()), int(elements.max())) if elements.size else None


def _of_iota(op: ir.Operation) -> Range:
    dimension = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    return 0, ir.ShapedType(op.results[0].type).shape[dimension] - 1


# ---- results whose elements are elements of operands


def _all(op: ir.Operation, _number: int) -> list[ir.Value]:
    return [*op.operands]


def _first(op: ir.Operation, _number: int) -> list[ir.Value]:
    return [op.operands[0]]


def _same(op: ir.Operation, number: int) -> list[ir.Value]:
    return [op.operands[number]]


def _two(op: ir.Operation, _number: int) -> list[ir.Value]:
    return [op.operands[0], op.operands[1]]


_LIKE_OPERANDS: dict[str, Callable[[ir.Operation, int], list[ir.Value]]] = {
    **{
        f"stablehlo.{name}": _first
        for name in ("reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "dynamic_slice", "gather")
    },
    **{name: _first for name in CONSTRAINTS},
    "stablehlo.concatenate": _all,
    "stablehlo.pad": _two,
    "stablehlo.dynamic_update_slice": _two,
    "stablehlo.optimization_barrier": _same,
}


# ---- results that are computed from operands, element by element


def _sum(_op: ir.Operation, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges
    return a + c, b + d


def _difference(_op: ir.Operation, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges
    return a - d, b - c


def _product(_op: ir.Operation, ranges: list[Range]) -> Range:
    one, other = ranges
    products = [a * b for a in one for b in other]
    return min(products), max(products)


def _quotient(_op: ir.Operation, ranges: list[Range]) -> Range | None:
    """Rounded towards zero."""
    (low, high), (least, most) = ranges
    if least <= 0:
        return None
    by = (least, most)
    quotients = [abs(a) // b * (1 if a >= 0 else -1) for a in (low, high) for b in by]
    return min(quotients), max(quotients)


def _rest(_op: ir.Operation, ranges: list[Range]) -> Range | None:
    """Has the sign of the dividend."""
    (low, high), (least, most) = ranges
    if least <= 0:
        return None
    return max(min(low, 0), 1 - most), min(max(high, 0), most - 1)


def _least(_op: ir.Operation, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges
    return min(a, c), min(b, d)


def _most(_op: ir.Operation, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges
    return max(a, c), max(b, d)


def _clamped(_op: ir.Operation, ranges: list[Range]) -> Range:
    """min(max(x, least), most), as StableHLO has it where the bounds cross, too."""
    least, x, most = ranges
    return min(max(x[0], least[0]), most[0]), min(max(x[1], least[1]), most[1])


def _conjunction(_op: ir.Operation, ranges: list[Range]) -> Range | None:
    """A number that is not negative has no bits above its own, and neither has what it lets through."""
    highs = [high for low, high in ranges if low >= 0]
    return (0, min(highs)) if highs else None


def _converted(_op: ir.Operation, ranges: list[Range]) -> Range:
    return ranges[0]


def _selected(_op: ir.Operation, ranges: list[Range]) -> Range:
    condition, chosen, other = ranges
    return _union([each for each, bit in ((chosen, 1), (other, 0)) if condition[0] <= bit <= condition[1]])


def _compared(op: ir.Operation, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    is_always, is_never = {
        "LT": (b < c, a >= d),
        "LE": (b <= c, a > d),
        "GT": (a > d, b <= c),
        "GE": (a >= d, b < c),
        "EQ": (a == b == c == d, b < c or d < a),
        "NE": (b < c or d < a, a == b == c == d),
    }[direction]
    return (1, 1) if is_always else (0, 0) if is_never else (0, 1)


_BY_OPERANDS: dict[str, Callable[[ir.Operation, list[Range]], Range | None]] = {
    "stablehlo.add": _sum,
    "stablehlo.subtract": _difference,
    "stablehlo.multiply": _product,
    "stablehlo.divide": _quotient,
    "stablehlo.remainder": _rest,
    "stablehlo.minimum": _least,
    "stablehlo.maximum": _most,
    "stablehlo.clamp": _clamped,
    "stablehlo.and": _conjunction,
    "stablehlo.convert": _converted,
    "stablehlo.select": _selected,
    "stablehlo.compare": _compared,
}
