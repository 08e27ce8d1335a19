# SPDX-License-Identifier: Apache-2.0
"""Random redistribution problems: two shardings of one array on one mesh.

The same seed gives the same pairs in every process. The tests use these problems too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from reshard.synthesis.layouts.layout import leftover_axes, same_placement
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

AXIS_NAMES = "xyzwuvabcdefghijklmn"  # as many names as the largest mesh can have axes


@dataclass(frozen=True, slots=True)
class Pair:
    """A redistribution of one array on one mesh; its text has the notation of `reshard plan`."""

    mesh: Mesh
    shape: tuple[int, ...]
    source: Sharding
    target: Sharding

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        return f"{self.mesh} {dims}: {self.source} -> {self.target}"


def random_pairs(seed: int, count: int, devices: tuple[int, ...], **options) -> list[Pair]:
    """Returns `count` pairs; the device counts take turns. The options are those of `random_pair`."""
    rng = random.Random(seed)
    return [random_pair(rng, devices[i % len(devices)], **options) for i in range(count)]


def random_reductions(seed: int, count: int, devices: tuple[int, ...], **options) -> list[Pair]:
    """Returns `count` pairs with partial sums at the source, the target or both, along random left-over axes."""
    rng = random.Random(seed)
    found: list[Pair] = []
    while len(found) < count:
        pair = random_pair(rng, devices[len(found) % len(devices)], **options)
        source, target = (
            _with_sums(rng, pair.mesh, side, chance) for side, chance in ((pair.source, 0.8), (pair.target, 0.3))
        )
        if source.unreduced or target.unreduced:
            found.append(Pair(pair.mesh, pair.shape, source, target))
    return found


def _with_sums(rng: random.Random, mesh: Mesh, side: Sharding, chance: float) -> Sharding:
    return Sharding(side.dims, unreduced=tuple(axis for axis in leftover_axes(mesh, side) if rng.random() < chance))


def random_pair(
    rng: random.Random,
    devices: int,
    *,
    max_rank: int = 4,
    sub_axes: float = 0.3,
    device_order: float = 0.15,
    extra: tuple[int, ...] = (1, 1, 2, 3, 4),
    least_elements: int = 0,
    num_axes: int | None = None,
) -> Pair:
    """Returns a pair whose two shardings place the array differently and divide its shape.

    Args:
      devices: the size of the mesh; how it factors into axes is random.
      sub_axes: the chance that an axis may be split into sub-axes. device_order: the chance of shuffled device ids.
      extra: factors by which a dimension may exceed what divisibility asks for.
      least_elements: random dimensions are doubled until the array has as many.
      num_axes: of the mesh, at random without.
    """
    while True:
        mesh = _random_mesh(rng, devices, device_order, num_axes)
        rank = rng.randint(1, max_rank)
        cuts = [_cuts(rng, size, sub_axes) for _, size in mesh.axes]
        source, target = (_random_sharding(rng, mesh, cuts, rank) for _ in range(2))
        if same_placement(mesh, source, target):
            continue
        shape = [
            math.lcm(a, b) * rng.choice(extra) for a, b in zip(source.shards(mesh), target.shards(mesh), strict=True)
        ]
        while math.prod(shape) < least_elements:
            shape[rng.randrange(rank)] *= 2
        return Pair(mesh, tuple(shape), source, target)


def _random_mesh(rng: random.Random, devices: int, device_order: float, num_axes: int | None) -> Mesh:
    sizes = _random_sizes(rng, devices) if num_axes is None else _sizes_of(rng, devices, num_axes)
    ids = None
    if rng.random() < device_order:
        ids = tuple(rng.sample(range(devices), devices))
    return Mesh(tuple(zip(AXIS_NAMES[: len(sizes)], sizes, strict=True)), ids)


def _random_sizes(rng: random.Random, devices: int) -> list[int]:
    sizes = []
    rest = devices
    while rest > 1:
        sizes.append(rng.choice([d for d in range(2, rest + 1) if rest % d == 0]))
        rest //= sizes[-1]
    return sizes


def _sizes_of(rng: random.Random, devices: int, num_axes: int) -> list[int]:
    """Returns the sizes of `num_axes` axes, each at least 2: every other prime factor goes to a random axis."""
    primes = []
    for divisor in range(2, devices + 1):
        while devices % divisor == 0:
            primes.append(divisor)
            devices //= divisor
    if num_axes > len(primes):
        raise ValueError(f"{num_axes} axes need as many prime factors; there are {len(primes)}")
    rng.shuffle(primes)
    sizes = primes[:num_axes]
    for prime in primes[num_axes:]:
        sizes[rng.randrange(num_axes)] *= prime
    return sizes


def _cuts(rng: random.Random, size: int, sub_axes: float) -> list[int]:
    """Returns the places at which both sides may cut an axis: 1, the size, and random divisors between.

    Each place divides the next one.
    """
    cuts = [1, size]
    while rng.random() < sub_axes:
        places = [
            d for d in range(2, size) if size % d == 0 and d not in cuts and all(d % c == 0 or c % d == 0 for c in cuts)
        ]
        if not places:
            break
        cuts = sorted([*cuts, rng.choice(places)])
    return cuts


def _random_sharding(rng: random.Random, mesh: Mesh, cuts: list[list[int]], rank: int) -> Sharding:
    """Returns a sharding with each piece of an axis at a random place of a random dimension, or replicated."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for (name, _), places in zip(mesh.axes, cuts, strict=True):
        used = [c for i, c in enumerate(places) if i in (0, len(places) - 1) or rng.random() < 0.7]
        for start, end in zip(used, used[1:]):
            if rng.random() < 0.75:
                axes = rng.choice(dims)
                axes.insert(rng.randint(0, len(axes)), AxisRef(name, start, end // start))
    return Sharding(tuple(tuple(_canonical(mesh, axes)) for axes in dims))


def _canonical(mesh: Mesh, axes: list[AxisRef]) -> list[AxisRef]:
    """Returns the axes with adjacent pieces of one axis joined, as Shardy's verifier requires."""
    joined: list[AxisRef] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        if joined and joined[-1].name == axis.name:
            last_pre, last_size = joined[-1].resolve(mesh)
            if last_pre * last_size == pre:
                pre, size = last_pre, last_size * size
                joined.pop()
        joined.append(AxisRef(axis.name) if size == mesh.axis_size(axis.name) else AxisRef(axis.name, pre, size))
    return joined


def rotations(mesh: Mesh, shape: tuple[int, ...]) -> Iterator[Pair]:
    """Yields the pairs in which two or three axes, each on its own dimension, rotate among these dimensions."""
    for count in (2, 3):
        for chosen in itertools.permutations(mesh.axis_names, count):
            for dims in itertools.combinations(range(len(shape)), count):
                sides = (dict(zip(dims, axes)) for axes in (chosen, chosen[1:] + chosen[:1]))
                yield Pair(mesh, shape, *(_one_axis_each(at, len(shape)) for at in sides))


def _one_axis_each(axis_at: dict[int, str], rank: int) -> Sharding:
    return Sharding(tuple((AxisRef(axis_at[dim]),) if dim in axis_at else () for dim in range(rank)))
