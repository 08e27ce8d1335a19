# SPDX-License-Identifier: Apache-2.0
"""Places programs on networks: the order of devices that `reshard place` takes beside the row-major one and jax's.

    python -m benchmarks.networks.placements [--topologies h100:4x8,v5p:2x4x4] [--programs NAME,...] [--size large]
        [--compiled 0] [--rows N] [--journal FILE.jsonl] [--out FILE.md]

Each program is lowered for every shape of a mesh with its own axes that has as many devices as the network and no axis
of size 1; shapes that a program cannot have are left out. Times are modelled, of the program as stock XLA partitions it
and, with `--compiled`, after `reshard-opt` for the best placements. A table has a row for each network; below it are
all pairs of program and mesh, or of each network the `--rows` in which most is gained over jax's order. The exit status
is 1 if jax's order is faster than ours somewhere.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.journal import Journal
from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.compiling.placing import JAX, ROW_MAJOR, of_source
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.typed import present
from reshard.passes.layouts.choosing import products
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import Topology

if TYPE_CHECKING:  # it loads jax, whose number of devices is set first
    from benchmarks.programs.program import Program

_MOST_DEVICES = 256
_BETTER = 1e-3  # relative difference of times that counts
_HEADINGS = (
    "network", "program", "mesh", "placements", "row-major in us", "jax in us", "ours in us", "row-major / ours",
    "jax / ours", "ours", "s",
)  # fmt: skip
_SUMMARY = (
    "network", "pairs", "jax refuses", "ours faster than jax", "equal", "slower", "jax / ours: geomean", "max",
    "ours faster than row-major", "row-major / ours: geomean", "max", "place in s: median", "max",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A program on a mesh and a network; times in us, None where jax refuses; `problem` is why there are none.

    Attributes:
      text: the placement that is taken. seconds: how long it took to find.
    """

    topology: str
    program: str
    mesh: str
    placements: int = 0
    row_major_us: float = 0.0
    jax_us: float | None = None
    our_us: float = 0.0
    text: str = ""
    seconds: float = 0.0
    problem: str = ""


def main(arguments: list[str] | None = None) -> int:
    use_devices(_MOST_DEVICES)
    from benchmarks.programs.catalogue import every_program

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    installed = [program.name for program in every_program() if not program.missing]
    parser.add_argument("--topologies", type=lambda text: text.split(","), default=["h100:4x8", "v5p:2x4x4"])
    parser.add_argument("--programs", type=lambda text: text.split(","), default=installed)
    parser.add_argument("--size", default="large")
    parser.add_argument("--compiled", type=int, default=0)
    parser.add_argument("--rows", type=int, metavar="N", help="of each network; all if it is left out")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    programs = [program for program in every_program() if program.name in options.programs]
    rows = [row for text in options.topologies for program in programs for row in _rows(text, program, options)]
    replace_line("")
    text = "\n\n".join(_tables(rows, options))
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n")
    return int(any(_beside_jax(row) < 1 - _BETTER for row in _with_jax(rows)))


def _rows(topology: str, program: Program, options: argparse.Namespace) -> Iterator[Row]:
    journal = Journal(options.journal) if options.journal else None
    devices = Topology.parse(topology).size
    names = [name for name, _ in program.mesh_axes]
    size = options.size if options.size in program.sizes else program.sizes[-1]
    for sizes in products(devices, len(names)):
        axes = tuple(zip(names, sizes, strict=True))
        mesh = ", ".join(f"{name}={count}" for name, count in axes)
        replace_line(f"{program.name} with {mesh} on {topology}")
        question = f"{topology} {program.name} {size} {mesh} {options.compiled}"
        if journal and (kept := journal.get(question)):
            yield Row(**kept)
            continue
        if (content := _lowered(program, size, axes)) is None:
            continue
        row = _placed(topology, program.name, mesh, content, options.compiled)
        if journal:
            journal.add(question, asdict(row))
        yield row


@cache
def _lowered(program: Program, size: str, axes: tuple[tuple[str, int], ...]) -> bytes | None:
    """Returns a program on a mesh, None if it cannot have its shape; networks of one size ask for the same ones."""
    try:
        return compat.bytecode(program.lower(size, axes).compiler_ir("stablehlo"))
    except (ValueError, TypeError, AssertionError):
        return None


def _placed(topology: str, name: str, mesh: str, content: bytes, compiled: int) -> Row:
    start = time.perf_counter()
    try:
        found = of_source(content, name, Topology.parse(topology), compiled=compiled)
    except DiagnosedError as error:
        return Row(topology, name, mesh, problem=error.diagnostics[0].message.splitlines()[0][:100])
    row_major, jax = found.named(ROW_MAJOR), found.named(JAX)
    times = row_major.best_s * 1e6 if row_major else math.nan, jax and jax.best_s * 1e6, found.best.best_s * 1e6
    return Row(topology, name, mesh, len(found.places), *times, found.best.text, time.perf_counter() - start)


def _tables(rows: Sequence[Row], options: argparse.Namespace) -> Iterator[str]:
    by_network = {name: [row for row in rows if row.topology == name] for name in options.topologies}
    yield markdown_table(_SUMMARY, [_summary(name, of) for name, of in by_network.items()], "l" + "r" * 12)
    shown = rows
    if options.rows is not None:
        shown = [row for of in by_network.values() for row in _most_gained(of)[: options.rows]]
    if shown:
        yield markdown_table(_HEADINGS, [_cells(row) for row in shown], "lll" + "r" * 6 + "lr")


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.topology, row.program, row.mesh, row.problem, *[""] * 7]
    jax = (f"{row.jax_us:,.0f}", f"{_beside_jax(row):.2f}") if row.jax_us is not None and row.our_us else ("", "")
    row_major = f"{_beside_row_major(row):.2f}" if row.our_us else ""
    times = (f"{row.row_major_us:,.0f}", jax[0], f"{row.our_us:,.0f}", row_major, jax[1])
    return [row.topology, row.program, row.mesh, str(row.placements), *times, row.text, f"{row.seconds:.1f}"]


def _summary(network: str, rows: Sequence[Row]) -> list[str]:
    priced = _priced(rows)
    jax = [_beside_jax(row) for row in _with_jax(rows)]
    row_major = [_beside_row_major(row) for row in priced]
    faster, slower = _count_above(jax), sum(ratio < 1 - _BETTER for ratio in jax)
    seconds = [row.seconds for row in priced]
    return [
        network, str(len(priced)), str(len(priced) - len(jax)),
        str(faster), str(len(jax) - faster - slower), str(slower), *_geomean_and_most(jax),
        str(_count_above(row_major)), *_geomean_and_most(row_major),
        *([f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}"] if seconds else ["", ""]),
    ]  # fmt: skip


def _most_gained(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows that jax has an order for, the one with the largest gain over it first."""
    return sorted(_with_jax(rows), key=_beside_jax, reverse=True)


def _priced(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.problem and row.our_us]


def _with_jax(rows: Sequence[Row]) -> list[Row]:
    return [row for row in _priced(rows) if row.jax_us is not None]


def _beside_jax(row: Row) -> float:
    return present(row.jax_us) / row.our_us


def _beside_row_major(row: Row) -> float:
    return row.row_major_us / row.our_us


def _count_above(ratios: Sequence[float]) -> int:
    """Returns how many ratios are above 1 by more than rounding."""
    return sum(ratio > 1 + _BETTER for ratio in ratios)


def _geomean_and_most(ratios: Sequence[float]) -> tuple[str, str]:
    if not ratios:
        return "", ""
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}", f"{max(ratios):.2f}"


if __name__ == "__main__":
    sys.exit(main())
