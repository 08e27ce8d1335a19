# SPDX-License-Identifier: Apache-2.0
"""Measures how long planning takes, and how much memory: by both objectives, with exchange and without.

    python benchmarks/planner.py [--devices 8,16,64,4096] [--count 100] [--topology h100] [--profile]

Each row is a process of its own. A row ends early when its time is over; it says how many pairs it got through. Times are
those of the processor, so that other programs on the machine change them little.
"""

from __future__ import annotations

import argparse
import cProfile
from dataclasses import astuple, dataclass
import itertools
import json
from pathlib import Path
import pstats
import random
import resource
import subprocess
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Pair, random_pair  # noqa: E402
from reshard.synthesis.plan import NoPlanError, plan  # noqa: E402
from reshard.synthesis.topology import DEFAULT, Topology  # noqa: E402

MANY_DEVICES, MANY_AXES = 4096, 5  # meshes of so many devices have so many axes
LEAST_ELEMENTS = 1 << 22
QUANTILES = {"median ms": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
PROFILED_LINES = 30


@dataclass(frozen=True, slots=True)
class Run:
    """One row: `count` pairs, or as many as `limit_s` seconds allow."""

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
        return [random_pair(rng, self.devices, least_elements=LEAST_ELEMENTS, num_axes=num_axes) for _ in range(self.count)]

    def plan(self, pair: Pair):
        options = {"objective": self.objective, "topology": Topology.parse(self.topology), "with_exchange": self.with_exchange}
        try:
            return plan(pair.mesh, pair.shape, 32, pair.source, pair.target, **options)
        except NoPlanError:
            return None

    def measured(self) -> dict:
        """Plans each pair twice: the processor's seconds of both, shares of the pairs, this process's peak memory in MiB."""
        pairs, plans, new_s, again_s = self.pairs(), [], [], []
        end_s = time.perf_counter() + self.limit_s
        for pair in pairs:
            for seconds in (new_s, again_s):
                start_s = time.process_time()
                found = self.plan(pair)
                seconds.append(time.process_time() - start_s)
            plans.append((found is not None, found is not None and found.is_optimal, found is not None and _is_at_bound(found)))
            if time.perf_counter() > end_s:
                break
        planned, optimal, at_bound = (sum(column) / len(plans) for column in zip(*plans))
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shares = {"planned": planned, "optimal": optimal, "at_bound": at_bound}
        return {"new_s": new_s, "again_s": again_s, "peak_mib": peak_mib, **shares}


def _is_at_bound(found) -> bool:
    return found.bytes_received == found.bound_bytes


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    if options.row:
        print(json.dumps(Run.of(options.row).measured()))
        return
    runs = [
        Run(devices, objective, with_exchange, options.topology, options.count, options.seed, options.row_seconds)
        for devices, objective, with_exchange in itertools.product(options.devices, options.objectives, (False, True))
    ]
    if options.profile:
        _profile(runs)
        return
    headings = ["devices", "objective", "exchange", "pairs", *QUANTILES, "again, median"]
    headings += ["refused", "optimal", "at the byte bound", "peak MiB"]
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)
    for run in runs:
        print(f"| {' | '.join(_cells(run, _measured_alone(run)))} |", flush=True)


def _measured_alone(run: Run) -> dict:
    command = [sys.executable, __file__, "--row", run.text]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _cells(run: Run, found: dict) -> list[str]:
    quantiles = [f"{1e3 * _quantile(found['new_s'], each):.2f}" for each in QUANTILES.values()]
    again = f"{1e3 * _quantile(found['again_s'], 0.5):.3f}"
    shares = [f"{share:.0%}" for share in (1 - found["planned"], found["optimal"], found["at_bound"])]
    what = [str(run.devices), run.objective, "with" if run.with_exchange else "without", str(len(found["new_s"]))]
    return [*what, *quantiles, again, *shares, f"{found['peak_mib']:.0f}"]


def _quantile(seconds: list[float], quantile: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(quantile * len(seconds)))]


def _profile(runs: list[Run]) -> None:
    """Prints where the time goes, all runs together."""
    profiler = cProfile.Profile()
    for run in runs:
        profiler.runcall(run.measured)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(PROFILED_LINES)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--devices", type=_numbers, default=(8, 16, 64, MANY_DEVICES), help="mesh sizes, default %(default)s")
    add("--objectives", type=_words, default=("bytes", "time"), help="bytes,time")
    add("--topology", default=DEFAULT, help="for the objective time, default %(default)s")
    add("--count", type=int, default=100, help="pairs per row, default %(default)s")
    add("--row-seconds", type=float, default=10, help="after which a row ends, default %(default)s")
    add("--seed", type=int, default=0)
    add("--profile", action="store_true", help="show where the time goes in place of the table")
    add("--row", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
