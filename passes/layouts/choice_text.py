# SPDX-License-Identifier: Apache-2.0
"""A choice of layouts for people: the meshes with their times, what each axis is for, arguments, conversions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from reshard.dialect_utils.analysis.argument_groups import Name
from reshard.dialect_utils.assignment.factored_modules import BACKWARD, FORWARD
from reshard.passes.layouts.choosing import Candidate, Choice, mesh_text
from reshard.synthesis.assignment.axes import PARTS, SWAPPED, WHOLE
from reshard.synthesis.assignment.description import COLLECTIVES, collectives_of
from reshard.synthesis.assignment.dimensions import NamedDimension
from reshard.synthesis.assignment.factored_program import Tensor
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import table
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.layouts.sharding import Sharding

_Move = tuple[float, int, str, str, str, str]  # us, runs, op, type, source, target
_FORMS = {WHOLE: "", PARTS: ", in parts", SWAPPED: ", the last axis first"}
MOST_MOVES = 10
MOST_ARGUMENTS = 60
MOST_DIMENSIONS = 12
_MOST_PLACES = 2  # of arguments, and of types that have a dimension twice
_LAST_KEYS = 3  # of the name of an argument


def as_dict(choice: Choice) -> dict[str, Any]:
    """Returns a choice as plain data, schema `reshard.auto/1`; times in us, bytes per device."""
    best = choice.best
    return {
        "schema": "reshard.auto/1",
        "topology": choice.network.readable,
        "mesh": dict(best.mesh.axes),
        "ended": choice.ended,
        "candidates": [_candidate(each) for each in choice.candidates],
        "skipped": [{"mesh": dict(mesh.axes), "least_us": bound * 1e6} for mesh, bound in choice.skipped],
        "axes": [
            {"axis": use.axis, "words": use.words, "work": dict(use.work), "stored": use.stored}
            for use in best.assigned.uses
        ],
        "layers": [
            {"layers": row.layers, "direction": row.direction, "us": row.seconds * 1e6, "runs": dict(row.counts)}
            for row in _in_layers(best)
        ],
        "repeats": [{"layers": each.layers, "ops": each.period} for each in best.assigned.repeats],
        "dimensions": [
            {
                "name": each.name,
                "sizes": list(each.sizes),
                "tensors": len(dict(each.places)),
                "arguments": [{"name": name, "dimension": dim} for name, dim in _argument_places(best, each)],
                "split": _shares(best, each),
                "conflicts": len(each.conflicts),
            }
            for each in best.assigned.dimensions
        ],
        "arguments": [{"name": name, "type": kind, "sharding": text} for name, kind, text in _arguments(best)],
        "conversions": [
            {"op": op, "type": kind, "source": source, "target": target, "runs": runs, "us": us}
            for us, runs, op, kind, source, target in _moves(best)
        ],
    }


def _candidate(each: Candidate) -> dict[str, Any]:
    found = each.assigned
    return {
        "mesh": dict(each.mesh.axes),
        "axes": each.axes,
        "modelled_us": found.seconds * 1e6,
        "gap": found.gap,
        "constraints": found.constraints,
        "memory_bytes": found.assignment.memory_bytes,
        "stock_us": _us(each.stock_s),
        "our_us": _us(each.ours_s),
        "stock_received_bytes": each.stock.costs.bytes_received if each.stock and each.stock.is_ok else None,
        "our_received_bytes": each.ours.costs.bytes_received if each.ours and each.ours.is_ok else None,
        "our_peak_bytes": each.ours.peak_bytes if each.ours and each.ours.is_ok else None,
        "problem": each.problem,
    }


def _us(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds * 1e6


def as_text(choice: Choice, *, with_dimensions: bool = False) -> str:
    """Returns a choice as text; `with_dimensions` lists the named dimensions of the program, too."""
    best, network = choice.best, choice.network
    where = network.topology.name if network.is_known else "an unknown network, one switch"
    parts = [
        f"layouts for {best.mesh.size} devices, times modelled on {where}\n",
        table(
            ["mesh", "model", "stock XLA", "reshard", "received", "memory", "constraints"],
            [*map(_row, choice.candidates), *_skipped(choice)],
            "lrrrrrr",
        ),
        _notes(best, choice.ended),
        "\nwhat each axis is for\n",
        *(f"  {use.axis}: {use.words}\n" for use in best.assigned.uses),
        *([_layers(best)] if best.assigned.assignment.moves else []),
        *([_dimensions(best)] if with_dimensions else []),
        "\narguments\n",
        table(["name", "type", "sharding"], _few(_alike(_arguments(best)), MOST_ARGUMENTS), "lll"),
    ]
    if moves := _summed(_moves(best))[:MOST_MOVES]:
        rows = [[f"{us:,.1f} us", str(runs), *rest] for us, runs, *rest in moves]
        parts += [
            "\nthe longest conversions, by the model\n",
            table(["time", "runs", "for", "tensor", "from", "to"], rows, "rrllll"),
        ]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def _notes(best: Candidate, ended: str) -> str:
    form = _FORMS[best.axes]
    taken = f"{mesh_text(best.mesh)}{form}{',' if form else ''}"
    said = f"{taken} is taken; its layouts are within {best.assigned.gap:.1%} of the best in the model\n"
    if ended:
        said += f"{ended}: other meshes, or other layouts for less memory, may be faster\n"
    if not best.assigned.repeats:
        return said
    layers = ", ".join(f"{each.layers} of {each.period} ops" for each in best.assigned.repeats)
    return f"{said}layers that repeat: {layers}\n"


@dataclass
class _Layers:
    """The conversions of one direction in as many layers: how many of each kind, and their seconds."""

    direction: str
    layers: int
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def per_layer(self, kind: str) -> str:
        """Returns how many there are in a layer."""
        return f"{self.counts[kind] / self.layers:.3g}" if self.counts[kind] else ""


def _in_layers(best: Candidate) -> list[_Layers]:
    """Returns the conversions by direction and number of layers: the trips of a loop, or unrolled layers; most first.

    What is neither in a loop nor in a layer is one layer.
    """
    assigned = best.assigned
    factored, axes = assigned.factored, assigned.assignment.axes
    first_taker: dict[int, int] = {}
    for number in sorted(assigned.assignment.ways):
        for tensor in factored.program.ops[number].operands:
            first_taker.setdefault(tensor, number)
    found: dict[tuple[str, int], _Layers] = {}
    for move in assigned.assignment.moves:
        op = first_taker[move.tensor] if move.op is None else move.op
        repeat = next((each for each in assigned.repeats if each.first <= op <= each.last), None)
        key = factored.directions[op], repeat.layers if repeat else move.runs
        row = found.setdefault(key, _Layers(*key))
        row.seconds += move.seconds
        row.counts.update(dict.fromkeys(collectives_of(move.source, move.target, axes), move.runs))
    directions = (FORWARD, BACKWARD, "")
    return sorted(found.values(), key=lambda row: (-row.layers, directions.index(row.direction)))


def _layers(best: Candidate) -> str:
    """Returns the collectives of a layer as a table."""
    rows = [
        [str(row.layers), row.direction, *map(row.per_layer, COLLECTIVES), f"{row.seconds / row.layers * 1e6:,.1f} us"]
        for row in _in_layers(best)
    ]
    headings = ["layers", "direction", *COLLECTIVES, "time"]
    return "\ncollectives of a layer, by the model\n" + table(headings, rows, "rl" + "r" * (len(COLLECTIVES) + 1))


def _dimensions(best: Candidate) -> str:
    """Returns the named dimensions as a table, and what they are."""
    found = best.assigned.dimensions
    rows = [
        [
            each.name,
            " ".join(map(str, each.sizes[:_MOST_PLACES])),
            str(len(dict(each.places))),
            _first([f"{_short(name)} {dim}" for name, dim in _argument_places(best, each)]),
            ", ".join(f"{axis} in {share:.0%}" for axis, share in _shares(best, each).items()),
            _first([_type(best.assigned.factored.program.tensors[tensor]) for tensor in each.conflicts]),
        ]
        for each in found[:MOST_DIMENSIONS]
    ]
    if len(found) > MOST_DIMENSIONS:
        rows.append([f"and {len(found) - MOST_DIMENSIONS} more", *[""] * 5])
    return "\nnamed dimensions: split alike wherever no conversion is between; shares are of the bytes\n" + table(
        ["name", "size", "tensors", "in arguments", "split over", "twice in, so a conflict"], rows, "lrrlll"
    )


def _short(name: str) -> str:
    """Returns the end of an argument's name.

    Example:
      >>> _short("state[0]['blocks']['attention']['k'].value"), _short("tokens")
      ('blocks.attention.k', 'tokens')
    """
    return ".".join(map(str, Name.parse(name).keys[-_LAST_KEYS:])) or name


def _first(names: list[str]) -> str:
    different = list(dict.fromkeys(names))
    rest = len(different) - _MOST_PLACES
    return ", ".join(different[:_MOST_PLACES]) + (f" and {rest} more" if rest > 0 else "")


def _argument_places(best: Candidate, dimension: NamedDimension) -> list[tuple[str, int]]:
    """Returns the arguments that have a named dimension, each with the number of the dimension there."""
    factored = best.assigned.factored
    numbers = {tensor: number for number, tensor in enumerate(factored.arguments) if tensor is not None}
    return [
        (factored.program.tensors[tensor].name or f"argument {numbers[tensor]}", dim)
        for tensor, dim in dimension.places
        if tensor in numbers
    ]


def _shares(best: Candidate, dimension: NamedDimension) -> dict[str, float]:
    assigned = best.assigned
    return dimension.shares(assigned.factored.program, assigned.assignment.layouts)


def _row(each: Candidate) -> list[str]:
    ours = each.ours if each.ours and each.ours.is_ok else None
    return [
        mesh_text(each.mesh) + _FORMS[each.axes],
        _time(each.assigned.seconds),
        _time(each.stock_s) if each.stock else "",
        _time(each.ours_s) if each.ours else "",
        f"{ours.costs.bytes_received / 1e6:,.2f} MB" if ours else "",
        f"{mebibytes(ours.peak_bytes or 0, 1)} MiB" if ours else "",
        "" if each.assigned.constraints is None else str(each.assigned.constraints),
    ]


def _skipped(choice: Choice) -> list[list[str]]:
    return [[mesh_text(mesh), f">= {bound * 1e6:,.0f} us", *[""] * 5] for mesh, bound in choice.skipped]


def _time(seconds: float) -> str:
    return "-" if math.isinf(seconds) else f"{seconds * 1e6:,.0f} us"


def _few(rows: list, most: int) -> list:
    if len(rows) <= most:
        return rows
    return [*rows[:most], [f"and {len(rows) - most} more", "", ""]]


def _arguments(best: Candidate) -> list[tuple[str, str, str]]:
    found = []
    factored, layouts = best.assigned.factored, best.assigned.assignment.layouts
    for number, tensor in enumerate(factored.arguments):
        if tensor is not None:
            value = factored.program.tensors[tensor]
            found.append(
                (value.name or f"argument {number}", _type(value), _spec(factored.as_stated(tensor, layouts[tensor])))
            )
    return found


def _alike(arguments: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Returns a row for arguments with equal last keys, types and shardings, such as a parameter and its moments.

    Example:
      >>> _alike([("p['w']", "f32[8]", "P('x')"), ("mu['w']", "f32[8]", "P('x')"), ("x", "f32[8]", "P()")])
      [("p['w'] and 1 more", 'f32[8]', "P('x')"), ('x', 'f32[8]', 'P()')]
    """
    groups: dict[tuple, list[str]] = {}
    for name, kind, spec in arguments:
        groups.setdefault((Name.parse(name).keys[-2:] or name, kind, spec), []).append(name)
    return [
        (names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""), kind, spec)
        for (_, kind, spec), names in groups.items()
    ]


