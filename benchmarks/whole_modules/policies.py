# SPDX-License-Identifier: Apache-2.0
"""Compares what the policies make of real programs: modelled time, received bytes, peak, beside stock XLA.

    python -m benchmarks.whole_modules.policies [--programs NAME,...] [--topologies cpu:8,h100:2x4,v5e:2x2*2]

A program is one of `python -m benchmarks.programs list`, or the path of an `.mlir` file; without a list, all whose
libraries are installed. A policy is one of `reshard-opt`, or `chosen`, which is `better` with `--layouts=chosen`. Each
program is lowered for as many devices as the topology has, is compiled by stock XLA for CPU devices, and goes through
the pipeline and the whole-module check under each policy, written for the network's platform. Times are modelled on the
topology, collectives and local work one after the other. `better` must not be slower than another column but `chosen`,
nor need more memory than stock XLA; the exit status is 1 if it is, or if a program fails. Received bytes are those
right after partitioning.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.driver.registry import CHOSEN, GIVEN
from reshard.passes.results.checks import run_and_checked
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER, POLICIES
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.program_time import ProgramTime
from reshard.synthesis.network.topology import Topology

TOPOLOGIES = "cpu:8,h100:2x4,v5e:2x4,v5e:2x2*2"
_MOST_DEVICES = 64
_SLOWER = 1e-3  # relative difference that counts


@dataclass(frozen=True, slots=True)
class Side:
    """A program under one policy. Times in seconds, bytes per device; `rewritten` of `sites` sites.

    Without `--emit manual`, a module may be written per device as a whole; its sites are then its changes of layout.
    """

    seconds: float
    collectives_s: float
    bytes_received: int
    peak_bytes: int
    rewritten: int = 0
    sites: int = 0
    attempts: int = 0
    pass_s: float = 0.0
    is_taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One program on one topology: stock XLA's side and one for each policy, or the problem that there are none."""

    program: str
    topology: str
    sides: dict[str, Side]
    problem: str = ""


def main(arguments: list[str] | None = None) -> int:
    use_devices(_MOST_DEVICES)
    options = _parse(arguments)
    rows = []
    pairs = [(name, topology) for topology in options.topologies for name in options.programs]
    for number, (name, topology) in enumerate(pairs, 1):
        replace_line(f"{number} of {len(pairs)}: {name} on {topology}")
        rows.append(_measured(name, topology, options))
        if options.journal:
            options.journal.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    replace_line("")
    print("\n\n".join(_tables(rows)))
    return int(any(row.problem or worse_than(row) for row in rows))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=lambda text: text.split(","), help="default: all")
    parser.add_argument("--topologies", type=lambda text: text.split(","), default=TOPOLOGIES.split(","))
    parser.add_argument("--size", default="demo", help="demo, small, large or pod")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--emit", default="auto", choices=("manual", "auto"))
    parser.add_argument("--effort", type=int, default=1)
    parser.add_argument("--journal", type=Path, metavar="FILE.json", help="also write all figures to this file")
    options = parser.parse_args(arguments)
    options.programs = options.programs or known()
    return options


def known() -> list[str]:
    """Returns the names of the programs whose libraries are installed; says which are left out."""
    from benchmarks.programs.catalogue import every_program

    for each in every_program():
        if each.missing:
            print(f"skipped: {each.name} needs {', '.join(each.missing)}", file=sys.stderr)
    return [each.name for each in every_program() if not each.missing]


def text_of(name: str, devices: int, size: str) -> str:
    """Returns the module of a program for a number of devices."""
    if name.endswith(".mlir"):
        return Path(name).read_text()
    from benchmarks.programs.catalogue import every_program

    entry = next(each for each in every_program() if each.name == name)
    return entry.lower_over(devices, size)[1].as_text()


