# SPDX-License-Identifier: Apache-2.0
"""Numbers for the ops of a module that stay with them through XLA's partitioner.

XLA copies the name in an op's location into the metadata of every HLO instruction that it makes for the op. So a copy
of the module in which each location is a number tells for which op a collective was made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..ir.module_files import as_text
from ..ir.ops import ops_in
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir

_PREFIX = "reshard.op/"
_STRING_OR_UNKNOWN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|loc\(unknown\)')  # constants are strings of megabytes
_NUMBER = re.compile(re.escape(_PREFIX) + r"(\d+)")


class NumberedOps:
    """A module as text in which each location is a number, and the ops of the original by these numbers.

    Attributes:
      text: for XLA, and for passes that keep locations.
    """

    def __init__(self, module: ir.Module):
        clone = module.operation.clone().operation
        with module.context:
            run_pipeline(clone, "builtin.module(strip-debuginfo)")
            self.text = _numbered(as_text(clone, enable_debug_info=True, use_local_scope=True))
            self._copy = ir.Module.parse(self.text)
        self._ops: dict[int, ir.Operation] = {}
        self._numbers: list[tuple[str, int | None]] = []  # of each op, in their order, with its name
        for copy, original in zip(ops_in(self._copy.operation), ops_in(module.operation), strict=True):
            number = number_in(str(copy.location))
            self._numbers.append((original.name, number))
            if number is not None:  # ops inside a compactly printed region have the number of the op around them
                self._ops.setdefault(number, original)

    def of_name(self, name: str) -> ir.Operation | None:
        """Returns the op of the original that a name in a location, or in HLO metadata, stands for."""
        number = number_in(name)
        return None if number is None else self._ops.get(number)

    def all_of_name(self, name: str) -> list[ir.Operation]:
        """Returns the op that a name stands for, and the calls around it that the name tells, innermost first."""
        return [self._ops[number] for number in reversed(numbers_in(name)) if number in self._ops]

    def numbers_of(self, ops: Sequence[ir.Operation]) -> dict[ir.Operation, int] | None:
        """Returns the numbers of the ops of another module, in their order, which has the same ops as the original;
        None if it has others."""
        if [op.name for op in ops] != [name for name, _ in self._numbers]:
            return None
        return {op: number for op, (_, number) in zip(ops, self._numbers, strict=True) if number is not None}


def number_in(name: str) -> int | None:
    """Returns the number in a name; that of the innermost op if calls have put several into it.

    Example:
      >>> number_in("jit(f)/reshard.op/12/reshard.op/7"), number_in("dot_general")
      (7, None)
    """
    found = numbers_in(name)
    return found[-1] if found else None


def numbers_in(name: str) -> list[int]:
    """Returns the numbers in a name: of the calls around an op, outermost first, and of the op."""
    return list(map(int, _NUMBER.findall(name)))


def _numbered(text: str) -> str:
    """Returns a module's text with a number in the place of each unknown location.

    Example:
      >>> _numbered('func.call @f() {a = "loc(unknown)"} : () -> () loc(unknown) loc(unknown)')
      'func.call @f() {a = "loc(unknown)"} : () -> () loc("reshard.op/1") loc("reshard.op/2")'
    """
    count = 0

    def name(found: re.Match[str]) -> str:
        nonlocal count
        if found[0].startswith('"'):
            return found[0]
        count += 1
        return f'loc("{_PREFIX}{count}")'

    return _STRING_OR_UNKNOWN.sub(name, text)
