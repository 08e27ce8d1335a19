# SPDX-License-Identifier: Apache-2.0
"""Sums on clusters, as P² tabulates them: for each way to divide devices among axes, all placements, one sum and ours.

    python -m benchmarks.networks.reduction_tables [--topologies a2mega:2,a2mega:4,v100:2,v100:4] [--mib 256]
        [--rings-alone] [--out FILE.md]

A case is a network, the sizes of two or three axes, and the axes that are summed over. Under each placement of the
axes the *default* is one all_reduce, as the library runs it, and *ours* is the planner's chain; times are modelled. P²
(arXiv 2110.10548) measures on 2 and 4 hosts of 16 A100 and of 8 V100: its best program beats the default in 69 % of
the placements, 1.27 times on average and 2.04 at most; one placement takes up to 448 times as long as another.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.progress import replace_line
from reshard.passes.layouts.choosing import products
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.hierarchy.redistributions import InGroups, redistribution_of
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.planner.entry import plan

NETWORKS = ("a2mega:2", "a2mega:4", "v100:2", "v100:4")
_NAMES = "xyz"
_BITS = 32
_GAIN = 1.01  # times as fast that counts as a gain
_HEADINGS = (
    "network", "axes", "summed", "placements", "default: best in ms", "worst / best", "ours: best in ms",
    "gain: share", "mean", "most", "s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row: the modelled seconds of the default and of ours under each placement, and how long planning took."""

    network: str
    sizes: tuple[int, ...]
    summed: tuple[str, ...]
    default_s: tuple[float, ...]
    ours_s: tuple[float, ...]
    planning_s: float

    @property
    def gains(self) -> list[float]:
        return [one / other for one, other in zip(self.default_s, self.ours_s, strict=True)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topologies", type=lambda text: text.split(","), default=[*NETWORKS])
    parser.add_argument("--mib", type=float, default=256.0, help="of one device's tile; default %(default)s")
    parser.add_argument("--rings-alone", action="store_true", help="as if the library had no trees for sums")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    elements = int(options.mib * 2**20 * 8 / _BITS)
    networks = [Topology.parse(text) for text in options.topologies]
    networks = [replace(each, trees=each.trees and not options.rings_alone) for each in networks]
    cases = [case for network in networks for case in cases_of(network, elements)]
    replace_line("")
    text = markdown_table(_HEADINGS, [_cells(case) for case in cases], "lll" + "r" * 8) + "\n\n" + summary(cases)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return int(any(gain < 1 for case in cases for gain in case.gains))


def cases_of(network: Topology, elements: int) -> Iterator[Case]:
    """Yields the cases of a network: all meshes of two or three axes, summed over each axis, and over all but one."""
    for rank in (2, 3):
        for sizes in products(network.size, rank):
            some = {(name,) for name in _NAMES[:rank]} | set(itertools.combinations(_NAMES[:rank], rank - 1))
            for summed in sorted(some):
                replace_line(f"{network.name}: {' x '.join(map(str, sizes))}, summed over {' '.join(summed)}")
                yield case_of(network, sizes, summed, elements)


def case_of(network: Topology, sizes: tuple[int, ...], summed: tuple[str, ...], elements: int) -> Case:
    """Returns a case with tiles of so many elements."""
    began_s = time.perf_counter()
    meshes = [each.mesh for each in placements(network, Mesh(tuple(zip(_NAMES, sizes))), with_orders=False)]
    default_s, ours_s = zip(*(_times(network, mesh, summed, elements) for mesh in meshes))
    return Case(network.name, sizes, summed, default_s, ours_s, time.perf_counter() - began_s)


def _times(topology: Topology, mesh: Mesh, summed: tuple[str, ...], elements: int) -> tuple[float, float]:
    factors = tuple(Factor(name, 1, mesh.axis_size(name)) for name in summed)
    collective = InGroups("all_reduce", (elements,), factors)
    listed = tuple(tuple(each) for each in groups(mesh, factors).tolist())
    flat_s = collective_time_s(topology, mesh.size, collective.flat(listed, _BITS))
    asked = redistribution_of(mesh, collective, mesh.axis_names)
    found = plan(mesh, asked.shape, _BITS, asked.source, asked.target, objective="time", topology=topology)
    return flat_s, min(flat_s, found.time_s)


def _cells(case: Case) -> tuple[str, ...]:
    gains, best_s = case.gains, min(case.default_s)
    return (
        case.network,
        " x ".join(map(str, case.sizes)),
        " ".join(case.summed),
        str(len(gains)),
        f"{1e3 * best_s:.2f}",
        f"{max(case.default_s) / best_s:.1f}",
        f"{1e3 * min(case.ours_s):.2f}",
        f"{sum(gain > _GAIN for gain in gains) / len(gains):.0%}",
        f"{statistics.mean(gains):.2f}",
        f"{max(gains):.2f}",
        f"{case.planning_s:.2f}",
    )


def summary(cases: list[Case]) -> str:
    """Returns what P² says of its measurements, of these cases."""
    gains = [gain for case in cases for gain in case.gains]
    better = [gain for gain in gains if gain > _GAIN]
    spread = max(max(case.default_s) / min(case.default_s) for case in cases)
    geomean = math.exp(statistics.mean(map(math.log, gains)))
    return (
        f"{len(gains)} pairs of placement and sum in {len(cases)} cases: ours is faster in "
        f"{len(better) / len(gains):.0%}, {statistics.mean(better or [1.0]):.2f} times on average where it is, "
        f"{max(gains):.2f} at most; geomean over all {geomean:.2f}; one placement takes up to {spread:.0f} times as "
        "long as another"
    )


if __name__ == "__main__":
    sys.exit(main())
