# SPDX-License-Identifier: Apache-2.0
"""Numbers for the ops of a module that stay with them through XLA's partitioner.

XLA copies the name in an op's location into the metadata of every HLO instruction that it makes for the op. So a copy
of the module in which each location is a number tells for which op a collective was made.
"""

from __future__ import annotations

import re

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
        for copy, original in zip(ops_in(self._copy.operation), ops_in(module.operation), strict=True):
            number = number_in(str(copy.location))
            if number is not None:  # ops inside a compactly printed region have the number of the op around them
                self._ops.setdefault(number, original)

    def of_name(self, name: str) -> ir.Operation | None:
        """Returns the op of the original that a name in a location, or in HLO metadata, stands for."""
        number = number_in(name)
        return None if number is None else self._ops.get(number)

    def all_of_name(self, name: str) -> list[ir.Operation]:
        """Returns the op that a name stands for, and the calls around it that the name tells, innermost first."""
        numbers = map(int, reversed(_NUMBER.findall(name)))
        return [self._ops[number] for number in numbers if number in self._ops]


def number_in(name: str) -> int | None:
    """Returns the number in a name; that of the innermost op if calls have put several into it.

    Example:
      >>> number_in("jit(f)/reshard.op/12/reshard.op/7"), number_in("dot_general")
      (7, None)
    """
    found = _NUMBER.findall(name)
    return int(found[-1]) if found else None


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
