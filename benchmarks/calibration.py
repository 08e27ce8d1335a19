# SPDX-License-Identifier: Apache-2.0
"""Checks whether a calibrated topology ranks plans on CPU devices of this machine as their measured times do.

    python benchmarks/calibration.py [--devices 8] [--count 24] [--seed 0] [--topology FILE]

For each random pair it collects different plans (the cheapest on the calibrated topology, on `uniform`, and by bytes)
and stock XLA's program. It runs all of them, and prices all of them on each topology. Plans are ranked by their whole
modelled time. The programs for one pair are ranked by the time of their collectives, because the local copies in stock
XLA's program have no known price.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.conversions.pairs import Pair, random_pair  # noqa: E402
from benchmarks.harness.progress import replace_line  # noqa: E402
from reshard.dialect_utils.emission.mini_modules import rewritten_pair, stock_pair  # noqa: E402
from reshard.dialect_utils.hlo.collectives import collectives_in  # noqa: E402
from reshard.dialect_utils.xla.child import XlaChild  # noqa: E402
from reshard.synthesis.network.bounds import received_elements_bound  # noqa: E402
from reshard.synthesis.network.cost import collective_time_s  # noqa: E402
from reshard.synthesis.network.topology import Topology  # noqa: E402
from reshard.synthesis.planner.entry import plan  # noqa: E402
from reshard.synthesis.programs.tile_program import collectives  # noqa: E402

BITS = 32
ROOT = Path(__file__).resolve().parent.parent
_ROUNDS = 3  # the least of so many medians counts: on a busy machine a single one says little
_CLEAR = 1.2  # two times with a smaller ratio have no order


@dataclass(frozen=True, slots=True)
class Ran:
    """A program for a pair: its measured seconds, and the predicted seconds for each topology.

    Fields:
      moves: of the collectives alone. predicted: of local copies too, None for stock XLA.
    """

    pair: int
    measured: float
    moves: tuple[float, ...]
    predicted: tuple[float, ...] | None


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    calibrated = Topology.parse(str(options.topology)) if options.topology else _calibrate(options.devices)
    topologies = [calibrated, Topology.parse("uniform"), Topology.parse("cpu")]
    rng = random.Random(options.seed)
    ran: list[Ran] = []
    with XlaChild(num_devices=options.devices) as child:
        for number in range(options.count):
            pair = _pair(rng, options.devices)
            ran += _ran(number, pair, topologies, child, options.repeats)
            replace_line(f"{number + 1} of {options.count} pairs")
    replace_line("")
    plans = sum(each.predicted is not None for each in ran)
    print(f"{len(ran)} programs, {plans} of them plans, for {options.count} pairs on {options.devices} CPU devices")
    print(f"calibrated: {calibrated.source}\n")
    print("| topology | our plans: rank correlation | two programs for one pair: order is right |\n|---|---|---|")
    for at, name in enumerate(("calibrated", "uniform", "cpu")):
        print(f"| {name} | {' | '.join(_cells(ran, at))} |")
    return 0


def _pair(rng: random.Random, devices: int) -> Pair:
    """Returns a random pair that needs collectives."""
    while True:
        pair = random_pair(rng, devices, least_elements=1 << rng.randint(14, 22))
        if received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target):
            return pair


def _calibrate(devices: int) -> Topology:
    mesh = f"outer=2,inner={devices // 2}" if devices % 2 == 0 and devices > 2 else f"device={devices}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrated.toml"
        tool = [sys.executable, ROOT / "tools" / "reshard.py"]
        subprocess.run([*tool, "calibrate", "--mesh", mesh, "--devices", str(devices), "-o", path], check=True)
        return Topology.parse(str(path))


def _ran(number: int, pair: Pair, topologies: list[Topology], child: XlaChild, repeats: int) -> list[Ran]:
    tensor_type = f"tensor<{''.join(f'{size}x' for size in pair.shape)}f32>"
    problem = (pair.mesh, pair.shape, BITS, pair.source, pair.target)
    plans = [plan(*problem, topology=topologies[0]), plan(*problem), plan(*problem, objective="bytes")]
    programs: dict[str, tuple[str, tuple[float, ...], tuple[float, ...] | None]]
    programs = {each.chain_text: (rewritten_pair(tensor_type, each), *_prices(each, topologies)) for each in plans}
    stock = stock_pair(tensor_type, pair.mesh, (pair.source, pair.target))
    compiled = child.compile(stock, pair.mesh.size, keeps_hlo=True)
    if compiled.is_ok and compiled.hlo_text is not None:
        moves = collectives_in(compiled.hlo_text).collectives
        programs["stock"] = stock, tuple(_seconds(moves, each, pair.mesh.size) for each in topologies), None
    found = []
    for module, moves, predicted in programs.values():
        rounds = [child.run(module, None, pair.mesh.size, repeats=repeats) for _ in range(_ROUNDS)]
        seconds = [done.median_seconds for done in rounds if done.status == "ok" and done.median_seconds is not None]
        if len(seconds) == len(rounds):
            found.append(Ran(number, min(seconds), moves, predicted))
    return found


def _prices(found, topologies: list[Topology]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns a plan's time on each topology, of its collectives alone, and together with its local copies.

    Copies are priced by each topology's memory bandwidth.
    """
    collected = collectives(found.tile_program, BITS)
    moves = tuple(_seconds(collected, each, found.mesh.size) for each in topologies)
    own = Topology.parse("uniform") if found.topology == "uniform" else topologies[0]
    copied_bytes = (found.time_s - _seconds(collected, own, found.mesh.size)) * own.memory_bandwidth_bytes_per_s
    return moves, tuple(
        moved + copied_bytes / each.memory_bandwidth_bytes_per_s for moved, each in zip(moves, topologies)
    )


def _seconds(moves, topology: Topology, devices: int) -> float:
    return sum(collective_time_s(topology, devices, each) for each in moves)


def _cells(ran: list[Ran], at: int) -> list[str]:
    ours = [(each.measured, each.predicted[at]) for each in ran if each.predicted]
    correlation = rank_correlation([measured for measured, _ in ours], [predicted for _, predicted in ours])
    right = [
        (a.measured < b.measured) == (a.moves[at] < b.moves[at])
        for a, b in itertools.combinations(ran, 2)
        if a.pair == b.pair
        and a.moves[at] != b.moves[at]
        and max(a.measured, b.measured) > _CLEAR * min(a.measured, b.measured)
    ]
    return [f"{correlation:.2f}", f"{sum(right)} of {len(right)}"]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Returns Spearman's rank correlation; equal values share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: list[float]) -> np.ndarray:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[which]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=8, help="number of CPU devices, default %(default)s")
    parser.add_argument("--count", type=int, default=24, help="number of pairs, default %(default)s")
    parser.add_argument(
        "--repeats", type=int, default=7, help="runs of each program, the median counts, default %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--topology",
        type=Path,
        help="a calibrated topology for these devices; without it, the network is measured first",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
