# SPDX-License-Identifier: Apache-2.0
"""Ledgers as text and as plain data: stock XLA's program, and ours beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from reshard.passes.traffic.causes import MEANINGS
from reshard.passes.traffic.ledger import GROUPINGS, Entry, Group, Ledger, Moments
from reshard.passes.traffic.row_text import OURS, STOCK, bound_text
from reshard.synthesis.common.numbers import counted, decimal_bytes_text, percent, time_text
from reshard.synthesis.common.text_table import first_line, table

SCHEMA = "reshard.traffic/1"
MOST_MOMENTS = 400  # of the picture of the memory; more do not fit into it
MOST = 20  # rows of a table, unless the caller wants more


def as_text(
    name: str,
    stock: Ledger,
    ours: Ledger | None = None,
    *,
    is_unchanged: bool = False,
    by: str | None = None,
    most: int | None = MOST,
) -> str:
    """Returns the totals of both programs, then a table for each, the longest rows first.

    Args:
      ours: None if nothing was rewritten, or nobody asked for it. is_unchanged: whether nothing was rewritten.
      by: one of `GROUPINGS` for a row per group; None for a row per collective.
      most: rows of a table; None for all.
    """
    sides = [(STOCK, stock), *([(OURS, ours)] if ours is not None else [])]
    parts = [f"{name}: {counted(stock.num_devices, 'device')}, times modelled on {network_text(stock)}", _totals(sides)]
    if is_unchanged:
        parts.append("reshard leaves the program as it is, so there is one table")
    for title, ledger in sides:
        if ledger.compiled.is_ok:
            rows = _groups_text(ledger.grouped(by), ledger, by, most) if by else _entries_text(ledger, most)
            parts.append(f"{title}, the longest first\n{rows}")
        else:
            parts.append(f"{title}: {ledger.compiled.status}: {first_line(ledger.compiled.message)}")
        parts += _notes(ledger)
    if not by:
        parts.append(_meanings([ledger for _, ledger in sides]))
    return "\n\n".join(filter(None, parts)) + "\n"


def network_text(ledger: Ledger) -> str:
    """Returns the name and the shape of the network, such as `h100, 2 node x 8 gpu`."""
    return f"{ledger.topology.name}, {ledger.topology.shape_text}"


def _totals(sides: Sequence[tuple[str, Ledger]]) -> str:
    compiled = [(title, ledger) for title, ledger in sides if ledger.compiled.is_ok]
    if not compiled:
        return ""
    rows = [
        ("received by the busiest device", [decimal_bytes_text(each.bytes_received) for _, each in compiled]),
        ("time of the collectives", [time_text(each.seconds) for _, each in compiled]),
        ("modelled time of the program", [time_text(each.time.seconds) for _, each in compiled]),
        ("collectives", [str(len(each.entries)) for _, each in compiled]),
        ("runs of them", [f"{sum(entry.runs for entry in each.entries):,}" for _, each in compiled]),
        ("temporaries", [decimal_bytes_text(each.compiled.temp_bytes or 0) for _, each in compiled]),
        ("bytes with a known cause", [percent(explained_share(each)) for _, each in compiled]),
    ]
    return table(
        ("", *(title for title, _ in compiled)), [(name, *cells) for name, cells in rows], "l" + "r" * len(compiled)
    )


def explained_share(ledger: Ledger) -> float:
    """Returns the share of the received bytes whose cause is known; 1 if there are none."""
    return ledger.explained_bytes / ledger.entry_bytes if ledger.entry_bytes else 1.0


_HEADINGS = (
    "time", "share", "received", "x bound", "runs", "could overlap", "collective", "tile", "axes", "line", "why",
)  # fmt: skip
_SIDES_OF_COLUMNS = "rrrrrllllll"


def _entries_text(ledger: Ledger, most: int | None) -> str:
    if not ledger.entries:
        return "  no collective: no device receives anything"
    rows = [_entry_row(entry, ledger) for entry in ledger.entries[:most]]
    return _with_rest(table(_HEADINGS, rows, _SIDES_OF_COLUMNS), [*ledger.entries[most:]] if most else [], ledger)


def _entry_row(entry: Entry, ledger: Ledger) -> tuple[str, ...]:
    return (
        time_text(entry.seconds),
        _share(entry, ledger),
        decimal_bytes_text(entry.bytes_received),
        bound_text(None if entry.bound is None else entry.bound.bytes_received, entry.times_bound),
        f"{entry.runs:,}",
        _overlap_text(entry),
        entry.collective.kind,
        entry.tensor,
        entry.axes,
        entry.place,
        entry.cause.text,
    )


def _overlap_text(entry: Entry) -> str:
    return "no" if entry.beside is None else f"{percent(entry.overlap)}, {entry.beside.op}"


def _groups_text(groups: list[Group], ledger: Ledger, by: str, most: int | None) -> str:
    if not groups:
        return "  no collective: no device receives anything"
    rows = [
        (
            time_text(each.seconds),
            _share(each, ledger),
            decimal_bytes_text(each.bytes_received),
            str(len(each.entries)),
            f"{each.runs:,}",
            each.name,
        )
        for each in groups[:most]
    ]
    text = table(("time", "share", "received", "collectives", "runs", by), rows, "rrrrrl")
    return _with_rest(text, [entry for each in groups[most:] for entry in each.entries] if most else [], ledger)


def _with_rest(text: str, rest: Sequence[Entry], ledger: Ledger) -> str:
    if not rest:
        return text
    left = Group("", tuple(rest))
    return (
        f"{text}\nand {counted(len(rest), 'more collective')}, which take {time_text(left.seconds)} "
        f"({_share(left, ledger).strip()}) and receive {decimal_bytes_text(left.bytes_received)}"
    )


def _share(part: Entry | Group, ledger: Ledger) -> str:
    return percent(part.seconds / ledger.seconds) if ledger.seconds else "-"


def _notes(ledger: Ledger) -> list[str]:
    notes = []
    if ledger.unknown_trip_counts:
        loops = ", ".join(ledger.unknown_trip_counts)
        notes.append(f"note: XLA does not tell how often {loops} runs, so the collectives in it are counted once")
    if ledger.unpriced:
        notes.append(f"note: {', '.join(ledger.unpriced)} moves data, too, and is not counted")
    if ledger.compiled.run_by and ledger.entries:
        shared = sum(entry.collective.together > 1 for entry in ledger.entries)
        every = counted(len(ledger.entries), "collective")
        together = f"; {shared} of {every} run as one with others" if shared else ""
        named = f"compilers for {ledger.compiled.run_by.upper()}s"
        notes.append(f"note: as {named} run them: a sum of which devices keep parts is a reduce_scatter{together}")
    return notes


def _meanings(ledgers: Sequence[Ledger]) -> str:
    """Returns what the causes in the ledgers mean, those with the most bytes first."""
    used: dict[str, int] = {}
    for ledger in ledgers:
        for entry in ledger.entries:
            used[entry.cause.kind] = used.get(entry.cause.kind, 0) + entry.bytes_received
    if not used:
        return ""
    rows = [(kind, MEANINGS[kind]) for kind in sorted(used, key=lambda kind: -used[kind])]
    width = max(len(kind) for kind, _ in rows)
    return "causes\n" + "\n".join(f"  {kind:<{width}}  {meaning}" for kind, meaning in rows)


# ---- plain data


def as_dict(name: str, stock: Ledger, ours: Ledger | None = None, *, is_unchanged: bool = False) -> dict[str, Any]:
    """Returns both ledgers as plain data, schema `reshard.traffic/1`: bytes, seconds, all runs together."""
    return {
        "schema": SCHEMA,
        "module": name,
        "num_devices": stock.num_devices,
        "topology": network_text(stock),
        "is_unchanged": is_unchanged,
        "stock": _ledger_dict(stock),
        "ours": None if ours is None else _ledger_dict(ours),
    }


def _ledger_dict(ledger: Ledger) -> dict[str, Any]:
    compiled = ledger.compiled
    return {
        "status": compiled.status,
        "message": compiled.message,
        "bytes_received": ledger.bytes_received if compiled.is_ok else None,
        "seconds": ledger.seconds if compiled.is_ok else None,
        "program_seconds": ledger.time.seconds if compiled.is_ok else None,
        "run_by": compiled.run_by,
        "temp_bytes": compiled.temp_bytes,
        "explained_share": explained_share(ledger) if compiled.is_ok else None,
        "unknown_trip_counts": list(ledger.unknown_trip_counts),
        "unpriced": list(ledger.unpriced),
        "collectives": [as_entry_dict(entry) for entry in ledger.entries],
        "memory": None if ledger.memory is None else _memory_dict(ledger.memory, compiled.peak_bytes),
        "by": {by: [_group_dict(group) for group in ledger.grouped(by)] for by in GROUPINGS},
    }


def as_entry_dict(entry: Entry) -> dict[str, Any]:
    """Returns a collective as plain data, one of "collectives" in `reshard.traffic/1`."""
    return {
        "kind": entry.collective.kind,
        "name": entry.name,
        "tile": entry.tensor,
        "runs": entry.runs,
        "together": entry.collective.together,
        "bytes_received": entry.bytes_received,
        "seconds": entry.seconds,
        "axes": entry.axes,
        "level": entry.level,
        "location": entry.place,
        "location_chain": list(entry.calls),
        "op": entry.op,
        "cause": entry.cause.kind,
        "why": entry.cause.text,
        "site": entry.cause.site,
        "parameter": entry.cause.parameter,
        "bound_bytes": None if entry.bound is None else entry.bound.bytes_received,
        "bound_seconds": None if entry.bound is None else entry.bound.seconds,
        "times_bound": entry.times_bound,
        "could_overlap": entry.beside is not None,
        "overlap": entry.overlap,
        "beside": None if entry.beside is None else asdict(entry.beside),
    }


def _memory_dict(memory: Moments, peak_bytes: int | None) -> dict[str, Any]:
    """Returns the memory over the program's time.

    Returns: "argument_bytes"; "moments" as lists [temporary bytes, bytes of results], at most `MOST_MOMENTS`: of
      several instructions, the one with the most; "collectives" and "loops" with the numbers of their moments; and
      "peak_bytes", which is the compiler's own.
    """
    moments = memory.timeline.moments
    step = max(1, -(-len(moments) // MOST_MOMENTS))
    pieces = [moments[at : at + step] for at in range(0, len(moments), step)]
    most = [max(piece, key=lambda each: each.temporary_bytes + each.result_bytes) for piece in pieces]
    loops: dict[str, dict[str, Any]] = {}
    for at, each in enumerate(moments):
        if each.loops:
            loops.setdefault(each.loops[-1], {"name": each.loops[-1], "runs": each.runs, "first": at // step})
            loops[each.loops[-1]]["last"] = at // step
    return {
        "peak_bytes": peak_bytes,
        "argument_bytes": memory.timeline.argument_bytes,
        "instructions": len(moments),
        "moments": [[each.temporary_bytes, each.result_bytes] for each in most],
        "collectives": [
            {
                "at": at // step,
                "kind": each.opcode.removesuffix("-start").replace("-", "_"),
                "runs": each.runs,
                "location": memory.places.get(each.name, ""),
            }
            for at, each in enumerate(moments)
            if each.is_collective
        ],
        "loops": list(loops.values()),
    }


def _group_dict(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "collectives": len(group.entries),
        "runs": group.runs,
        "bytes_received": group.bytes_received,
        "seconds": group.seconds,
    }
