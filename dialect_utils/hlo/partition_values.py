# SPDX-License-Identifier: Apache-2.0
"""The integers that each partition computes from its number, such as where its part of an array begins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from .device_groups import integers
from .text import Computation, Instruction, shape_arrays

_SAME_VALUE = frozenset(("bitcast", "convert", "copy", "reshape"))
_ARITHMETIC = {
    "add": np.add,
    "and": np.bitwise_and,
    "divide": np.floor_divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "remainder": np.remainder,
    "subtract": np.subtract,
}
_NUMBERS = re.compile(r"[-\d,\s{}]+")


@dataclass
class PartitionValues:
    """The integers of one computation, each int64 with one number per partition."""

    computation: Computation
    num_partitions: int
    _found: dict[str, np.ndarray | None] = field(default_factory=dict)

    def of(self, name: str) -> np.ndarray | None:
        """Returns a value's number at each partition; None if it is no such number, or depends on more.

        Example:
          >>> from .text import parse_module
          >>> module = parse_module('''HloModule m, num_partitions=4
          ... ENTRY %main (p: f32[8]) -> s32[] {
          ...   %table = s32[4]{0} constant({0, 0, 8, 8})
          ...   %id = u32[] partition-id()
          ...   %row = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}
          ...   ROOT %offset = s32[] reshape(%row)
          ... }''')
          >>> PartitionValues(module.entry, 4).of("offset").tolist()
          [0, 0, 8, 8]
        """
        if name not in self._found:
            self._found[name] = None  # of a value that depends on itself, which is none
            instruction = self.computation.instructions.get(name)
            self._found[name] = None if instruction is None else self._value(instruction)
        return self._found[name]

    def _value(self, instruction: Instruction) -> np.ndarray | None:
        opcode = instruction.opcode
        if opcode == "partition-id":
            return np.arange(self.num_partitions)
        if opcode == "constant":
            table = _table(instruction)
            return None if table is None or len(table) != 1 else np.full(self.num_partitions, table[0])
        if opcode in _SAME_VALUE:
            return self.of(instruction.operands[0]) if _is_scalar(instruction) else None
        if opcode == "dynamic-slice":
            return self._looked_up(*instruction.operands) if _is_scalar(instruction) else None
        if opcode in _ARITHMETIC and _is_scalar(instruction):
            return self._computed(instruction)
        return None

    def _computed(self, instruction: Instruction) -> np.ndarray | None:
        lhs, rhs = map(self.of, instruction.operands)
        if lhs is None or rhs is None or (instruction.opcode in ("divide", "remainder") and not rhs.all()):
            return None
        return _ARITHMETIC[instruction.opcode](lhs, rhs)

    def _looked_up(self, table: str, *places: str) -> np.ndarray | None:
        """Returns the number that each partition takes from a constant table of one dimension."""
        if len(places) != 1 or (source := self.computation.instructions.get(table)) is None:
            return None
        numbers, place = _table(source) if source.opcode == "constant" else None, self.of(places[0])
        if numbers is None or place is None:
            return None
        return np.asarray(numbers)[np.clip(place, 0, len(numbers) - 1)]


def _is_scalar(instruction: Instruction) -> bool:
    arrays = list(shape_arrays(instruction.shape))
    return len(arrays) == 1 and arrays[0].elements == 1 and arrays[0].dtype[0] in "su"


def _table(constant: Instruction) -> tuple[int, ...] | None:
    """Returns the integers of a constant of at most one dimension."""
    arrays = list(shape_arrays(constant.shape))
    if len(arrays) != 1 or len(arrays[0].sizes) > 1 or arrays[0].dtype[0] not in "su":
        return None
    if not _NUMBERS.fullmatch(constant.arguments):
        return None
    found = tuple(integers(constant.arguments.strip().strip("{}")))
    return found if len(found) == arrays[0].elements else None
