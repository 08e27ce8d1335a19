# SPDX-License-Identifier: Apache-2.0
"""Reads HLO text and returns the collectives that one run of the program executes.

The text is what XLA dumps right after SPMD partitioning (`*after_spmd-partitioning*.txt`): shapes are tiles, dtypes are
the program's, and neither combiners nor backend rewrites have run. The scheduled HLO of an executable reads as well.

What is followed: `while` bodies times their trip count, `call`, `fusion` and `async-start` callees, and of a
`conditional` the branch with the most traffic. XLA writes `known_trip_count` only late in its pipeline, so right after
partitioning the count is derived from the induction variable (`_trip_count`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ..synthesis import traffic
from ..synthesis.traffic import Collective

_COLLECTIVES = {kind.replace("_", "-"): kind for kind in traffic.KINDS}
_FLATTENED_IDS_KINDS = ("all_gather", "all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class HloCollectives:
    """The collectives of an HLO module.

    Fields:
      collectives: in program order; those in loops carry the product of the trip counts.
      num_devices: replicas times partitions.
      unknown_trip_counts: names of the `while` ops with collectives whose trip count could not be derived; each is
        counted once, so the bytes are then a lower bound.
      unpriced: opcodes that move data between devices and are not counted (send, recv), sorted.
    """

    collectives: tuple[Collective, ...]
    num_devices: int
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    @property
    def bytes_received(self) -> int:
        return traffic.bytes_received(self.collectives, self.num_devices)

    @property
    def bytes_sent(self) -> int:
        return traffic.bytes_sent(self.collectives, self.num_devices)

    @property
    def largest_collective_result_bytes(self) -> int:
        return max((collective.bytes_after for collective in self.collectives), default=0)

    @property
    def largest_collective_tile_bytes(self) -> int:
        """The largest operand or result of a collective, in bytes per device."""
        return max((collective.largest_tile_bytes for collective in self.collectives), default=0)


def collectives_in(hlo_text: str) -> HloCollectives:
    """Returns the collectives of the HLO module in `hlo_text`.

    Raises: ValueError if the text has no entry computation.

    Example:
      >>> hlo = collectives_in('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8]) -> f32[32] {
      ...   %p = f32[8]{0} parameter(0)
      ...   ROOT %g = f32[32]{0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
      ... }''')
      >>> hlo.bytes_received, hlo.largest_collective_result_bytes
      (96, 128)
    """
    return _Walk(parse_module(hlo_text)).result()


# ---------------------------------------------------------------------------------------------------------------------
# Shapes
# ---------------------------------------------------------------------------------------------------------------------

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")


def shape_bytes(shape: str) -> int:
    """Returns the bytes of an HLO shape, tuples summed; sub-byte elements are packed and each array rounds up.

    Example:
      >>> shape_bytes("f32[16,32]{1,0}"), shape_bytes("(s4[3], bf16[2]{0})"), shape_bytes("pred[]")
      (2048, 6, 1)
    """
    return sum(_array_bytes(dtype, dims) for dtype, dims in _ARRAY.findall(shape))


def dtype_bits(dtype: str) -> int:
    """Returns the bits of one element of an HLO dtype; 0 for tokens and opaque values.

    Example:
      >>> [dtype_bits(d) for d in ("pred", "s4", "bf16", "f8e4m3fn", "c128", "token")]
      [8, 4, 16, 8, 128, 0]
    """
    if dtype == "pred":
        return 8
    width = re.match(r"(?:bf|[sufc])(\d+)", dtype)
    return int(width[1]) if width else 0


def _array_bytes(dtype: str, dims: str) -> int:
    sizes = [int(dim.strip(" <=")) for dim in dims.split(",") if dim.strip()]
    return -(-prod(sizes) * dtype_bits(dtype) // 8)


def _tuple_elements(shape: str) -> list[str]:
    return _split(shape[1:-1]) if shape.startswith("(") else [shape]


# ---------------------------------------------------------------------------------------------------------------------
# Text to instructions
# ---------------------------------------------------------------------------------------------------------------------

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([^\s(=,]+)\s*(?:\(.*->.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([^\s=]+) = ")
_COMMENT = re.compile(r"/\*.*?\*/")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation; `operands` are names without `%`, `%p#1` for element 1 of a tuple stays `p#1`."""

    name: str
    shape: str
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """Operand names; with or without shapes in front, as print options have it."""
        return [operand.split()[-1].lstrip("%") for operand in _split(self.arguments)]

    def callee(self, attribute: str) -> str | None:
        """Returns the computation that an attribute such as `body=%b` names, None without it."""
        match = re.search(rf"\b{attribute}=%?([^\s,{{}}]+)", self.attributes)
        return match[1] if match else None

    def callees(self, attribute: str) -> list[str]:
        """Returns the computations in a list such as `branch_computations={%a, %b}`."""
        match = re.search(rf"\b{attribute}=\{{([^}}]*)\}}", self.attributes)
        return [name.strip().lstrip("%") for name in match[1].split(",")] if match else []


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: dict[str, Instruction]
    root: str

    def shape_of(self, operand: str) -> str:
        """Returns the shape of an operand, `name` or `name#index`."""
        name, *indices = operand.split("#")
        shape = self.instructions[name].shape
        for index in indices:
            shape = _tuple_elements(shape)[int(index)]
        return shape


@dataclass(frozen=True)
class HloModule:
    computations: dict[str, Computation]
    entry: Computation
    num_replicas: int
    num_partitions: int

    @cached_property
    def num_devices(self) -> int:
        return self.num_replicas * self.num_partitions


def parse_module(text: str) -> HloModule:
    """Returns the computations of an HLO module's text. Raises ValueError if it has no entry computation."""
    computations, entry = {}, None
    lines = iter(text.splitlines())
    header = next((line for line in lines if line.startswith("HloModule")), "")
    for line in lines:
        if opening := _opens_computation(line):
            computation = _parse_computation(opening[2], lines)
            computations[computation.name] = computation
            entry = computation if opening[1] else entry
    if entry is None:
        raise ValueError("the HLO text has no ENTRY computation")
    num_replicas, num_partitions = (_header_count(header, name) for name in ("replica_count", "num_partitions"))
    return HloModule(computations, entry, num_replicas, num_partitions)


def _opens_computation(line: str) -> re.Match | None:
    return None if line[:1].isspace() else _COMPUTATION.match(line)


def _header_count(header: str, name: str) -> int:
    match = re.search(rf"\b{name}=(\d+)", header)
    return int(match[1]) if match else 1


def _parse_computation(name: str, lines: Iterator[str]) -> Computation:
    instructions, root = {}, ""
    for line in lines:
        if line.startswith("}"):
            break
        if (start := _INSTRUCTION.match(line)) is None:
            continue
        instruction = _parse_instruction(start[2], _COMMENT.sub("", line[start.end() :]))
        instructions[instruction.name] = instruction
        root = instruction.name if start[1] else root
    return Computation(name, instructions, root or (instruction.name if instructions else ""))


def _parse_instruction(name: str, rest: str) -> Instruction:
    """Parses `f32[4]{0} add(%a, %b), attributes` of an instruction's line."""
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", shape_end)
    closing = _closing(rest, opening)
    opcode = rest[shape_end:opening].strip()
    return Instruction(name, rest[:shape_end], opcode, rest[opening + 1 : closing], rest[closing + 1 :])


def _closing(text: str, opening: int) -> int:
    """Returns the index of the bracket that closes the one at `opening`; quoted text is skipped."""
    depth = 0
    for position, character in _unquoted(text, opening):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:
            return position
    return len(text) - 1


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets and quotes: "a, (b, c)" -> ["a", "(b, c)"]."""
    parts, start, depth = [], 0, 0
    for position, character in _unquoted(text, 0):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [part for part in (*parts, text[start:].strip()) if part]


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')


def _unquoted(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yields position and character of each bracket and comma outside of quotes."""
    for token in _TOKEN.finditer(text, start):
        if token[0][0] != '"':
            yield token.start(), token[0]


# ---------------------------------------------------------------------------------------------------------------------
# Device groups and pairs
# ---------------------------------------------------------------------------------------------------------------------

_IOTA = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
_GROUPS = re.compile(
    r"replica_groups=(?:(?P<lists>\{(?:\s*\{[^}]*\}\s*,?)*\s*\})"
    rf"|(?P<mesh>mesh\[(?P<axes>[^\]]*)\](?:,\s*device_ids=\((?P<ids>[^{{]*)\))?\s*\{{(?P<grouped>[^}}]*)\}})"
    rf"|(?P<iota>{_IOTA}))"
)
_AXIS_REF = re.compile(r"'?([^':,\s]+)'?(?::\((\d+)\)(\d+))?")


def parse_groups(attributes: str) -> tuple[tuple[int, ...], ...]:
    """Returns the `replica_groups` of a collective in any of HLO's three notations; () if it is empty or absent.

    Example:
      >>> parse_groups("replica_groups={{0,2},{1,3}}")
      ((0, 2), (1, 3))
      >>> parse_groups("replica_groups=[2,2]<=[2,2]T(1,0)")
      ((0, 2), (1, 3))
      >>> parse_groups("replica_groups=mesh['x'=2,'y'=2] {'x'}")
      ((0, 2), (1, 3))
    """
    match = _GROUPS.search(attributes)
    if match is None:
        return ()
    if match["lists"]:
        return tuple(_int_tuple(group) for group in re.findall(r"\{([\d,\s]*)\}", match["lists"][1:-1]))
    groups = _mesh_groups(match) if match["mesh"] else _iota_ids(match["iota"])
    return tuple(tuple(group) for group in groups.tolist())


def parse_pairs(attributes: str) -> tuple[tuple[int, int], ...]:
    """Returns the `source_target_pairs` of a collective-permute.

    Example:
      >>> parse_pairs("channel_id=1, source_target_pairs={{0,1},{1,0}}")
      ((0, 1), (1, 0))
    """
    match = re.search(r"source_target_pairs=\{((?:\{[^}]*\},?\s*)*)\}", attributes)
    return tuple(_int_tuple(pair) for pair in re.findall(r"\{([^}]*)\}", match[1])) if match else ()


def _int_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _iota_ids(text: str) -> np.ndarray:
    """Returns the ids of an iota form: [4,2]<=[2,4]T(1,0) is iota(8), reshaped to 2x4, transposed, reshaped to 4x2."""
    shape, source, order = (_int_tuple(part or "") for part in re.fullmatch(_IOTA, text).groups())
    ids = np.arange(prod(shape)).reshape(source or shape)
    return (ids.transpose(order) if order else ids).reshape(shape)


def _mesh_groups(match: re.Match) -> np.ndarray:
    """Returns the groups along some axes of a mesh: mesh['x'=4,'y'=2], device_ids=(...) {'x':(2)2,'y'}."""
    axes = [axis.replace("'", "").rsplit("=", 1) for axis in match["axes"].split(",")]
    sizes = {name.strip(): int(size) for name, size in axes}
    references = _AXIS_REF.findall(match["grouped"])
    grouped = [(name, int(pre or 1), int(size or sizes[name])) for name, pre, size in references]
    digits = [digit for axis, size in sizes.items() for digit in _axis_digits(axis, size, grouped)]
    ids = _mesh_device_ids(match["ids"], prod(sizes.values())).reshape([size for _, _, size in digits])
    last = [digits.index(digit) for digit in grouped]
    first = [position for position in range(len(digits)) if position not in last]
    return ids.transpose(first + last).reshape(-1, prod(size for _, _, size in grouped))


def _axis_digits(axis: str, size: int, grouped: list) -> list[tuple[str, int, int]]:
    """Splits an axis at its grouped sub-axes: 8 with (2)2 is the digits (axis, 1, 2), (axis, 2, 2), (axis, 4, 2)."""
    digits, done = [], 1
    for reference in sorted(ref for ref in grouped if ref[0] == axis):
        if reference[1] > done:
            digits.append((axis, done, reference[1] // done))
        digits.append(reference)
        done = reference[1] * reference[2]
    return [*digits, (axis, done, size // done)] if done < size else digits


def _mesh_device_ids(text: str | None, size: int) -> np.ndarray:
    if text is None:
        return np.arange(size)
    return _iota_ids(_as_iota(text)) if "[" in text else np.array(_int_tuple(text))


def _as_iota(text: str) -> str:
    """`[4,2]T(1,0)`, as a mesh prints its iota, is iota(8) in that shape, transposed: give it the common form."""
    shape, _, order = re.fullmatch(_IOTA, text.strip()).groups()
    return f"[{prod(_int_tuple(shape))}]<=[{shape}]" + (f"T({order})" if order else "")


# ---------------------------------------------------------------------------------------------------------------------
# Scalars, as far as trip counts need them
# ---------------------------------------------------------------------------------------------------------------------


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
class _Scope:
    """A computation with what is known of its arguments.

    A value is an int, a `_Carried`, a `_Compare`, a tuple of values, or None when nothing is known.
    """

    module: HloModule
    computation: Computation
    arguments: tuple
    _values: dict = field(default_factory=dict)

    def callee(self, name: str, arguments: tuple) -> "_Scope":
        return _Scope(self.module, self.module.computations[name], arguments)

    def root(self):
        return self.value(self.computation.root)

    def value(self, operand: str):
        """Returns what is known of `name` or `name#index`."""
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
                index = re.search(r"\bindex=(\d+)", instruction.attributes)
                return _element(self.value(instruction.operands[0]), int(index[1]))
            case "tuple":
                return self.values(instruction.operands)
            case "add" | "subtract":
                lhs, rhs = self.values(instruction.operands)
                return _sum(lhs, rhs) if instruction.opcode == "add" else _difference(lhs, rhs)
            case "compare":
                direction = re.search(r"\bdirection=(\w+)", instruction.attributes)
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


def _trip_count(scope: _Scope, loop: Instruction) -> tuple[int | None, tuple]:
    """Returns a loop's trip count, None if unknown, and what its body may know of its state.

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


def _loop_invariants(scope: _Scope, loop: Instruction, state: tuple) -> tuple:
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
    is_induction = isinstance(start, int) and isinstance(stepped, _Carried) and stepped.index == value.index
    if not is_induction:
        return None
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


# ---------------------------------------------------------------------------------------------------------------------
# The walk
# ---------------------------------------------------------------------------------------------------------------------


class _Walk:
    """Collects the collectives of a module in program order.

    Invariant: `times` is the product of the trip counts of the loops that the walk is in.
    """

    def __init__(self, module: HloModule):
        self._module = module
        self._unknown_trip_counts: list[str] = []
        self._unpriced: set[str] = set()

    def result(self) -> HloCollectives:
        entry = _Scope(self._module, self._module.entry, ())
        collectives = tuple(self._visit(entry, times=1))
        unknown = tuple(dict.fromkeys(self._unknown_trip_counts))
        return HloCollectives(collectives, self._module.num_devices, unknown, tuple(sorted(self._unpriced)))

    def _visit(self, scope: _Scope, times: int) -> list[Collective]:
        found = []
        for instruction in scope.computation.instructions.values():
            found += self._visit_instruction(scope, instruction, times)
        return found

    def _visit_instruction(self, scope: _Scope, instruction: Instruction, times: int) -> list[Collective]:
        kind = _COLLECTIVES.get(instruction.opcode.removesuffix("-start"))
        if kind is not None:
            return [self._collective(kind, scope.computation, instruction, times)]
        match instruction.opcode:
            case "while":
                return self._visit_while(scope, instruction, times)
            case "conditional":
                return self._visit_conditional(scope, instruction, times)
            case "call" | "fusion" | "async-start" | "custom-call":
                return self._visit_callees(scope, instruction, times)
            case "send" | "recv":
                self._unpriced.add(instruction.opcode)
        return []

    def _visit_while(self, scope: _Scope, loop: Instruction, times: int) -> list[Collective]:
        trip_count, state = _trip_count(scope, loop)
        trips = 1 if trip_count is None else trip_count
        condition = scope.callee(loop.callee("condition"), (state,))
        body = scope.callee(loop.callee("body"), (state,))
        found = self._visit(condition, times * (trips + 1)) + self._visit(body, times * trips)
        if found and trip_count is None:
            self._unknown_trip_counts.append(loop.name)
        return found

    def _visit_conditional(self, scope: _Scope, conditional: Instruction, times: int) -> list[Collective]:
        """Returns the collectives of the branch in which the busiest device receives most."""
        branches = conditional.callees("branch_computations") or [
            conditional.callee("true_computation"),
            conditional.callee("false_computation"),
        ]
        arguments = scope.values(conditional.operands)[1:]
        found = [self._visit(scope.callee(b, (a,)), times) for b, a in zip(branches, arguments, strict=True)]
        return max(found, key=lambda branch: traffic.bytes_received(branch, self._module.num_devices))

    def _visit_callees(self, scope: _Scope, instruction: Instruction, times: int) -> list[Collective]:
        callee = instruction.callee("to_apply") or instruction.callee("calls")
        names = [callee] if callee else instruction.callees("called_computations")
        arguments = scope.values(instruction.operands) if names else ()
        return [found for name in names for found in self._visit(scope.callee(name, arguments), times)]

    def _collective(self, kind: str, within: Computation, instruction: Instruction, times: int) -> Collective:
        operand_bytes = [shape_bytes(within.shape_of(operand)) for operand in instruction.operands]
        if kind == "collective_permute":
            pairs = self._device_pairs(instruction.attributes)
            before = operand_bytes[0] if _is_in_place(operand_bytes, instruction) else sum(operand_bytes)
            return Collective(kind, before, before, pairs=pairs, trip_count=times)
        groups = self._device_groups(kind, instruction.attributes)
        if kind == "ragged_all_to_all":
            return Collective(kind, operand_bytes[0], operand_bytes[1], groups, trip_count=times)
        before = sum(operand_bytes)
        group_size = max((len(group) for group in groups), default=1)
        return Collective(kind, before, traffic.tile_bytes_after(kind, before, group_size), groups, trip_count=times)

    def _device_groups(self, kind: str, attributes: str) -> tuple[tuple[int, ...], ...]:
        """Returns the groups as device ids, device = replica · partitions + partition.

        The ids in `replica_groups` are flattened device ids with `use_global_device_ids`, else partition ids or
        replica ids depending on `channel_id`; no groups at all means one group of everything.
        Source: XLA's GetCollectiveOpGroupMode.
        """
        replicas, partitions = range(self._module.num_replicas), self._module.num_partitions
        listed = tuple(group for group in parse_groups(attributes) if group)
        if "use_global_device_ids=true" in attributes:
            return listed or (tuple(range(self._module.num_devices)),)
        if not _has_channel(attributes):
            listed = listed or (tuple(replicas),)
            return tuple(tuple(r * partitions + p for r in g) for p in range(partitions) for g in listed)
        if kind in _FLATTENED_IDS_KINDS:
            listed = listed or (tuple(replicas),)
            return tuple(tuple(r * partitions + p for r in g for p in range(partitions)) for g in listed)
        listed = listed or (tuple(range(partitions)),)
        return tuple(tuple(r * partitions + p for p in g) for r in replicas for g in listed)

    def _device_pairs(self, attributes: str) -> tuple[tuple[int, int], ...]:
        """Returns the pairs as device ids; they are partition ids with a `channel_id`, else replica ids."""
        replicas, partitions = self._module.num_replicas, self._module.num_partitions
        pairs = parse_pairs(attributes)
        if _has_channel(attributes):
            return tuple((r * partitions + i, r * partitions + j) for r in range(replicas) for i, j in pairs)
        return tuple((i * partitions + p, j * partitions + p) for p in range(partitions) for i, j in pairs)


# ---------------------------------------------------------------------------------------------------------------------
# Copies on the device
# ---------------------------------------------------------------------------------------------------------------------

_COPYING = ("concatenate", "copy", "dynamic-update-slice", "gather", "pad", "reverse", "scatter", "select")
_VIEWS = ("bitcast", "reshape")
_BRANCHING = ("while", "conditional", "call", "fusion")


def copied_bytes_in(hlo_text: str) -> int | None:
    """Returns the bytes that a device copies in its own memory in a program that only moves data; None if it has branches.

    As our plans are charged: transposes count, those in a row once, and so do copies, concatenations, padding and the like; slices
    and reshapes do not, and of a transpose that a slice follows, only what that keeps. Collectives work on what lies in one piece, so one along a dimension that is not the leading one needs copies
    too: of an all-to-all's operand, and of the result.

    Raises: ValueError if the text has no entry computation.

    Example:
      >>> copied_bytes_in('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8,4]) -> f32[4,8] {
      ...   %p = f32[8,4]{1,0} parameter(0)
      ...   ROOT %t = f32[4,8]{1,0} transpose(%p), dimensions={1,0}
      ... }''')
      128
    """
    entry = parse_module(hlo_text).entry
    if any(each.opcode in _BRANCHING for each in entry.instructions.values()):
        return None
    return sum(_copied_bytes(entry, each) for each in entry.instructions.values())


def _copied_bytes(within: Computation, instruction: Instruction) -> int:
    match instruction.opcode:
        case "transpose":
            return 0 if _keeps_order(within, instruction) else _bytes_put_in_order(within, instruction)
        case "all-to-all" if not _is_along_leading_dimension(within, instruction):
            operand_bytes = shape_bytes(within.shape_of(instruction.operands[0]))
            return operand_bytes + _bytes_put_in_order(within, instruction)
        case "all-gather" if not _is_along_leading_dimension(within, instruction):
            return _bytes_put_in_order(within, instruction)
        case opcode if opcode in _COPYING:
            return shape_bytes(instruction.shape)
    return 0


def _bytes_put_in_order(within: Computation, instruction: Instruction) -> int:
    """Returns what is to be copied behind a collective, or by a transpose: where one instruction uses it, the slice that it takes, if it is one.

    A transpose that uses it is charged by itself, and brings the result into order on the way: compilers make one loop of both. So
    is what is copied before an all-to-all.
    """
    user = instruction
    while user is instruction or _is_view(within, user):
        users = [each for each in within.instructions.values() if user.name in each.operands]
        if len(users) != 1:
            return shape_bytes(instruction.shape)
        user = users[0]
    if user.opcode == "transpose" or user.opcode == "all-to-all" and not _is_along_leading_dimension(within, user):
        return 0
    return shape_bytes((user if user.opcode in ("slice", "dynamic-slice") else instruction).shape)


def _is_view(within: Computation, instruction: Instruction) -> bool:
    return instruction.opcode in _VIEWS or instruction.opcode == "transpose" and _keeps_order(within, instruction)


def _keeps_order(within: Computation, transpose: Instruction) -> bool:
    """Returns whether only dimensions of size 1 change their place."""
    sizes = _sizes(within.shape_of(transpose.operands[0]))
    moved = [dim for dim in _dimensions(transpose) if sizes[dim] > 1]
    return moved == sorted(moved)


def _is_along_leading_dimension(within: Computation, collective: Instruction) -> bool:
    """Returns whether all dimensions before the one that the collective works along have size 1; tuples have none."""
    return all(prod(_sizes(within.shape_of(collective.operands[0]))[:dim]) == 1 for dim in _dimensions(collective))


def _dimensions(instruction: Instruction) -> tuple[int, ...]:
    match = re.search(r"\bdimensions=\{([\d,\s]*)\}", instruction.attributes)
    return _int_tuple(match[1]) if match else ()


def _sizes(shape: str) -> tuple[int, ...]:
    (_, dims), *_ = _ARRAY.findall(shape)
    return _int_tuple(dims.replace("<=", ""))


def _has_channel(attributes: str) -> bool:
    return re.search(r"\bchannel_id=[1-9]", attributes) is not None


def _is_in_place(operand_bytes: list[int], instruction: Instruction) -> bool:
    """A collective-permute with `slice_sizes` takes (input, output, offsets...) and moves a slice of the input."""
    return len(operand_bytes) > 1 and "slice_sizes=" in instruction.attributes
