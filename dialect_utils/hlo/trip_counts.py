# SPDX-License-Identifier: Apache-2.0
"""Trip counts of HLO's `while` ops, derived from their induction variables by following scalars."""

import re
from dataclasses import dataclass, field

from ..platform.typed import present
from .text import Computation, HloModule, Instruction


@dataclass(frozen=True, slots=True)
class _Carried:
    """Element `index` of a loop's state at the start of an iteration, plus `offset`."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Compare:
    direction: str
    lhs: object
    rhs: object


_SAME_VALUE = ("bitcast", "convert", "copy", "opt-barrier", "reshape")
_SCALAR_SHAPE = re.compile(r"(?:[su]\d+|pred)\[1?\]")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@dataclass
class Scope:
    """A computation with the known values of its arguments.

    A value is an int, a `_Carried`, a `_Compare`, a tuple of values, or None when nothing is known.
    """

    module: HloModule
    computation: Computation
    arguments: tuple
    _values: dict = field(default_factory=dict)

    def callee(self, name: str | None, arguments: tuple) -> "Scope":
        return Scope(self.module, self.module.computations[present(name)], arguments)

    def root(self):
        return self.value(self.computation.root)

    def value(self, operand: str):
        """Returns the known value of `name` or `name#index`."""
        name, *indices = operand.split("#")
        if name not in self._values:
            self._values[name] = self._evaluate(self.computation.instructions[name])
        value = self._values[name]
        for index in indices:
            value = _element(value, int(index))
        return value

    def values(self, operands: list[str]) -> tuple:
        return tuple(self.value(operand) for operand in operands)

    def _evaluate(self, instruction: Instruction):
        is_readable = instruction.shape.startswith("(") or _SCALAR_SHAPE.match(instruction.shape)
        if not is_readable:
            return None
        match instruction.opcode:
            case "constant":
                return _integer(instruction.arguments)
            case "parameter":
                number = int(instruction.arguments)
                return self.arguments[number] if number < len(self.arguments) else None
            case "get-tuple-element":
                index = present(re.search(r"\bindex=(\d+)", instruction.attributes))
                return _element(self.value(instruction.operands[0]), int(index[1]))
            case "tuple":
                return self.values(instruction.operands)
            case "add" | "subtract":
                lhs, rhs = self.values(instruction.operands)
                return _sum(lhs, rhs) if instruction.opcode == "add" else _difference(lhs, rhs)
            case "compare":
                direction = present(re.search(r"\bdirection=(\w+)", instruction.attributes))
                return _Compare(direction[1], *self.values(instruction.operands))
            case "call" | "fusion":
                callee = instruction.callee("to_apply") or instruction.callee("calls")
                return self.callee(callee, self.values(instruction.operands)).root()
            case opcode if opcode in _SAME_VALUE:
                return self.value(instruction.operands[0])
        return None


def _element(value, index: int):
    return value[index] if isinstance(value, tuple) and index < len(value) else None


def _integer(literal: str) -> int | None:
    match = re.fullmatch(r"\{?\s*(-?\d+)\s*\}?", literal.strip())
    return int(match[1]) if match else None


def _sum(lhs, rhs):
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs + rhs
    if isinstance(lhs, _Carried) and isinstance(rhs, int):
        return _Carried(lhs.index, lhs.offset + rhs)
    return _sum(rhs, lhs) if isinstance(lhs, int) and isinstance(rhs, _Carried) else None


def _difference(lhs, rhs):
    return _sum(lhs, -rhs) if isinstance(rhs, int) else None


def trip_count(scope: Scope, loop: Instruction) -> tuple[int | None, tuple]:
    """Returns a loop's trip count, None if unknown, and the values of its state that its body may know.

    XLA's own `known_trip_count` wins. Otherwise: one element of the state starts at a constant and gets a constant
    added in each iteration, and the condition compares it with a constant. State that the body passes through keeps
    the value it starts with.
    """
    start = scope.value(loop.operands[0])
    state = start if isinstance(start, tuple) else (start,)
    known = re.search(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)', loop.attributes)
    invariants = _loop_invariants(scope, loop, state)
    symbols = tuple(_Carried(i) if value is None else value for i, value in enumerate(invariants))
    if known:
        return int(known[1]), invariants
    condition = scope.callee(loop.callee("condition"), (symbols,)).root()
    after = scope.callee(loop.callee("body"), (symbols,)).root()
    return _iterations(condition, state, after), invariants


def _loop_invariants(scope: Scope, loop: Instruction, state: tuple) -> tuple:
    """Returns per element of the state its value if the body passes it through, else None."""
    symbols = tuple(_Carried(i) for i in range(len(state)))
    after = scope.callee(loop.callee("body"), (symbols,)).root()
    return tuple(value if _element(after, i) == _Carried(i) else None for i, value in enumerate(state))


def _iterations(condition, state: tuple, after) -> int | None:
    """Returns how often `condition` holds when the state starts as `state` and one iteration leaves `after`."""
    if not isinstance(condition, _Compare):
        return None
    direction, value, limit = condition.direction, condition.lhs, condition.rhs
    if isinstance(value, int):
        direction, value, limit = _MIRRORED[direction], limit, value
    if not isinstance(value, _Carried) or not isinstance(limit, int):
        return None
    start, stepped = state[value.index], _element(after, value.index)
    if not isinstance(start, int) or not isinstance(stepped, _Carried) or stepped.index != value.index:
        return None  # it is no induction variable
    return count_iterations(start, stepped.offset, direction, limit - value.offset)


def count_iterations(start: int, step: int, direction: str, limit: int) -> int | None:
    """Returns the trip count of `for (i = start; i <direction> limit; i += step)`, None if it never ends.

    Example:
      >>> count_iterations(0, 2, "LT", 7), count_iterations(5, -1, "GE", 0), count_iterations(0, 0, "LT", 1)
      (4, 6, None)
    """
    match direction:
        case "GT" | "GE":
            return count_iterations(-start, -step, _MIRRORED[direction], -limit)
        case "LE":
            return count_iterations(start, step, "LT", limit + 1)
        case "LT" if start >= limit:
            return 0
        case "LT":
            return -(-(limit - start) // step) if step > 0 else None
        case "NE" if start == limit:
            return 0
        case "NE":
            exact = step != 0 and (limit - start) % step == 0 and (limit - start) // step > 0
            return (limit - start) // step if exact else None
    return None
