# SPDX-License-Identifier: Apache-2.0
"""Programs on one real device: measured times beside the modelled ones of their local work.

    python -m benchmarks.whole_modules.one_device [--topology h100:8] [--size demo] [--programs NAME,...] [--seconds 2]
        [--out FILE.md]

The programs are those of `python -m benchmarks.programs list`, on a mesh of the first device that jax finds, a GPU for
instance. Nothing is sent, so what is modelled is the part of a module's time that the planner's costs do not have: a
roofline of operations and bytes, from the program that the partitioner hands to the compiler. A run is the median of as
many calls as fit into `--seconds`; the first one is not counted. Products of float32 run in the precision that jax has
by default on the device. Pieces are the parts of the work that the model has: about as many as kernels are started.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from benchmarks.calibration import rank_correlation
from benchmarks.harness.progress import shown
from benchmarks.programs.catalogue import every_program
from benchmarks.programs.program import Program
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.passes.sites.network import SiteNetwork, topology_of
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import TopologyError

_HEADINGS = ("program", "pieces", "measured in us", "modelled in us", "modelled / measured")
_MOST_RUNS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """A program's times in seconds, or why there are none."""

    program: str
    pieces: int = 0
    measured_s: float = 0.0
    modelled_s: float = 0.0
    problem: str = ""

    @property
    def ratio(self) -> float:
        return self.modelled_s / self.measured_s

    def cells(self) -> list[str]:
        if self.problem:
            return [self.program, self.problem, *[""] * (len(_HEADINGS) - 2)]
        times = (f"{1e6 * seconds:,.0f}" for seconds in (self.measured_s, self.modelled_s))
        return [self.program, str(self.pieces), *times, f"{self.ratio:.2f}"]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    network = SiteNetwork(options.topology)
    rows = [row_of(entry, options.size, network, options.seconds) for entry in shown(options.programs, "programs")]
    text = report(rows, jax.devices()[0].device_kind, options.topology)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def row_of(entry: Program, size: str, network: SiteNetwork, seconds: float) -> Row:
    """Returns the row of a program. A program that does not run here is a result, too."""
    axes = [(name, 1) for name, _ in entry.mesh_axes]
    size = size if size in entry.sizes else entry.sizes[-1]
    try:
        compiled = _compiled(entry, size, axes)
        pieces = sum(work.runs for work in compiled.work)
        return Row(entry.name, pieces, _measured(entry, size, axes, seconds), network.time_of(compiled, 1).seconds)
    except (RuntimeError, ValueError, TypeError) as problem:  # what jax raises for memory, or for an op without a form
        return Row(entry.name, problem=f"{type(problem).__name__}: {str(problem).splitlines()[0][:60]}")


def _compiled(entry: Program, size: str, axes: Sequence[tuple[str, int]]) -> Compiled:
    compiled = shared_child().compile(entry.lower(size, axes).as_text(), 1)
    if not compiled.is_ok:
        raise RuntimeError(compiled.message)
    return compiled


def _measured(entry: Program, size: str, axes: Sequence[tuple[str, int]], seconds: float) -> float:
    """Returns the median seconds of a call."""
    mesh = entry.mesh(axes)
    function, shapes = entry.build(mesh, size)
    step = function.lower(*shapes).compile()
    times: list[float] = []
    arguments = entry.arguments(mesh, size)
    donates = any(info.donated for info in jax.tree.leaves(step.args_info))
    began = time.perf_counter()
    while len(times) < 2 or (time.perf_counter() - began < seconds and len(times) < _MOST_RUNS):
        jax.block_until_ready(arguments)
        start = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        times.append(time.perf_counter() - start)
        if donates:
            arguments = entry.arguments(mesh, size)
    return statistics.median(times[1:])


def report(rows: Sequence[Row], kind: str, topology: str) -> str:
    """Returns the table and what it comes to."""
    done = [row for row in rows if not row.problem]
    lines = [
        f"{kind}, modelled as {topology}; a call of an empty program takes {1e6 * _call_s():,.0f} us:",
        "",
        markdown_table(_HEADINGS, [row.cells() for row in rows], "lrrrr"),
    ]
    if len(done) > 1:
        ranks = rank_correlation([row.measured_s for row in done], [row.modelled_s for row in done])
        ratio = statistics.geometric_mean(row.ratio for row in done)
        lines += ["", f"Rank correlation {ranks:.3f} over {len(done)} programs, modelled / measured {ratio:.2f}."]
    return "\n".join(lines)


def _call_s() -> float:
    """Returns the median seconds of a call that computes next to nothing."""
    step, one = jax.jit(lambda x: x + 1), jax.numpy.ones((8, 128))
    times = []
    for _ in range(_MOST_RUNS):
        start = time.perf_counter()
        jax.block_until_ready(step(one))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", default="h100:8", help="whose rates of operations and bytes are meant")
    parser.add_argument("--size", default="demo", help="of the programs; the largest one where there is no such size")
    parser.add_argument("--programs", default="", help="names; all whose libraries are installed if there are none")
    parser.add_argument("--seconds", type=float, default=2.0, help="of runs of each program")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to a file")
    options = parser.parse_args(arguments)
    known = {each.name: each for each in every_program()}
    names = options.programs.split(",") if options.programs else [name for name in known if not known[name].missing]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no program {', '.join(unknown)}; see python -m benchmarks.programs list")
    options.programs = [known[name] for name in names]
    try:
        topology_of(options.topology)
    except TopologyError as problem:
        parser.error(str(problem))
    return options


if __name__ == "__main__":
    sys.exit(main())
