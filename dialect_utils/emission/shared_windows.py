# SPDX-License-Identifier: Apache-2.0
"""Barriers between users of one value that look through windows, if XLA would give one user the padding of another.

XLA extends a tile by its neighbours' elements for each op that looks through windows (pad, reduce_window, convolution,
select_and_scatter), and reuses the extended tile for the next such op on the same value. XLA ignores the values that
fill the windows: two pads by 1 and -7 of one value both get ones, and a running sum and a running maximum both start
with zeros. Seen with jaxlib 0.10.2. If a program has a constraint for each user, XLA sees different values. An island
that serves both uses makes them one value; so does a constraint on the layout of their results. A barrier for each
further user separates the values again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, stablehlo

_PAD, _REDUCE_WINDOW = "stablehlo.pad", "stablehlo.reduce_window"
WINDOWED = frozenset({_PAD, _REDUCE_WINDOW, "stablehlo.select_and_scatter", "stablehlo.convolution"})
_CONSTRAINT, _CALL = "sdy.sharding_constraint", "func.call"

_Use = tuple[ir.Operation, int, tuple]  # an op, the number of its operand, a key of the values that fill its windows


def separate_users(module: ir.Module) -> int:
    """Puts barriers between values and the users that XLA would confuse, in a module with rewritten sites.

    Values that do not come from an island are checked, too. XLA may compute their users correctly in the original,
    because it splits one of them in another way, and wrongly after layouts of their results are fixed.

    Returns: the number of barriers.
    """
    ops = ops_in(module.operation)
    fillings = {_filling_of(op, 0) for op in ops if op.name in WINDOWED}
    if len(fillings) < 2 and not any(
        isinstance(each, ir.Value) for each in fillings
    ):  # an argument of a function may have several values
        return 0
    windows = _Windows(module)
    arguments = [argument for op in ops for region in op.regions for block in region for argument in block.arguments]
    values = [*arguments, *(result for op in ops for result in op.results if op.name != _CONSTRAINT)]
    return sum(_keep_apart(windows.uses_of(value)) for value in values)


def are_confused(module: ir.Module, values: Iterable[ir.Value]) -> bool:
    """Returns whether XLA would give one user of a value the padding of another user."""
    windows = _Windows(module)
    return any(len({filling for *_, filling in windows.uses_of(value)}) > 1 for value in values)


def _keep_apart(uses: Iterable[_Use]) -> int:
    by_filling: dict[tuple, list[_Use]] = {}
    for use in uses:
        by_filling.setdefault(use[2], []).append(use)
    others = [use for alike in list(by_filling.values())[1:] for use in alike]
    for user, number, _ in others:
        with ir.InsertionPoint(user), user.location:
            user.operands[number] = stablehlo.OptimizationBarrierOp([user.operands[number]]).results[0]
    return len(others)


class _Windows:
    """Finds the uses of values through windows.

    State: `_inside` holds for an argument of a function, by name and number, the values that fill the windows on it.
    """

    def __init__(self, module: ir.Module):
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        self._functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in functions}
        self._inside: dict[tuple[str, int], tuple] = {}

    def uses_of(self, value: ir.Value) -> list[_Use]:
        """Returns the uses of a value through windows, also behind constraints on it and inside called functions."""
        found = []
        for use in reversed(list(value.uses)):  # MLIR lists the last use first
            user, number = use.owner.operation, use.operand_number
            if user.name == _CONSTRAINT:
                found += self.uses_of(user.results[0])
            elif user.name == _CALL:
                inside = self._fillings_in(ir.FlatSymbolRefAttr(user.attributes["callee"]).value, number)
                others = [
                    _identity(each) for at, each in enumerate(user.operands) if at != number
                ]  # this operand may fill the windows
                found += [(user, number, (*inside, *others))] if inside else []
            elif user.name in WINDOWED and number < _sources(user):
                found.append((user, number, (_filling_of(user, number),)))
        return found

    def _fillings_in(self, callee: str, number: int) -> tuple:
        key = callee, number
        if key not in self._inside:
            self._inside[key] = ()
            blocks = list(self._functions[callee].regions[0].blocks)
            uses = self.uses_of(blocks[0].arguments[number]) if blocks else []
            self._inside[key] = tuple(dict.fromkeys(filling for *_, filling in uses))
        return self._inside[key]


def _sources(op: ir.Operation) -> int:
    """Returns the number of operands that an op reads through windows."""
    if op.name == _REDUCE_WINDOW:
        return len(op.operands) // 2
    return 1 if op.name == _PAD else 2


def _filling_of(op: ir.Operation, number: int) -> object:
    """Returns the value that fills an op's windows, equal for equal constants; None for zeros."""
    if op.name == "stablehlo.convolution":
        return None
    start = op.operands[number + _sources(op)] if op.name == _REDUCE_WINDOW else op.operands[len(op.operands) - 1]
    return _identity(start)


def _identity(value: ir.Value) -> object:
    """Returns the value, or the text of a constant. The bindings cannot read complex constants as attributes."""
    producer = producer_of(value)
    if producer is None or producer.name != "stablehlo.constant":
        return value
    return str(producer).partition(" dense")[2]
