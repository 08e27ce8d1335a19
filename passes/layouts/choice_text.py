# SPDX-License-Identifier: Apache-2.0
"""A choice of layouts for people: the meshes with their times, what each axis is for, arguments, conversions."""

from __future__ import annotations

import math
from typing import Any

from reshard.dialect_utils.analysis.argument_groups import Name
from reshard.passes.layouts.choosing import Candidate, Choice, mesh_text
from reshard.synthesis.assignment.factored_program import Tensor
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import table
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.layouts.sharding import Sharding

MOST_MOVES = 10
MOST_ARGUMENTS = 60


def as_dict(choice: Choice) -> dict[str, Any]:
    """Returns a choice as plain data, schema `reshard.auto/1`; times in us, bytes per device."""
    best = choice.best
    return {
        "schema": "reshard.auto/1",
        "topology": choice.network.readable,
        "mesh": dict(best.mesh.axes),
        "candidates": [_candidate(each) for each in choice.candidates],
        "skipped": [{"mesh": dict(mesh.axes), "least_us": bound * 1e6} for mesh, bound in choice.skipped],
        "axes": [
            {"axis": use.axis, "words": use.words, "work": dict(use.work), "stored": use.stored}
            for use in best.assigned.uses
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


def as_text(choice: Choice) -> str:
    """Returns a choice as text."""
    best, network = choice.best, choice.network
    where = network.topology.name if network.is_known else "an unknown network, one switch"
    parts = [
        f"layouts for {best.mesh.size} devices, times modelled on {where}\n",
        table(
            ["mesh", "model", "stock XLA", "reshard", "received", "memory", "constraints"],
            [*map(_row, choice.candidates), *_skipped(choice)],
            "lrrrrrr",
        ),
        _notes(best),
        "\nwhat each axis is for\n",
        *(f"  {use.axis}: {use.words}\n" for use in best.assigned.uses),
        "\narguments\n",
        table(["name", "type", "sharding"], _few(_alike(_arguments(best)), MOST_ARGUMENTS), "lll"),
    ]
    if moves := _moves(best)[:MOST_MOVES]:
        rows = [[f"{us:,.1f} us", str(runs), *rest] for us, runs, *rest in moves]
        parts += [
            "\nthe longest conversions, by the model\n",
            table(["time", "runs", "for", "tensor", "from", "to"], rows, "rrllll"),
        ]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def _notes(best: Candidate) -> str:
    return f"{mesh_text(best.mesh)} is taken; its layouts are within {best.assigned.gap:.1%} of the best in the model\n"


def _row(each: Candidate) -> list[str]:
    ours = each.ours if each.ours and each.ours.is_ok else None
    return [
        mesh_text(each.mesh),
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


def _moves(best: Candidate) -> list[tuple[float, int, str, str, str, str]]:
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
