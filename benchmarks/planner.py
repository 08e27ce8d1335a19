# SPDX-License-Identifier: Apache-2.0
"""Measures how long planning takes, and how much memory: by both objectives, with exchange and without.

    python benchmarks/planner.py [--devices 8,16,64,4096] [--count 100] [--topology h100] [--profile]

Plans are made anew and not read from disk; "again" is for a plan that is still in memory. Each row has its own process.
When its time is over, a row ends, even in the middle of a plan: "12, last cut" means twelve pairs, of which the last
one was not finished. Times are processor times, so other work on the machine changes them little.

If torch is installed, `--dtensor` adds a row for PyTorch's DTensor: the planner that its `redistribute` chooses for the
pair, with 2 s for each pair. "Refused" are pairs that it cannot express, for which it raises an error, or which it does
not finish; pairs that it cannot express are not in the times.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.conversions.pairs import Pair, random_pair  # noqa: E402
from benchmarks.harness.fresh import plans_on_disk_left_alone  # noqa: E402
from reshard.synthesis.common.text_table import markdown_head, markdown_line  # noqa: E402
from reshard.synthesis.network.topology import DEFAULT, Topology  # noqa: E402
from reshard.synthesis.planner.entry import NoPlanError, forget, plan  # noqa: E402

MANY_DEVICES, MANY_AXES = 4096, 5  # a mesh of 4096 devices has five axes
LEAST_ELEMENTS = 1 << 22
QUANTILES = {"median ms": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
PROFILED_LINES = 30
DTENSOR, DTENSOR_S = "DTensor", 2.0  # stands in place of an objective; the limit for one plan


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table: `count` pairs, or as many as fit into `limit_s` processor seconds."""

    devices: int
    objective: str
    with_exchange: bool
    topology: str
    count: int
    seed: int
    limit_s: float

    @classmethod
    def of(cls, text: str) -> Run:
        return cls(*json.loads(text))

    @property
    def text(self) -> str:
        return json.dumps(astuple(self))

    def pairs(self) -> list[Pair]:
        rng, num_axes = random.Random(self.seed), MANY_AXES if self.devices >= MANY_DEVICES else None
        return [
            random_pair(rng, self.devices, least_elements=LEAST_ELEMENTS, num_axes=num_axes) for _ in range(self.count)
        ]

    def plan(self, pair: Pair):
        options = {
            "objective": self.objective,
            "topology": Topology.parse(self.topology),
            "with_exchange": self.with_exchange,
        }
        try:
            return plan(pair.mesh, pair.shape, 32, pair.source, pair.target, **options)
        except NoPlanError:
            return None

    def measured(self) -> Measured:
        """Plans the pairs in this process and returns their processor seconds; the last pair may be cut short."""
        found, pairs = Measured(), self.pairs()
        signal.signal(signal.SIGPROF, _raise_time_is_over)
        if self.objective == DTENSOR:
            self._measure_dtensor(pairs[0], Measured())  # imports torch before the measuring
        measure = self._measure_dtensor if self.objective == DTENSOR else self._measure
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)
        try:
            with plans_on_disk_left_alone():
                for pair in pairs:
                    measure(pair, found)
        except _TimeIsOver:
            pass
        signal.setitimer(signal.ITIMER_PROF, 0)
        found.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return found

    def _measure(self, pair: Pair, found: Measured) -> None:
        forget()
        start_s = time.thread_time()
        try:
            planned = self.plan(pair)
        finally:
            found.new_s.append(time.thread_time() - start_s)
        found.refused += planned is None
        found.optimal += planned is not None and planned.is_optimal
        found.at_bound += planned is not None and planned.bytes_received == planned.bound_bytes
        found.done += 1
        start_s = time.thread_time()
        self.plan(pair)
        found.again_s.append(time.thread_time() - start_s)

    def _measure_dtensor(self, pair: Pair, found: Measured) -> None:
        from reshard.dialect_utils.compare.peers_dtensor import (
            planning_time,  # imports torch; our rows' memory must not contain it
        )

        status, seconds = planning_time(pair.mesh, pair.shape, 32, pair.source, pair.target, search_s=DTENSOR_S)
        if status != "unsupported":
            found.new_s.append(seconds)
        found.refused += status != "ok"
        found.done += 1


