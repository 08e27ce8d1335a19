# SPDX-License-Identifier: Apache-2.0
"""Really runs the dispatch of tokens to experts on networks of two levels: one all_to_all beside two hops.

    python -m benchmarks.networks.dispatch [--on 2x4,4x2] [--sizes 1KiB,4KiB,...]
    python -m benchmarks.networks.dispatch --modelled a2mega:4x16 [--message-us 0,1,2]

8 devices send each other an equal part of their tiles: all at once, or inside the nodes and then across them, or the
other way round. The networks, turns, and the exit status are those of `reductions.py`, the values of a result have to
be equal bit for bit. Two hops move more bytes in all and as many between the nodes, with fewer messages: they pay for
small tiles, if at all. The table says where the faster way changes, as measured and as the topology's model has it, and
what the pass decompose-collectives takes.

With `--modelled` nothing runs: the table has the model's times on any topology of two levels, and how they change with
the overhead of a message (`message_s`), which is assumed to be the same at both levels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.arguments import among
from benchmarks.harness.journal import Journal, default_folder
from benchmarks.networks.program_runs import FLAT, NETWORKS, SLOWER, Job, Measured, calibrated, run_all
from benchmarks.networks.program_worker import PARTS
from benchmarks.networks.reduction_programs import BITS, plan_of_steps, signature
from benchmarks.networks.testbed import Testbed, status_of
from reshard.dialect_utils.hierarchy.faster_chains import LEAST_GAIN
from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.common.numbers import bytes_text, milliseconds
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.hierarchy.redistributions import InGroups, redistribution_of
from reshard.synthesis.layouts.layout import Factor, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.planner.entry import planned
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.steps import AllToAll

INSIDE_FIRST, ACROSS_FIRST, PLANNED = "inside, across", "across, inside", "the plan"
_SIZES = "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB"
_MODELLED_SIZES = f"256,{_SIZES}"
_HEADINGS = (
    "network", "tile", "flat", INSIDE_FIRST, ACROSS_FIRST, "flat ÷ best of two hops", "modelled", "the pass takes",
    "flat ÷ ours",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", type=among(tuple(NETWORKS)), default=tuple(NETWORKS), help="networks; default: all")
    parser.add_argument("--sizes", type=_sizes, help=f"of a tile, default {_SIZES}; modelled {_MODELLED_SIZES}")
    parser.add_argument("--turns", type=int, default=9, help="of each program, default %(default)s")
    parser.add_argument("--state", type=Path, default=default_folder() / "reductions", help="the folder for answers")
    parser.add_argument("--modelled", type=_two_levels, metavar="TOPOLOGY", help="only model, on two levels")
    parser.add_argument("--message-us", type=_numbers, metavar="US", help="what a message costs; default: as it has")
    options = parser.parse_args(arguments)
    if options.modelled is not None:
        print(model(options.modelled, options.sizes or _sizes(_MODELLED_SIZES), options.message_us or (None,)))
        return 0
    return status_of(lambda: _measure(options))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(byte_size, text.split(",")))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _two_levels(text: str) -> Topology:
    """Returns a topology that a dispatch can be modelled on. Raises: argparse.ArgumentTypeError."""
    try:
        topology = Topology.parse(text)
    except TopologyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if len(topology.levels) != 2 or not topology.size:
        raise argparse.ArgumentTypeError(
            f'"{text}" has {topology.shape_text}; write two levels with sizes, a2mega:4x16'
        )
    return topology


def _measure(options: argparse.Namespace) -> int:
    found = [(name, each) for name in options.on for each in _measured(name, options)]
    print(report(found))
    return int(any(each.problems for _, each in found))


def _measured(name: str, options: argparse.Namespace) -> list[Measured]:
    options.state.mkdir(parents=True, exist_ok=True)
    with Testbed(NETWORKS[name]) as testbed:
        testbed.check()
        topology = calibrated(testbed, name, options.state)
        jobs = [job_of(topology, each, options.turns) for each in options.sizes or _sizes(_SIZES)]
        return run_all(jobs, testbed, name, Journal(options.state / "answers.jsonl"))


def job_of(topology: Topology, tile_bytes: int, turns: int) -> Job:
    """Returns the programs of a dispatch of tiles among all devices of a network of two levels."""
    across, inside = topology.levels[0].size, topology.levels[1].size
    mesh, devices = Mesh((("node", across), ("host", inside))), across * inside
    node, host = Factor("node", 1, across), Factor("host", 1, inside)
    elements = tile_bytes * 8 // BITS
    asked = redistribution_of(mesh, InGroups("all_to_all", (elements,), (node, host)), ())
    options = {"topology": topology, "objective": "time"}
    request = Request.of(mesh, asked.shape, BITS, asked.source, asked.target, **options)
    moves = (node, Slot(1, 1, across)), (host, Slot(1, across, devices))
    plans = {
        FLAT: plan_of_steps(request, (AllToAll(moves),)),
        INSIDE_FIRST: plan_of_steps(request, (AllToAll(moves[1:]), AllToAll(moves[:1]))),
        ACROSS_FIRST: plan_of_steps(request, (AllToAll(moves[:1]), AllToAll(moves[1:]))),
    }
    best = planned(request)
    same = next((name for name, plan in plans.items() if signature(plan) == signature(best)), PLANNED)
    plans.setdefault(same, best)
    ours = same if plans[same].time_s <= (1 - LEAST_GAIN) * plans[FLAT].time_s else FLAT
    everyone = tuple(range(devices))
    sources = (everyone,) * devices
    title = f"all_to_all of {tile_bytes} bytes"
    return Job(title, plans, ours, "i32", elements, everyone, sources, everyone, PARTS, turns)


def model(topology: Topology, sizes: Sequence[int], messages_us: Sequence[float | None]) -> str:
    """Returns flat ÷ best of two hops for each overhead of a message and each size of a tile, as Markdown.

    Args:
      messages_us: in microseconds; None leaves the topology as it is.
    """
    rows = []
    for each in messages_us:
        jobs = [job_of(_with_messages(topology, each), size, 0) for size in sizes]
        cells = (f"{job.plans[FLAT].time_s / _best_of_two_hops(job):.2f}" for job in jobs)
        taken = [bytes_text(size) for size, job in zip(sizes, jobs, strict=True) if job.ours != FLAT]
        rows.append(
            ("as it has" if each is None else f"{each:g} us", *cells, f"up to {taken[-1]}" if taken else "never")
        )
    headings = "a message", *map(bytes_text, sizes), "the pass takes hops"
    return markdown_table(headings, rows, "l" + "r" * len(sizes) + "l")


def _with_messages(topology: Topology, message_us: float | None) -> Topology:
    if message_us is None:
        return topology
    return replace(topology, levels=tuple(replace(level, message_s=message_us * 1e-6) for level in topology.levels))


def _best_of_two_hops(job: Job) -> float:
    return min(job.plans[INSIDE_FIRST].time_s, job.plans[ACROSS_FIRST].time_s)


def report(found: Sequence[tuple[str, Measured]]) -> str:
    """Returns the table, and how often the pass decides rightly, as Markdown."""
    failed = [f"failed: {name}, {each.job.title}: {text}" for name, each in found for text in each.problems]
    timed = [(name, each) for name, each in found if not each.problems]
    right = sum(is_right(each) for _, each in timed)
    return "\n".join(
        [
            *failed,
            markdown_table(_HEADINGS, list(_rows(timed)), "llrrrrrlr"),
            "",
            f"the pass takes the faster way, or one within 1 / {SLOWER} of it, in {right} of {len(timed)}",
        ]
    )


def is_right(measured: Measured) -> bool:
    """Returns whether no way is clearly faster than ours."""
    return min(measured.seconds.values()) >= SLOWER * measured.seconds[measured.job.ours]


def _rows(found: Sequence[tuple[str, Measured]]) -> Iterator[tuple[str, ...]]:
    for name, each in found:
        ways, plans = each.seconds, each.job.plans
        hops = min(ways[INSIDE_FIRST], ways[ACROSS_FIRST])
        times = (milliseconds(ways[way]) for way in (FLAT, INSIDE_FIRST, ACROSS_FIRST))
        ratios = f"{ways[FLAT] / hops:.2f}", f"{plans[FLAT].time_s / _best_of_two_hops(each.job):.2f}"
        yield name, bytes_text(4 * each.job.elements), *times, *ratios, each.job.ours, f"{each.gain:.2f}"


if __name__ == "__main__":
    sys.exit(main())
