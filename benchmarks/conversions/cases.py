# SPDX-License-Identifier: Apache-2.0
"""The redistributions for `redistributions.py`: random ones, and typical ones of programs on named networks."""

from __future__ import annotations

import itertools
import math
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.conversions.pairs import Pair, random_pair
from reshard.planning.element_types import element_type
from reshard.synthesis.layouts.layout import same_placement
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network.topology import Topology, TopologyError

# Least numbers of elements of the global arrays, in turn: latency matters for small arrays, bandwidth for large ones.
LEAST_ELEMENTS = (0, 1 << 16, 1 << 22, 1 << 28)

# Topologies, each with the meshes that a user would choose; axes across the slow network come first.
NETWORKS = {
    "h100:4": ("data=4,model=8", "data=8,model=4", "data=4,fsdp=2,model=4"),
    "v5e:4x4*2": ("data=2,model=16", "data=8,model=4", "data=2,fsdp=4,model=4"),
    "v5p:2x2x4*2": ("data=2,model=16", "data=8,model=4", "data=2,fsdp=4,model=4"),
}
# bf16: a weight matrix, activations (batch, sequence, features), the same split into heads (batch, sequence, heads,
# features).
ARRAYS = ((8192, 28672), (64, 4096, 8192), (64, 4096, 64, 128))


@dataclass(frozen=True, slots=True)
class Case:
    """A redistribution, its element type, the networks on which it is timed, and its row (`group`) in the tables."""

    pair: Pair
    element: str
    topologies: tuple[str, ...]
    group: str

    def __str__(self) -> str:
        return f"{self.element} {self.pair}"

    @property
    def bits(self) -> int:
        return element_type(self.element).bits

    @property
    def tensor_type(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.pair.shape)}{self.element}>"

    @property
    def largest_tile_bytes(self) -> int:
        """Returns the bytes of the larger one of source tile and target tile."""
        pair = self.pair
        tiles = (side.tile_shape(pair.mesh, pair.shape) for side in (pair.source, pair.target))
        return -(-max(map(math.prod, tiles)) * self.bits // 8)

    def command(self, objective: str, topology: str | None = None, tile_limit: int | None = None) -> str:
        """Returns the command line that shows our plan and the peers' answers.

        Example:
          >>> pair = Pair(Mesh.parse("x=4"), (8, 8), Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
          >>> Case(pair, "f32", ("h100",), "4").command("time", "h100")  # doctest: +NORMALIZE_WHITESPACE
          'reshard plan --mesh \\'<["x"=4]>\\' --type \\'f32[8,8]\\' --from \\'[{"x"}, {}]\\' --to \\'[{}, {"x"}]\\'
           --objective time --topology h100 --compare xla,shardy'
        """
        pair = self.pair
        dims = ",".join(map(str, pair.shape))
        flags = {"mesh": pair.mesh, "type": f"{self.element}[{dims}]", "from": pair.source, "to": pair.target}
        flags["objective"] = objective
        if topology:
            flags["topology"] = topology
        if tile_limit is not None:
            flags["tile-limit"] = tile_limit
        words = [word for flag, value in flags.items() for word in (f"--{flag}", shlex.quote(str(value)))]
        return " ".join(["reshard plan", *words, "--compare xla,shardy"])


def random_cases(devices: tuple[int, ...], count: int, seed: int, presets: tuple[str, ...]) -> list[Case]:
    """Returns `count` random f32 pairs for each number of devices; a smaller count gives the first ones.

    The numbers of devices take turns, so that an unfinished run has pairs with all of them. Each pair is timed on the
    presets that exist with its number of devices.
    """
    columns = []
    for number in devices:
        rng, fitting = random.Random(seed), fitting_presets(presets, number)
        pairs = (random_pair(rng, number, least_elements=LEAST_ELEMENTS[i % len(LEAST_ELEMENTS)]) for i in range(count))
        columns.append([Case(pair, "f32", fitting, f"{number} devices") for pair in pairs])
    return [case for row in zip(*columns, strict=True) for case in row]


def fitting_presets(names: tuple[str, ...], devices: int) -> tuple[str, ...]:
    """Returns the presets that exist with this number of devices.

    Example:
      >>> fitting_presets(("h100", "uniform"), 12)
      ('uniform',)
    """
    return tuple(name for name in names if _fits(name, devices))


def _fits(name: str, devices: int) -> bool:
    try:
        Topology.parse(name).fitted(devices)
    except TopologyError:
        return False
    return True


def network_cases(count: int, seed: int) -> list[Case]:
    """Returns at most `count` bf16 pairs for each mesh of each network, drawn from all pairs with whole axes."""
    found = []
    for topology, meshes in NETWORKS.items():
        for text in meshes:
            mesh, rng = Mesh.parse(text), random.Random(seed)
            for number, shape in enumerate(ARRAYS):
                share = (count + number) // len(ARRAYS)
                for pair in _drawn(rng, mesh, shape, share):
                    found.append(Case(pair, "bf16", (topology,), f"{topology}, {text}"))
    return found


def _drawn(rng: random.Random, mesh: Mesh, shape: tuple[int, ...], count: int) -> list[Pair]:
    sides = list(_whole_axis_shardings(mesh, len(shape)))
    pairs = [(a, b) for a in sides for b in sides if not same_placement(mesh, a, b)]
    return [Pair(mesh, shape, *ends) for ends in rng.sample(pairs, min(count, len(pairs)))]


def _whole_axis_shardings(mesh: Mesh, rank: int) -> Iterator[Sharding]:
    """Yields the shardings of whole axes, each on one dimension or none, those on one dimension in mesh order."""
    for places in itertools.product(range(-1, rank), repeat=len(mesh.axes)):
        placed = list(zip(map(AxisRef, mesh.axis_names), places))
        yield Sharding(tuple(tuple(axis for axis, at in placed if at == dim) for dim in range(rank)))
