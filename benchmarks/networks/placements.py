# SPDX-License-Identifier: Apache-2.0
"""Places programs on networks: the best order of devices beside the order of their ids and jax's.

    python -m benchmarks.networks.placements [--topologies h100:4x8,v5p:2x4x4] [--programs NAME,...] [--size large]
        [--compiled 0] [--journal FILE.jsonl] [--out FILE.md]

Each program is lowered for every shape of a mesh with its own axes that has as many devices as the network and no axis
of size 1; shapes that a program cannot have are left out. Times are modelled, of the program as stock XLA partitions it
and, with `--compiled`, after `reshard-opt` for the best placements. The exit status is 1 if jax's order is faster than
the best one somewhere.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.journal import Journal
from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.compiling.placing import JAX, ROW_MAJOR, of_source
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.passes.layouts.choosing import products
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import Topology

if TYPE_CHECKING:  # it loads jax, whose number of devices is set first
    from benchmarks.programs.program import Program

_MOST_DEVICES = 256
_BETTER = 1e-3  # relative difference of times that counts
_HEADINGS = (
    "network", "program", "mesh", "placements", "ids in us", "jax in us", "best in us", "ids / best", "jax / best",
    "the best one", "s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A program on a mesh and a network; times in us, None where jax refuses; `problem` is why there are none."""

    topology: str
    program: str
    mesh: str
    placements: int = 0
    ids_us: float = 0.0
    jax_us: float | None = None
    best_us: float = 0.0
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
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    programs = [program for program in every_program() if program.name in options.programs]
    rows = [row for text in options.topologies for program in programs for row in _rows(text, program, options)]
    replace_line("")
    text = markdown_table(_HEADINGS, [_cells(row) for row in rows], "lll" + "r" * 6 + "lr") + "\n\n" + _summary(rows)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n")
    return int(any(row.jax_us is not None and row.jax_us < row.best_us * (1 - _BETTER) for row in rows))


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
        try:
            content = compat.bytecode(program.lower(size, axes).compiler_ir("stablehlo"))
        except (ValueError, TypeError, AssertionError):  # a shape that the program cannot have
            continue
        row = _placed(topology, program.name, mesh, content, options.compiled)
        if journal:
            journal.add(question, asdict(row))
        yield row


def _placed(topology: str, name: str, mesh: str, content: bytes, compiled: int) -> Row:
    start = time.perf_counter()
    try:
        found = of_source(content, name, Topology.parse(topology), compiled=compiled)
    except DiagnosedError as error:
        return Row(topology, name, mesh, problem=error.diagnostics[0].message.splitlines()[0][:100])
    ids, jax = found.named(ROW_MAJOR), found.named(JAX)
    best = min(found.places, key=lambda each: each.best_s)
    times = ids.best_s * 1e6 if ids else math.nan, jax and jax.best_s * 1e6, best.best_s * 1e6
    return Row(topology, name, mesh, len(found.places), *times, best.text, time.perf_counter() - start)


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.topology, row.program, row.mesh, row.problem, *[""] * 7]
    jax = (
        (f"{row.jax_us:,.0f}", f"{row.jax_us / row.best_us:.2f}")
        if row.jax_us is not None and row.best_us
        else ("", "")
    )
    ids = f"{row.ids_us / row.best_us:.2f}" if row.best_us else ""
    times = (f"{row.ids_us:,.0f}", jax[0], f"{row.best_us:,.0f}", ids, jax[1])
    return [row.topology, row.program, row.mesh, str(row.placements), *times, row.text, f"{row.seconds:.1f}"]


def _summary(rows: Sequence[Row]) -> str:
    priced = [row for row in rows if not row.problem and row.best_us]
    lines = []
    for what, of in (("the order of the ids", lambda row: row.ids_us), ("jax's order", lambda row: row.jax_us)):
        ratios = [of(row) / row.best_us for row in priced if of(row) is not None]
        if ratios:
            slower = sum(ratio > 1 + _BETTER for ratio in ratios)
            geomean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            said = f"slower in {slower} of {len(ratios)}, geomean {geomean:.3f}, at most {max(ratios):.2f}"
            lines.append(f"{what} beside the best: {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
