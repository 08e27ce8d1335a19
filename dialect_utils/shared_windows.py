# SPDX-License-Identifier: Apache-2.0
"""Users of one value that need windows of it, kept apart where XLA would give one of them the other's padding.

XLA extends a tile by its neighbours' elements for each op that looks through windows (pad, reduce_window, convolution,
select_and_scatter), and keeps what it made for the next such op on the same value. It does not look at what the window is filled up
with: two pads by 1 and -7 of one value both get ones, and a running sum and a running maximum both start with zeros. Seen with
jaxlib 0.10.2. Where a program has a constraint for each user the values are different ones to XLA; an island that serves both uses makes
them one, and so does a layout that is held behind them. A barrier for each further user keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from .bindings import ir, stablehlo
from .ops import ops_in, producer_of

_PAD, _REDUCE_WINDOW = "stablehlo.pad", "stablehlo.reduce_window"
_WINDOWED = frozenset({_PAD, _REDUCE_WINDOW, "stablehlo.select_and_scatter", "stablehlo.convolution"})
_CONSTRAINT, _CALL = "sdy.sharding_constraint", "func.call"

_Use = tuple[ir.Operation, int, tuple]  # an op, the number of its operand, what tells apart what its windows are filled with


def keep_users_apart(module: ir.Module) -> int:
    """Puts barriers between values and those of their users that XLA would confuse; for a module in which something was rewritten.

    A value that no island gives is looked at, too: XLA may be right about its users as the module came, as it split one of them
    otherwise, and is no longer once layouts of their results are held.

    Returns: how many barriers.
    """
    ops = ops_in(module.operation)
    fillings = {_filling_of(op, 0) for op in ops if op.name in _WINDOWED}
    if len(fillings) < 2 and not any(isinstance(each, ir.Value) for each in fillings):  # an argument of a function may be many
        return 0
    windows = _Windows(module)
    arguments = [argument for op in ops for region in op.regions for block in region for argument in block.arguments]
    values = [*arguments, *(result for op in ops for result in op.results if op.name != _CONSTRAINT)]
    return sum(_keep_apart(windows.uses_of(value)) for value in values)


def are_confused(module: ir.Module, values: Iterable[ir.Value]) -> bool:
    """Returns whether XLA would give one user of a value the padding of another."""
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

    State: `_inside` has for an argument of a function, by name and number, what the windows on it are filled with.
    """

    def __init__(self, module: ir.Module):
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        self._functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in functions}
        self._inside: dict[tuple[str, int], tuple] = {}

    def uses_of(self, value: ir.Value) -> list[_Use]:
        """Returns the uses of a value through windows. Constraints on it are looked through, and so are functions that are called."""
        found = []
        for use in reversed(list(value.uses)):  # the last one is the first of the list
            user, number = use.owner.operation, use.operand_number
            if user.name == _CONSTRAINT:
                found += self.uses_of(user.results[0])
            elif user.name == _CALL:
                inside = self._fillings_in(ir.FlatSymbolRefAttr(user.attributes["callee"]).value, number)
                others = [_identity(each) for at, each in enumerate(user.operands) if at != number]  # may be what fills up
                found += [(user, number, (*inside, *others))] if inside else []
            elif user.name in _WINDOWED and number < _sources(user):
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
    """Returns how many operands of an op are looked at through windows."""
    if op.name == _REDUCE_WINDOW:
        return len(op.operands) // 2
    return 1 if op.name == _PAD else 2


def _filling_of(op: ir.Operation, number: int) -> object:
    """Returns what an op fills its windows with, so that equal constants are equal; None for zeros."""
    if op.name == "stablehlo.convolution":
        return None
    start = op.operands[number + _sources(op)] if op.name == _REDUCE_WINDOW else op.operands[len(op.operands) - 1]
    return _identity(start)


def _identity(value: ir.Value) -> object:
    """Returns the value, or the text of a constant."""
    producer = producer_of(value)
    return str(producer.attributes["value"]) if producer is not None and producer.name == "stablehlo.constant" else value