def _summed(moves: list[_Move]) -> list[_Move]:
    """Returns conversions with equal ones added up, such as those of several layers; the longest first.

    Example:
      >>> _summed([(2.0, 1, "dot", "f32[8]", "P()", "P('x')"), (1.5, 1, "add", "f32[8]", "P()", "P('x')")] * 2)
      [(4.0, 2, 'dot', 'f32[8]', 'P()', "P('x')"), (3.0, 2, 'add', 'f32[8]', 'P()', "P('x')")]
    """
    sums: dict[tuple[str, str, str, str], tuple[float, int]] = {}
    for us, runs, *what in moves:
        op, kind, source, target = what
        us_before, runs_before = sums.get((op, kind, source, target), (0.0, 0))
        sums[op, kind, source, target] = us_before + us, runs_before + runs
    return sorted(((*spent, *what) for what, spent in sums.items()), key=lambda each: -each[0])


def _moves(best: Candidate) -> list[_Move]:
    program = best.assigned.factored.program
    found = []
    for move in best.assigned.assignment.moves:
        value = program.tensors[move.tensor]
        op = program.ops[move.op].name if move.op is not None else "several ops"
        found.append((move.seconds * 1e6, move.runs, op, _type(value), _spec(move.source), _spec(move.target)))
    return found


def _type(value: Tensor) -> str:
    return f"{value.element}[{','.join(map(str, value.shape))}]"


def _spec(sharding: Sharding | None) -> str:
    return "P()" if sharding is None else text_of(sharding) or str(sharding)
