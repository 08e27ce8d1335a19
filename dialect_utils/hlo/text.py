# SPDX-License-Identifier: Apache-2.0
"""HLO text as computations and instructions, and the sizes of their shapes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from .device_groups import integers

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_ARRAY_WITH_LAYOUT = re.compile(_ARRAY.pattern + r"(\{[^}]*\})?")


@lru_cache(maxsize=4096)  # programs have few shapes
def shape_bytes(shape: str) -> int:
    """Returns the bytes of an HLO shape, tuples summed; sub-byte elements are packed and each array rounds up.

    Example:
      >>> shape_bytes("f32[16,32]{1,0}"), shape_bytes("(s4[3], bf16[2]{0})"), shape_bytes("pred[]")
      (2048, 6, 1)
    """
    return sum(_array_bytes(dtype, dims) for dtype, dims in _ARRAY.findall(shape))


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array of an HLO shape; `layout` is the text in braces behind it, "" if there is none."""

    dtype: str
    sizes: tuple[int, ...]
    layout: str

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """Returns the dimensions in the order of the layout; without one, the last dimension is the minor-most."""
        order = integers(self.layout.strip("{}").split(":")[0])
        return order if len(order) == len(self.sizes) else tuple(reversed(range(len(self.sizes))))

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        return -(-self.elements * dtype_bits(self.dtype) // 8)


def shape_arrays(shape: str) -> Iterator[ArrayShape]:
    """Yields the arrays of an HLO shape, those of tuples too.

    Example:
      >>> [array.bytes for array in shape_arrays("(f32[16,32]{1,0:T(8,128)}, bf16[<=2])")]
      [2048, 4]
    """
    for dtype, dims, layout in _ARRAY_WITH_LAYOUT.findall(shape):
        yield ArrayShape(dtype, _sizes(dims), layout)


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
    return -(-prod(_sizes(dims)) * dtype_bits(dtype) // 8)


def _sizes(dims: str) -> tuple[int, ...]:
    return tuple(int(dim.strip(" <=")) for dim in dims.split(",") if dim.strip())


def tuple_elements(shape: str) -> list[str]:
    return _split(shape[1:-1]) if shape.startswith("(") else [shape]


_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([^\s(=,]+)\s*(?:\(.*->.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([^\s=]+) = ")
_OPENING, _CLOSING = "([{", ")]}"
_COMMENT = re.compile(r"/\*.*?\*/")


WITHOUT_OPERANDS = frozenset(("constant", "iota", "parameter", "partition-id", "replica-id"))


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
            shape = tuple_elements(shape)[int(index)]
        return shape


@dataclass(frozen=True)
class HloModule:
    computations: dict[str, Computation]
    entry: Computation
    num_replicas: int
    num_partitions: int
    is_scheduled: bool = False

    @cached_property
    def num_devices(self) -> int:
        return self.num_replicas * self.num_partitions


@lru_cache(maxsize=1)  # one text is read for its collectives, and then for what it computes
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
    return HloModule(computations, entry, num_replicas, num_partitions, "is_scheduled=true" in header)


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
    if _BRACKET_OR_QUOTE.search(text) is None:
        return [part for part in map(str.strip, text.split(",")) if part]
    parts, start, depth = [], 0, 0
    for position, character in _unquoted(text, 0):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [part for part in (*parts, text[start:].strip()) if part]


_BRACKET_OR_QUOTE = re.compile(r'["()\[\]{}]')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')


def _unquoted(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yields position and character of each bracket and comma outside of quotes."""
    for token in _TOKEN.finditer(text, start):
        if token[0][0] != '"':
            yield token.start(), token[0]


def dimensions_of(instruction: Instruction) -> tuple[int, ...]:
    match = re.search(r"\bdimensions=\{([\d,\s]*)\}", instruction.attributes)
    return integers(match[1]) if match else ()


def sizes_of(shape: str) -> tuple[int, ...]:
    (_, dims), *_ = _ARRAY.findall(shape)
    return integers(dims.replace("<=", ""))


def has_channel(attributes: str) -> bool:
    return re.search(r"\bchannel_id=[1-9]", attributes) is not None


def op_name(instruction: Instruction) -> str:
    """Returns the name in an instruction's metadata; "" if it has none."""
    match = re.search(r'metadata=\{[^}]*?op_name="((?:[^"\\]|\\.)*)"', instruction.attributes)
    return match[1] if match else ""
