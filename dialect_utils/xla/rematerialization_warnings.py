# SPDX-License-Identifier: Apache-2.0
"""XLA's warnings of involuntary full rematerialization, as logs hold them. Plain Python, no MLIR.

XLA's partitioner writes one wherever it finds no better way than to gather the whole tensor on every device and to cut
it again:

  W1122 ... spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding
  {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} efficiently for HLO operation %sin.2 = f32[8,16,4]{2,1,0}
  sine(%p), sharding={...}, metadata={op_name="jit(step)/sin" stack_frame_id=7}. As the last resort, SPMD will replicate
  the tensor ...

The type is that of a device's *tile* in the first sharding. From jax 0.10 on the metadata have a `stack_frame_id`, a
number that means something inside the compiler only; before, `source_file` and `source_line`. Older XLA says "was not
able to go from sharding ... to ... without doing a full rematerialization of the tensor", and for some time it named no
operation.

Logs come in many forms: lines may have prefixes and colours, be wrapped anywhere, cut off, quoted as JSON, or
interrupted by the output of another process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..platform.typed import present


class UnreadableWarning(ValueError):
    """A warning with a missing part, or a part in an unknown form; the message names it."""


@dataclass(frozen=True, slots=True)
class Rematerialization:
    """One warning.

    Attributes:
      source, target: HLO shardings, as `gspmd_shardings.parse` reads them.
      tile_type: the type of a device's tile in `source`, e.g. `f32[8,16,4]`.
      op: the HLO operation that makes the tensor, e.g. `sine`; op_name: JAX's name of it, e.g. `jit(step)/sin`; "" if
        not said.
      place: `file:line`, "" if not said.
    """

    source: str
    target: str
    tile_type: str
    op: str = ""
    op_name: str = ""
    place: str = ""


def _spread(text: str, between: str) -> str:
    return between.join(map(re.escape, text))


def _words(text: str) -> str:
    return r"\s*".join(text.split())


_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_START = re.compile(_spread("Involuntaryfullrematerialization", r"\s*"))
_LONGEST = 1 << 20  # characters of one warning: one of an operation with hundreds of operands has tens of thousands
_FROM = re.compile(_words(r"\.? The compile[rd] (?:cannot|was not able to) go from sharding") + r"\s*(?=\{)")
_TO = re.compile(r"\s*to\s*(?=\{)")
_OPERATION = re.compile(
    _words(r"(?: efficiently for | without doing a full rematerialization of the tensor for ) HLO operation :? %?")
    + r"(?P<name>[^\s=]+)\s*=\s*(?P<type>\(|[\w<>]+\s*\[[\d,\s<=]*\])(?:\{[^}]*\})?\s*(?P<op>[a-z][\w-]*)?"
)
_END = re.compile("|".join(map(_words, ("As the last resort", "You probably want to enrich"))))
_FIELD = re.compile(r'(?P<name>op_name|source_file)=(?P<quote>\\*")(?P<text>.*?)(?P=quote)|source_line=(?P<line>\d+)')


def warnings_in(log: str) -> Iterator[Rematerialization | UnreadableWarning]:
    """Yields the warnings of a log in their order; in the place of one that cannot be read, why.

    Example:
      >>> found = warnings_in('''0: W1 [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding
      ... {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} efficiently for HLO operation %p = f32[4,8]{1,0} parameter(0),
      ... sharding={devices=[2,1]<=[2]}, metadata={op_name="a"}. As the last resort, SPMD will ...''')
      >>> first = next(found)
      >>> first.source, first.target, first.tile_type
      ('{devices=[2,1]<=[2]}', '{devices=[1,2]<=[2]}', 'f32[4,8]')
      >>> first.op, first.op_name, first.place
      ('parameter', 'a', '')
    """
    log = _COLOURS.sub("", log)
    starts = [match.end() for match in _START.finditer(log)]
    ends = [match.start() for match in _START.finditer(log)][1:]
    for start, end in zip(starts, [*ends, len(log)]):
        try:
            yield _read(_message(log[start : min(end, start + _LONGEST)]))
        except UnreadableWarning as why:
            yield why


def _message(text: str) -> str:
    """Returns the rest of a warning as one line; if its end is not found, only its first line."""
    joined = re.sub(r"[\r\n]+", "", text)
    end = _END.search(joined)
    return joined[: end.start()] if end else present(re.match(r"[^\r\n]*", text))[0]


def _read(message: str) -> Rematerialization:
    began = _FROM.match(message)
    if not began:
        raise UnreadableWarning("it does not say from which sharding to which")
    source, at = _braces(message, began.end())
    between = _TO.match(message, at)
    if not between:
        raise UnreadableWarning("it ends before the sharding to which XLA goes")
    target, at = _braces(message, between.end())
    operation = _OPERATION.match(message, at)
    if not operation:
        raise UnreadableWarning("it names no tensor: it is cut off, torn apart, or of an XLA that does not say more")
    if operation["type"] == "(":
        raise UnreadableWarning(f"%{operation['name']} is a tuple")
    fields = _fields(message[operation.end() :])
    file, line = fields.get("source_file", ""), fields.get("source_line", "")
    place = f"{file}:{line}" if file and line else file
    tile_type = "".join(operation["type"].split())
    return Rematerialization(source, target, tile_type, operation["op"] or "", fields.get("op_name", ""), place)


def _braces(message: str, start: int) -> tuple[str, int]:
    """Returns the text in braces at `start`, quotes aside, and where it ends."""
    depth, quoted = 0, False
    for at in range(start, len(message)):
        char = message[at]
        quoted ^= char == '"'
        depth += 0 if quoted else {"{": 1, "}": -1}.get(char, 0)
        if not depth and not quoted:
            return message[start : at + 1], at + 1
    raise UnreadableWarning("it ends within a sharding")


def _fields(rest: str) -> dict[str, str]:
    """Returns the fields of the operation's own metadata, which stand last."""
    metadata = rest.rpartition("metadata={")[2] if "metadata={" in rest else ""
    return {
        match["name"] or "source_line": match["text"] if match["name"] else match["line"]
        for match in _FIELD.finditer(metadata)
    }
