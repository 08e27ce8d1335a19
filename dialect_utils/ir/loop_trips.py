# SPDX-License-Identifier: Apache-2.0
"""How often a `stablehlo.while` runs its body, where that follows from constants, and how often ops run in a step."""

from __future__ import annotations

import contextlib
import functools
import graphlib
from dataclasses import dataclass

from ..platform.bindings import ir
from .ops import CONSTANTS, LOOPS, ops_around, ops_in, producer_of, terminator_of

# Ops that run a function, and the attribute with its name.
_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_FUNCTION = "func.func"
ASSUMED_TRIPS = 8  # of a loop of which nobody knows how often it turns


class Runs:
    """How often the ops of a module run in a step: once per trip of the loops around them, and per call.

    A branch counts as taken. The module must not change meanwhile.
    """

    def __init__(self, module: ir.Module):
        self._module = module

    def of(self, op: ir.Operation) -> int | None:
        """Returns the number of runs; None if it is not known, as in a function that calls itself."""
        function, runs = self._within(op)
        return None if function is None else _product(runs, self._of_functions.get(function))

    def _within(self, op: ir.Operation) -> tuple[str | None, int | None]:
        """Returns the name of the function of the module around an op, and how often the op runs in one run of it."""
        runs: int | None = 1
        for around in ops_around(op):
            if around.name in LOOPS:
                runs = _product(runs, known_trips_of(around))
            elif around.name == _FUNCTION:
                is_ours = around.parent is not None and around.parent == self._module.operation
                return (ir.StringAttr(around.attributes["sym_name"]).value if is_ours else None), runs
        return None, runs

    @functools.cached_property
    def _of_functions(self) -> dict[str, int | None]:
        """Returns how often each function of the module runs; those that call themselves are missing."""
        calls: dict[str, list[tuple[str | None, int | None]]] = {}
        for op in ops_in(self._module.operation):
            if op.name in _CALLS:
                callee = ir.FlatSymbolRefAttr(op.attributes[_CALLS[op.name]]).value
                calls.setdefault(callee, []).append(self._within(op))
        callers = {callee: {name for name, _ in found if name is not None} for callee, found in calls.items()}
        found: dict[str, int | None] = {}
        with contextlib.suppress(graphlib.CycleError):
            for name in graphlib.TopologicalSorter(callers).static_order():
                runs = [_product(inside, found.get(caller or "")) for caller, inside in calls.get(name, ())]
                found[name] = _sum(runs) if runs else 1
        for op in self._module.body.operations:
            if op.operation.name == _FUNCTION and (name := ir.StringAttr(op.attributes["sym_name"]).value) not in calls:
                found[name] = 1
        return found


def _product(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def _sum(runs: list[int | None]) -> int | None:
    return None if None in runs else sum(each for each in runs if each is not None)


def trips_of(loop: ir.Operation) -> int:
    """Returns the number of iterations; 1 if it is not known."""
    known = known_trips_of(loop)
    return 1 if known is None else known


@dataclass(frozen=True, slots=True)
class Counter:
    """A scalar that a loop carries, adds a constant to in each turn, and runs as long as it is below `end`.

    Attributes:
      number: which of the carried values it is.
      end: the bound, as the condition has it.
      step: what is added.
    """

    number: int
    end: ir.Value
    step: int


def counter_of(loop: ir.Operation) -> Counter | None:
    """Returns what a loop counts; None if it is not of this kind."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = producer_of(terminator_of(condition).operands[0])
    if (
        compare is None
        or compare.name != "stablehlo.compare"
        or "LT" not in str(compare.attributes["comparison_direction"])
    ):
        return None
    counter, end = compare.operands
    if not isinstance(counter.owner, ir.Block) or counter.owner != condition:
        return None
    number = ir.BlockArgument(counter).arg_number
    step = _step(body, number)
    return None if step is None else Counter(number, end, step)


def known_trips_of(loop: ir.Operation) -> int | None:
    """Returns the number of iterations; None if it is not known.

    Known are loops that count a carried scalar up by a constant, from a constant, while it is below a constant.
    """
    counter = counter_of(loop)
    if counter is None or counter.step <= 0:
        return None
    start, end = constant_integer(loop.operands[counter.number]), constant_integer(counter.end)
    if start is None or end is None or end - 1 + counter.step > _largest(loop.operands[counter.number].type):
        return None
    return max(0, -(-(end - start) // counter.step))


def _largest(kind: ir.Type) -> int:
    """Returns the largest number of a type of integers."""
    element = ir.IntegerType(ir.ShapedType(kind).element_type)
    return (1 << element.width - (not element.is_unsigned)) - 1


def _step(body: ir.Block, number: int) -> int | None:
    add = producer_of(terminator_of(body).operands[number])
    if add is None or add.name != "stablehlo.add":
        return None
    one, other = add.operands
    for counter, step in ((one, other), (other, one)):
        if counter == body.arguments[number]:
            return constant_integer(step)
    return None


def counts_turns(loop: ir.Operation, number: int) -> bool:
    """Returns whether a scalar that a loop carries is the number of the turn, counted from 0."""
    return constant_integer(loop.operands[number]) == 0 and _step(loop.regions[1].blocks[0], number) == 1


def constant_integer(value: ir.Value) -> int | None:
    """Returns the number that a scalar is; None if it is no constant."""
    op = producer_of(value)
    if op is None or op.name not in CONSTANTS or ir.ShapedType(value.type).shape:
        return None
    attr = op.attributes["value"]
    return int(attr[0]) if isinstance(attr, ir.DenseIntElementsAttr) and has_readable_integers(attr) else None


def has_readable_integers(attr: ir.DenseIntElementsAttr) -> bool:
    """Returns whether the bindings read the elements: there are some, and they are not narrower than a byte."""
    kind = ir.ShapedType(attr.type)
    element = kind.element_type
    return isinstance(element, ir.IntegerType) and element.width in (1, 8, 16, 32, 64) and 0 not in kind.shape
