# SPDX-License-Identifier: Apache-2.0
"""The bytes that a device holds at each instruction of a program, in the order of the compiler's schedule.

A value is held from the instruction that makes it to the last one that reads it. Tuples, bitcasts and the ends of
asynchronous ops are other names of values. A loop carries its values in place, and each instruction of its body is
listed once. An instruction writes over an operand that ends there where XLA lets it do so. This is a model: XLA's
allocator places values beside each other, so what it needs differs somewhat (`Compiled.temp_bytes`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..hlo.text import Computation, HloModule, Instruction, op_name, shape_bytes, tuple_elements
from ..hlo.trip_counts import Scope
from ..hlo.walk import branches, callees, loop_runs
from .independent_work import COLLECTIVES

_VIEWS = frozenset(("add-dependency", "bitcast", "domain", "get-tuple-element", "opt-barrier", "tuple", "while"))
_FREE = frozenset(("constant", "parameter", "partition-id", "replica-id", "after-all"))
# What reads each element of an operand before it writes the element at the same place.
_ELEMENTWISE = frozenset(
    ("abs", "add", "and", "clamp", "compare", "convert", "cosine", "divide", "dynamic-update-slice", "exponential")
    + ("exponential-minus-one", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not")
    + ("or", "power", "rsqrt", "scatter", "select", "sign", "sine", "sqrt", "subtract", "tanh", "xor")
)
_WITH_RESULTS_ONLY = frozenset(("all-reduce-start", "recv-start", "send-start"))  # their values have no operands
_ON_CHIP = re.compile(r"\{[^}]*:[^}]*S\([1-9]\d*\)[^}]*\}")  # the layout of a value in another memory than the main one
_ALIASED = re.compile(r"\{(\d*)\}: \(\d+, ")


@dataclass(frozen=True, slots=True)
class Moment:
    """One instruction.

    Fields:
      name, opcode, op_name, shape: of the instruction. is_collective: whether it moves data between devices.
      temporary_bytes: held while it runs, without arguments and results of the program.
      result_bytes: of those results of the program that are there by then; not of those that take the place of an
        argument.
      loops: the names of the loops around it, outermost first. runs: how often it runs, with loops counted.
    """

    name: str
    opcode: str
    op_name: str
    shape: str
    is_collective: bool
    temporary_bytes: int
    result_bytes: int
    loops: tuple[str, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The instructions of a program in order; `argument_bytes` are held all the time."""

    moments: tuple[Moment, ...]
    argument_bytes: int

    @property
    def temporary_bytes(self) -> int:
        """Returns the most bytes of temporaries."""
        return max((each.temporary_bytes for each in self.moments), default=0)


def timeline_of(module: HloModule, hlo_text: str) -> Timeline | None:
    """Returns the bytes that the program of an executable holds at each instruction; None if it has no schedule.

    Args:
      hlo_text: the text of `module`; its header says which results take the place of arguments.

    Example: both halves are held at the sum, which writes over one of them.
      >>> from ..hlo.text import parse_module
      >>> text = '''HloModule m, is_scheduled=true
      ... ENTRY %main (p: f32[8]) -> f32[8] {
      ...   %p = f32[8]{0} parameter(0)
      ...   %a = f32[8]{0} sine(%p)
      ...   %b = f32[8]{0} cosine(%p)
      ...   %c = f32[8]{0} add(%a, %b)
      ...   ROOT %d = f32[8]{0} reverse(%c), dimensions={0}
      ... }'''
      >>> moments = timeline_of(parse_module(text), text).moments
      >>> [(each.name, each.temporary_bytes, each.result_bytes) for each in moments]
      [('a', 32, 0), ('b', 64, 0), ('c', 64, 0), ('d', 32, 32)]
    """
    header = next((line for line in hlo_text.splitlines() if line.startswith("HloModule")), "")
    if "is_scheduled=true" not in header:
        return None
    aliases = header.partition("input_output_alias={")[2].partition(" }")[0]
    in_place = frozenset(int(number or 0) for number in _ALIASED.findall(aliases))
    entry = module.entry.instructions.values()
    arguments = sum(_bytes(each.shape) for each in entry if each.opcode == "parameter")
    walk = _Walk(module, in_place)
    walk.visit(Scope(module, module.entry, ()), _Around())
    return Timeline(tuple(walk.moments), arguments)


@dataclass(frozen=True, slots=True)
class _Around:
    """What is around a computation: bytes that are held, names of loops, runs, and whether it is a loop's body."""

    temporary_bytes: int = 0
    result_bytes: int = 0
    loops: tuple[str, ...] = ()
    runs: int = 1
    is_entry: bool = True


def _bytes(shape: str) -> int:
    """Returns the bytes of an array in main memory; 0 for tokens and for values in another memory."""
    return 0 if _ON_CHIP.search(shape) else shape_bytes(shape)