def _measured(name: str, topology: str, options: argparse.Namespace) -> Row:
    devices = Topology.parse(topology).size
    try:
        text, network = text_of(name, devices, options.size), SiteNetwork(topology)
    except (TypeError, ValueError) as error:  # jax refuses arrays that do not divide
        return Row(name, topology, {}, f"does not fit {devices} devices: {str(error).splitlines()[0][:160]}")
    with make_context() as context:
        plain = str(ir.Module.parse(text, context))
    stock = shared_child().compile(plain, devices, has_final=network.has_final, stands_in=network.stands_in)
    if not stock.is_ok:
        return Row(name, topology, {}, f"stock XLA: {stock.status} {stock.message[:200]}")
    sides = {"stock": _side(network.time_beside(stock, stock, devices), stock)}
    for policy in options.policies:
        start_s = time.perf_counter()
        is_chosen = policy == CHOSEN
        session = Session(RunOptions(effort=options.effort, layouts=CHOSEN if is_chosen else GIVEN))
        given = {"policy": BETTER if is_chosen else policy, "topology": topology, "platform": network.platform}
        pipeline = Pipeline.emitting(options.emit, given)
        try:
            _run(text, pipeline, session)
        except DiagnosedError as error:
            return Row(name, topology, {}, str(error).splitlines()[0])
        checks, seconds = session.results.checks, time.perf_counter() - start_s
        ours, attempts = (checks[0].ours, checks[0].attempts) if checks else (stock, 0)
        rows, is_whole = session.results.report_rows, bool(checks) and bool(checks[0].taken_over)
        done = sum(bool(row.get("is_rewritten")) for row in rows)
        modelled = network.time_beside(stock, ours, devices)
        sides[policy] = _side(modelled, ours, done, len(rows), attempts, seconds, is_whole)
    return Row(name, topology, sides)


def _run(text: str, pipeline: Pipeline, session: Session) -> None:
    """Runs a pipeline with the checks of the whole module on a module, as `reshard-opt` does."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)

        def run(part: Pipeline) -> ir.Module:
            part.run(module, session)
            return module

        run_and_checked(lambda: ir.Module.parse(text, context), run, pipeline, session, compiles=True, value_bytes=None)


def _side(modelled: ProgramTime, compiled: Compiled, *counts) -> Side:
    costs = compiled.costs
    return Side(modelled.seconds, modelled.collectives_s, costs.bytes_received, present(compiled.peak_bytes), *counts)


def worse_than(row: Row) -> list[str]:
    """Returns the columns than which `better` is worse: slower, or for stock XLA with a larger peak."""
    ours = row.sides.get("better")
    if ours is None:
        return []
    others = {name: side for name, side in row.sides.items() if name != CHOSEN}
    slower = [name for name, side in others.items() if ours.seconds > side.seconds * (1 + _SLOWER)]
    return slower + (["stock's peak"] if ours.peak_bytes > row.sides["stock"].peak_bytes * (1 + _SLOWER) else [])


def _tables(rows: Sequence[Row]) -> Iterator[str]:
    for topology in dict.fromkeys(row.topology for row in rows):
        own = [row for row in rows if row.topology == topology]
        names = list(next((row.sides for row in own if row.sides), {}))
        headings = (
            "program",
            *(f"{name}, us" for name in names),
            "stock / better",
            "received, MB",
            "peak, MB",
            "sites",
        )
        cells = [_cells(row, names) for row in own]
        yield f"### {topology}\n\n" + "\n".join(
            markdown_table(headings, cells, "l" + "r" * (len(headings) - 1)).split("\n")
        )
        ratios = [row.sides["stock"].seconds / row.sides["better"].seconds for row in own if "better" in row.sides]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            moved = [
                row.sides["stock"].collectives_s / row.sides["better"].collectives_s
                for row in own
                if "better" in row.sides and row.sides["better"].collectives_s
            ]
            of_collectives = math.exp(sum(map(math.log, moved)) / max(1, len(moved)))
            alone = f"{of_collectives:.3f} of the collectives alone"
            yield f"geomean stock / better: {mean:.3f} ({alone}), {len(ratios)} programs"
        chosen = [row.sides["better"].seconds / row.sides[CHOSEN].seconds for row in own if CHOSEN in row.sides]
        if chosen:
            mean = math.exp(sum(map(math.log, chosen)) / len(chosen))
            yield f"geomean better / chosen: {mean:.3f}, at most {max(chosen):.3f}, at least {min(chosen):.3f}"
        for row in own:
            if worse := worse_than(row):
                yield f"{row.program}: better is worse than {', '.join(worse)}"


def _cells(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    if not row.sides:
        return (row.program, row.problem, *[""] * (len(names) + 3))
    stock, better = row.sides["stock"], row.sides.get("better")
    times = [f"{row.sides[name].seconds * 1e6:,.1f}" for name in names]
    ratio = f"{stock.seconds / better.seconds:.3f}" if better else ""
    received = " / ".join(f"{row.sides[name].bytes_received / 1e6:,.2f}" for name in names)
    peaks = " / ".join(f"{row.sides[name].peak_bytes / 1e6:,.1f}" for name in names)
    last = better or row.sides[names[-1]]
    sites = "whole" if last.is_taken_over else f"{last.rewritten} of {last.sites}"
    return (row.program, *times, ratio, received, peaks, f"{sites} ({last.attempts})")


if __name__ == "__main__":
    sys.exit(main())
