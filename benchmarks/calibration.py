# SPDX-License-Identifier: Apache-2.0
"""Asks whether a calibrated topology ranks plans as they turn out: predicted against measured time on CPU devices of this host.

    python benchmarks/calibration.py [--devices 8] [--count 24] [--seed 0] [--topology FILE]

For each random pair it collects different plans (cheapest on the calibrated topology, on `uniform`, by bytes) and stock XLA's
program, runs all of them, and prices all of them on each topology. Plans are ranked by their whole modelled time; the programs
for one pair by the time of their collectives, since nobody knows a price for the local copies in stock XLA's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import itertools
from pathlib import Path
import random
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Pair, random_pair  # noqa: E402
from benchmarks.progress import replace_line  # noqa: E402
from reshard.dialect_utils.hlo import collectives_in  # noqa: E402
from reshard.dialect_utils.mini_modules import rewritten_pair, stock_pair  # noqa: E402
from reshard.dialect_utils.xla_child import XlaChild  # noqa: E402
from reshard.synthesis.bounds import received_elements_bound  # noqa: E402
from reshard.synthesis.cost import collective_time_s  # noqa: E402
from reshard.synthesis.plan import plan  # noqa: E402
from reshard.synthesis.tile_program import collectives  # noqa: E402
from reshard.synthesis.topology import Topology  # noqa: E402

BITS = 32
ROOT = Path(__file__).resolve().parent.parent
_ROUNDS = 3  # the best of so many medians counts: on a busy machine one alone says little
_CLEAR = 1.2  # times that differ by less are no order


@dataclass(frozen=True, slots=True)
class Ran:
    """A program for a pair: what it took, and what each topology says, in seconds.

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
    """Returns a pair that cannot do without collectives."""
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
    programs = {each.chain_text: (rewritten_pair(tensor_type, each), *_prices(each, topologies)) for each in plans}
    stock = stock_pair(tensor_type, pair.mesh, (pair.source, pair.target))
    compiled = child.compile(stock, pair.mesh.size, keeps_hlo=True)
    if compiled.is_ok:
        moves = collectives_in(compiled.hlo_text).collectives
        programs["stock"] = stock, tuple(_seconds(moves, each, pair.mesh.size) for each in topologies), None
    found = []
    for module, *prices in programs.values():
        rounds = [child.run(module, None, pair.mesh.size, repeats=repeats) for _ in range(_ROUNDS)]
        if all(done.status == "ok" for done in rounds):
            found.append(Ran(number, min(done.median_seconds for done in rounds), *prices))
    return found


def _prices(found, topologies: list[Topology]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the time of a plan on each topology: of its collectives; and with its local copies at the speed of the memory."""
    collected = collectives(found.tile_program, BITS)
    moves = tuple(_seconds(collected, each, found.mesh.size) for each in topologies)
    own = Topology.parse("uniform") if found.topology == "uniform" else topologies[0]
    copied_bytes = (found.time_s - _seconds(collected, own, found.mesh.size)) * own.memory_bandwidth_bytes_per_s
    return moves, tuple(moved + copied_bytes / each.memory_bandwidth_bytes_per_s for moved, each in zip(moves, topologies))


def _seconds(moves, topology: Topology, devices: int) -> float:
    return sum(collective_time_s(topology, devices, each) for each in moves)


def _cells(ran: list[Ran], at: int) -> list[str]:
    ours = [each for each in ran if each.predicted]
    correlation = rank_correlation([each.measured for each in ours], [each.predicted[at] for each in ours])
    right = [
        (a.measured < b.measured) == (a.moves[at] < b.moves[at])
        for a, b in itertools.combinations(ran, 2)
        if a.pair == b.pair and a.moves[at] != b.moves[at] and max(a.measured, b.measured) > _CLEAR * min(a.measured, b.measured)
    ]
    return [f"{correlation:.2f}", f"{sum(right)} of {len(right)}"]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Returns Spearman's rho; equal values share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: list[float]) -> np.ndarray:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[which]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8, help="CPU devices, default %(default)s")
    parser.add_argument("--count", type=int, default=24, help="pairs, default %(default)s")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each program, the median counts, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topology", type=Path, help="a calibrated topology for so many devices; left out, it is measured first")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