class _Buffers:
    """The buffers of one computation.

    A value is the number of a buffer, or a list of values. State: `sizes` has the bytes of each buffer, 0 for one that
    is counted elsewhere; `last` is the position of its last reader; `results` are those that leave the computation.
    """

    def __init__(self, computation: Computation):
        self.sizes: list[int] = []
        self.last: list[int] = []
        self._values: dict[str, object] = {}
        self.made: list[list[int]] = []
        self.read: list[list[int]] = []
        for at, instruction in enumerate(computation.instructions.values()):
            self._add(at, instruction)
        self.results = [list(_leaves(each)) for each in _parts(self._values[computation.root])]

    def _add(self, at: int, instruction: Instruction) -> None:
        before = len(self.sizes)
        is_leaf = instruction.opcode in _FREE
        operands = [] if is_leaf else [self.value(each) for each in instruction.operands]
        read = sorted({each for operand in operands for each in _leaves(operand)})
        for each in read:
            self.last[each] = at
        self._values[instruction.name] = self._value(instruction, operands)
        self.made.append(list(range(before, len(self.sizes))))
        self.last += [at] * (len(self.sizes) - before)
        self.read.append(read)

    def _value(self, instruction: Instruction, operands: list) -> object:
        opcode = instruction.opcode
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            index = re.search(r"\bindex=(\d+)", instruction.attributes)
            return operands[0][int(index[1])] if index and isinstance(operands[0], list) else operands[0]
        if opcode.endswith("-done"):
            return _result_of(opcode, operands[0])
        if opcode in _VIEWS:
            return operands[0]
        if opcode.endswith("-start") and opcode not in _WITH_RESULTS_ONLY and instruction.shape.startswith("("):
            return self._started(instruction, operands)
        return self._new(instruction.shape, opcode not in _FREE)

    def _started(self, instruction: Instruction, operands: list) -> list:
        """Returns the value of the start of an asynchronous op: its operands, its results and what else it needs."""
        shapes = tuple_elements(instruction.shape)
        given = operands if shapes[0].startswith("(") else operands[0]
        source = 1 if instruction.opcode == "copy-start" else 0
        return [given if at == source else self._new(shape, True) for at, shape in enumerate(shapes)]

    def _new(self, shape: str, is_counted: bool) -> object:
        if shape.startswith("("):
            return [self._new(each, is_counted) for each in tuple_elements(shape)]
        self.sizes.append(_bytes(shape) if is_counted else 0)
        return len(self.sizes) - 1

    def value(self, operand: str) -> object:
        name, *indices = operand.split("#")
        found = self._values[name]
        for index in indices:
            found = found[int(index)] if isinstance(found, list) else found
        return found


def _result_of(opcode: str, started: object) -> object:
    """Returns what the end of an asynchronous op gives, of the value that its start gave."""
    if not isinstance(started, list) or opcode.replace("-done", "-start") in _WITH_RESULTS_ONLY:
        return started
    return started[0] if opcode == "copy-done" else started[1]


def _parts(value: object) -> list:
    return value if isinstance(value, list) else [value]


def _leaves(value: object) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, int):
        yield value


class _Walk:
    """Lists the moments of computations. State: `moments` so far; `in_place` are results that replace arguments."""

    def __init__(self, module: HloModule, in_place: frozenset[int]):
        self._module, self._in_place = module, in_place
        self.moments: list[Moment] = []

    def visit(self, scope: Scope, around: _Around) -> None:
        buffers = _Buffers(scope.computation)
        results = self._results(buffers, around)
        held, given, ends = 0, 0, _ends(buffers, results)
        for at, instruction in enumerate(scope.computation.instructions.values()):
            free = self._overwritten(scope, instruction, buffers, at)
            for made in buffers.made[at]:
                if made in results:
                    given += buffers.sizes[made]
                else:
                    held += buffers.sizes[made]
            during = _Around(
                around.temporary_bytes + held - free, around.result_bytes + given, around.loops, around.runs, False
            )
            self._list(scope, instruction, during)
            held -= sum(buffers.sizes[each] for each in ends.get(at, ()))

    def _results(self, buffers: _Buffers, around: _Around) -> set[int]:
        """Returns the buffers of results, which stay.

        Those of a loop's body, and those in place of an argument, get size 0.
        """
        found: set[int] = set()
        for number, leaves in enumerate(buffers.results):
            for each in leaves:
                found.add(each)
                if not around.is_entry or number in self._in_place:
                    buffers.sizes[each] = 0
        return found

    def _overwritten(self, scope: Scope, instruction: Instruction, buffers: _Buffers, at: int) -> int:
        """Returns the bytes of an operand that ends here and whose place the result takes; 0 if there is none."""
        if len(buffers.made[at]) != 1 or not self._is_elementwise(instruction):
            return 0
        size = buffers.sizes[buffers.made[at][0]]
        ending = [each for each in buffers.read[at] if buffers.last[each] == at and buffers.sizes[each] == size]
        return size if ending else 0

    def _is_elementwise(self, instruction: Instruction) -> bool:
        if instruction.opcode != "fusion":
            return instruction.opcode in _ELEMENTWISE
        called = self._module.computations.get(instruction.callee("calls") or "")
        return called is not None and all(
            each.opcode in _ELEMENTWISE or each.opcode in _FREE or each.opcode in ("bitcast", "broadcast", "iota")
            for each in called.instructions.values()
        )

    def _list(self, scope: Scope, instruction: Instruction, around: _Around) -> None:
        if instruction.opcode in _FREE or instruction.opcode in ("bitcast", "get-tuple-element", "tuple"):
            return
        self.moments.append(
            Moment(
                instruction.name,
                instruction.opcode,
                op_name(instruction),
                instruction.shape,
                instruction.opcode.removesuffix("-start") in COLLECTIVES,
                around.temporary_bytes,
                around.result_bytes,
                around.loops,
                around.runs,
            )
        )
        if instruction.opcode == "while":
            found = loop_runs(scope, instruction)
            loops, runs = (*around.loops, instruction.name), around.runs * found.body_runs
            self.visit(found.body, _Around(around.temporary_bytes, around.result_bytes, loops, runs, False))
            return
        if instruction.opcode == "conditional":
            inside = branches(scope, instruction)
        else:
            inside = list(callees(scope, instruction)) if instruction.opcode == "call" else []
        for each in inside:
            self.visit(each, around)


def _ends(buffers: _Buffers, results: set[int]) -> dict[int, list[int]]:
    """Returns the buffers that end at each position: those whose last reader is there."""
    ends: dict[int, list[int]] = {}
    for each, at in enumerate(buffers.last):
        if each not in results:
            ends.setdefault(at, []).append(each)
    return ends
