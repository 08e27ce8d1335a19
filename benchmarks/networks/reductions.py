# SPDX-License-Identifier: Apache-2.0
"""Really runs reductions on networks of two levels: one flat all_reduce, ours and other programs, in turns.

    python -m benchmarks.networks.reductions [--on 2x4,4x2] [--sizes 16KiB,128KiB,512KiB]

The networks are of `networks/testbed.py`, which needs root: 2 nodes of 4 processes and 4 nodes of 2, with 1000 Mbit/s
for a process and 100 Mbit/s for a node; gloo carries the data. Pairs of a placement and a reduction are drawn as P² has
them: all meshes of 8 devices with up to three axes, all placements on the network, all sets of axes to sum over, some
sizes; where tiles are left along other axes, once with different and once with equal ones. Pairs that are the same to
the network are measured once. The topology is what `reshard calibrate` finds there. Ours is the planner's program where
the pass decompose-collectives would take it; where it would not, ours is the flat one, which is not run twice and
counts as 1. Beside these two run P²'s programs over the levels and what the planner rejects (`reduction_programs.py`).

If flat takes less than 0.97 of our time, both are measured again with three times as many turns, and if it still does,
with nine times as many; the last answer counts. A run that was stopped goes on. The exit status is 1 if a program fails
or a value is wrong: integers have to be equal bit for bit, every second pair has floating-point numbers, within
rounding.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.arguments import among
from benchmarks.harness.journal import Journal, default_folder
from benchmarks.networks.program_runs import (
    NEAR,
    NETWORKS,
    SLOWER,
    TOP,
    Job,
    Measured,
    calibrated,
    correlation,
    geomean,
    run_all,
    turns_for,
)
from benchmarks.networks.reduction_programs import FLAT, Problem, drawn, problems_of, programs_of
from benchmarks.networks.testbed import Testbed, status_of
from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.common.numbers import bytes_text, milliseconds
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import Topology

ELEMENTS = ("i32", "f32")
_MOST_SHOWN = 5
_HEADINGS = (
    "flat ÷ ours", "pairs", "measured", "ours is flat", "geomean", "of those that differ", "min", "median", "max",
    f"below {SLOWER}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A problem that was measured on a network."""

    network: str
    problem: Problem
    measured: Measured

    @property
    def gain(self) -> float:
        return self.measured.gain


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    return status_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    rows = [row for name in options.on for row in _measured(name, options)]
    text = report(rows)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return int(any(row.measured.problems for row in rows))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", type=among(tuple(NETWORKS)), default=tuple(NETWORKS), help="networks; default: all")
    parser.add_argument(
        "--sizes",
        type=lambda text: [byte_size(each) // 4 for each in text.split(",")],
        default=[1 << 12, 1 << 15, 1 << 17],
        help="of a tile, default 16KiB,128KiB,512KiB",
    )
    parser.add_argument("--turns", type=int, default=2, help="of a program; twice as many of a short one")
    parser.add_argument("--topology", type=Path, help="a calibrated topology; without it, the network is measured")
    parser.add_argument("--state", type=Path, default=default_folder() / "reductions", help="the folder for answers")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the report to this file")
    return parser.parse_args(arguments)


def _measured(name: str, options: argparse.Namespace) -> Iterator[Row]:
    options.state.mkdir(parents=True, exist_ok=True)
    with Testbed(NETWORKS[name]) as testbed:
        for what, as_set, seen in testbed.check():
            print(f"{name}: {what} {as_set:.0f} Mbit/s as set, {seen:.0f} Mbit/s of payload as measured")
        given = options.topology
        topology = Topology.parse(str(given)) if given else calibrated(testbed, name, options.state)
        problems = problems_of(drawn(topology, options.sizes))
        jobs = [job_of(each, number, options.turns) for number, each in enumerate(problems)]
        found = run_all(jobs, testbed, name, Journal(options.state / "answers.jsonl"))
    for problem, measured in zip(problems, found, strict=True):
        yield Row(name, problem, measured)


def job_of(problem: Problem, number: int, turns: int) -> Job:
    """Returns what runs for a problem; `number` chooses the type of its elements."""
    reduction = problem.reduction
    group_of = {device: group for group in reduction.groups for device in group}
    seeds, devices = reduction.contributions, range(reduction.placement.mesh.size)
    plans = programs_of(problem)
    return Job(
        str(reduction),
        plans,
        next(name for name, plan in plans.items() if plan is problem.ours),
        ELEMENTS[number % len(ELEMENTS)],
        reduction.elements,
        seeds,
        tuple(tuple(seeds[member] for member in group_of[device]) for device in devices),
        tuple(group_of[device].index(device) for device in devices),
        turns=turns_for(problem.flat, turns),
    )


# ---- the report


def report(rows: Sequence[Row]) -> str:
    """Returns the tables, what the model ranks, and the worst and best of all, as Markdown."""
    failed = [
        f"failed: {row.network}, {row.measured.job.title}: {text}" for row in rows for text in row.measured.problems
    ]
    timed = [row for row in rows if not row.measured.problems]
    if not timed:
        return "\n".join(failed)
    lines = [*failed, markdown_table(_HEADINGS, list(_table(timed)), "l" + "r" * (len(_HEADINGS) - 1)), ""]
    lines += [*_ranking(timed), *_placements(timed), "", "flat beside ours, the worst and the best:", *_extremes(timed)]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    def split(title: str, key: Callable[[Row], str]) -> Iterator[tuple[str, ...]]:
        for value in dict.fromkeys(map(key, rows)):
            yield _line(f"{title}{value}", [row for row in rows if key(row) == value])

    yield _line("all", rows)
    yield from split("", lambda row: row.network)
    yield from split("tiles of ", lambda row: bytes_text(4 * row.problem.reduction.elements))
    yield from split("tiles along other axes ", lambda row: "equal" if row.problem.reduction.is_alike else "different")
    yield from split("sums ", _crosses)


def _crosses(row: Row) -> str:
    """Returns where a reduction goes: inside the nodes, across them, or both."""
    topology, group = row.problem.reduction.placement.topology, row.problem.reduction.groups[0]
    inside = topology.levels[-1].size
    nodes = {device // inside for device in group}
    if len(nodes) == 1:
        return "inside nodes"
    return "across nodes" if len(nodes) == len(group) else "inside and across"


def _line(title: str, rows: Sequence[Row]) -> tuple[str, ...]:
    gains = sorted(row.gain for row in rows for _ in row.problem.reductions)
    differ = [row.gain for row in rows for _ in row.problem.reductions if not row.problem.is_flat]
    is_flat = sum(len(row.problem.reductions) for row in rows if row.problem.is_flat)
    counts = str(len(gains)), str(len(rows)), str(is_flat)
    places = gains[0], statistics.median(gains), gains[-1]
    cells = (*(f"{each:.2f}" for each in (geomean(gains), geomean(differ) if differ else 1.0, *places)),)
    return title, *counts, *cells, str(sum(gain < SLOWER for gain in gains))


def _ranking(rows: Sequence[Row]) -> Iterator[str]:
    """Yields lines on how well the model ranks the programs of a problem, and those of all problems."""
    for title, some in (
        ("all", rows),
        (f"with more than {TOP} programs", [row for row in rows if len(row.measured.seconds) > TOP]),
    ):
        if not some:
            continue
        within = sum(row.measured.best_of_top <= NEAR for row in some)
        first = sum(row.measured.best_of_model <= NEAR for row in some)
        yield f"problems, {title}: {len(some)}, with {sum(len(row.measured.seconds) for row in some)} programs;"
        yield f"  the fastest of the model's {TOP} best is within 5 % of the fastest in {within};"
        yield f"  the model's best is within 5 % of the fastest in {first};"
        each = [row.measured.correlation for row in some if len(row.measured.seconds) > 2]
        yield f"  rank correlation inside a problem: median {statistics.median(each):.3f}, least {min(each):.3f};"
        yield f"  over all programs: {correlation(row.measured for row in some):.3f}"


def _placements(rows: Sequence[Row]) -> Iterator[str]:
    """Yields how much the placement of a mesh alone decides: the slowest one beside the fastest, flat and ours."""
    times: dict[tuple, list[tuple[float, float]]] = {}
    for row in rows:
        seconds = row.measured.seconds
        for each in row.problem.reductions:
            key = row.network, each.placement.axes, each.axes, each.elements, each.is_alike
            times.setdefault(key, []).append((seconds[FLAT], seconds[row.measured.job.ours]))
    spreads = [[max(each) / min(each) for each in zip(*found)] for found in times.values() if len(found) > 1]
    for what, spread in zip((FLAT, "ours"), zip(*spreads)):
        found = f"geomean {geomean(spread):.2f}, at most {max(spread):.2f}"
        yield f"the slowest placement beside the fastest, {what}: {found}"


def _extremes(rows: Sequence[Row]) -> Iterator[str]:
    differ = sorted((row for row in rows if not row.problem.is_flat), key=lambda row: row.gain)
    shown = differ if len(differ) <= 2 * _MOST_SHOWN else itertools.chain(differ[:_MOST_SHOWN], differ[-_MOST_SHOWN:])
    for row in shown:
        plans, seconds, ours = row.measured.job.plans, row.measured.seconds, row.measured.job.ours
        yield f"  {row.gain:.2f}  {row.network}, {row.problem.reduction}"
        for name in (FLAT, ours):
            times = f"{milliseconds(seconds[name])}, modelled {milliseconds(plans[name].time_s)}"
            yield f"        {times}: {plans[name].chain_text}"


if __name__ == "__main__":
    sys.exit(main())