@dataclass(slots=True)
class Measured:
    """The measurements of a row: processor seconds, counts and memory.

    Attributes:
      new_s: of each pair, the one that was cut included. again_s: of those that were planned once more, from memory.
      done, refused, optimal, at_bound: numbers of pairs. peak_mib: the most memory that the process had.
    """

    new_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    done: int = 0
    refused: int = 0
    optimal: int = 0
    at_bound: int = 0
    peak_mib: float = 0.0

    @property
    def is_cut(self) -> bool:
        return len(self.new_s) > self.done  # only our rows are cut


class _TimeIsOver(BaseException):
    """The row's time is over. It is no `Exception`, so that no handler in the planner catches it."""


def _raise_time_is_over(*_) -> None:
    raise _TimeIsOver


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    if options.row:
        print(json.dumps(asdict(Run.of(options.row).measured())))
        return
    runs = [
        Run(devices, objective, with_exchange, options.topology, options.count, options.seed, options.row_seconds)
        for devices, objective, with_exchange in itertools.product(options.devices, options.objectives, (False, True))
    ]
    if options.dtensor:
        runs += _runs_of_dtensor(options)
    if options.profile:
        _profile(runs)
        return
    headings = ["devices", "objective", "exchange", "pairs", *QUANTILES, "again, median"]
    headings += ["refused", "optimal", "at the byte bound", "peak MiB"]
    print(markdown_head(headings), flush=True)
    for run in runs:
        print(markdown_line(_cells(run, _measured_alone(run))), flush=True)


def _runs_of_dtensor(options: argparse.Namespace) -> list[Run]:
    from reshard.dialect_utils.compare import peers_dtensor

    if not peers_dtensor.is_installed():
        print(peers_dtensor.LEFT_OUT, file=sys.stderr)
        return []
    return [
        Run(devices, DTENSOR, False, options.topology, options.count, options.seed, options.row_seconds)
        for devices in options.devices
    ]


def _measured_alone(run: Run) -> Measured:
    command = [sys.executable, __file__, "--row", run.text]
    return Measured(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def _cells(run: Run, found: Measured) -> list[str]:
    number = f"{len(found.new_s)}{', last cut' if found.is_cut else ''}"
    quantiles = [_milliseconds(found.new_s, each) for each in QUANTILES.values()]
    shares = [
        f"{count / found.done:.0%}" if found.done else "–" for count in (found.refused, found.optimal, found.at_bound)
    ]
    what = [str(run.devices), run.objective, "with" if run.with_exchange else "without", number]
    if run.objective == DTENSOR:
        what[2], shares[1:] = "–", ["–", "–"]
    return [*what, *quantiles, _milliseconds(found.again_s, 0.5), *shares, f"{found.peak_mib:.0f}"]


def _milliseconds(seconds: list[float], quantile: float) -> str:
    if not seconds:
        return "–"
    return f"{1e3 * sorted(seconds)[min(len(seconds) - 1, int(quantile * len(seconds)))]:.3g}"


def _profile(runs: list[Run]) -> None:
    """Prints the profile of all runs together."""
    profiler = cProfile.Profile()
    for run in runs:
        profiler.runcall(run.measured)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(PROFILED_LINES)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--devices", type=_numbers, default=(8, 16, 64, MANY_DEVICES), help="mesh sizes, default %(default)s")
    add("--objectives", type=_words, default=("bytes", "time"), help="one or both of bytes,time")
    add("--topology", default=DEFAULT, help="the network for the objective time, default %(default)s")
    add("--count", type=int, default=100, help="pairs per row, default %(default)s")
    add("--row-seconds", type=float, default=10, help="processor seconds after which a row ends, default %(default)s")
    add("--seed", type=int, default=0)
    add("--dtensor", action="store_true", help="also PyTorch's DTensor, if torch is installed")
    add("--profile", action="store_true", help="show where the time goes in place of the table")
    add("--row", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
