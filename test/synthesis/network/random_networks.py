# SPDX-License-Identifier: Apache-2.0
"""Networks for tests: small ones by hand, and random ones."""

import random
from dataclasses import replace

from reshard.synthesis.network.topology import MAY_BE_RINGS, Level, Topology

GB = 1e9
US = 1e-6


def topology(*levels, launch_us=0.0) -> Topology:
    return Topology("test", levels, 1000 * GB, launch_us * US)


def switch(name, size, gbs, us=0.0, **more) -> Level:
    return Level(name, size, "switch", gbs * GB, us * US, **more)


def random_topology(rng: random.Random, num_devices: int) -> Topology:
    """Returns a topology whose levels get slower outwards."""
    levels, left, gbs, latency = [], num_devices, rng.choice([10.0, 100.0]), 1.0
    for name in "cba":
        divisors = [d for d in range(1, left + 1) if left % d == 0]
        size = left if name == "a" else rng.choice(divisors)
        kind = rng.choice(["switch", "switch", "bus", "ring", "torus"])
        dims, wrap = (), None
        if kind == "torus":
            first = rng.choice([d for d in range(1, size + 1) if size % d == 0])
            dims = (first, size // first)
        if kind in ("ring", "torus"):
            wrap = tuple(rng.random() < 0.5 for _ in dims or (0,))
        shared = gbs * GB * rng.choice([1, 2]) if kind == "switch" and rng.random() < 0.5 else None
        levels.insert(0, Level(name, size, kind, gbs * GB, latency * US, shared, dims, wrap))
        left, gbs, latency = left // size, gbs / rng.choice([1, 2, 10]), latency * rng.choice([1, 5])
    order = tuple(rng.sample(range(num_devices), num_devices)) if rng.random() < 0.2 else None
    rings = tuple(kind for kind in MAY_BE_RINGS if rng.random() < 0.2)
    if rng.random() < 0.2:
        levels = [replace(level, slowdown=(("swap", rng.choice([1.5, 2.0])),)) for level in levels]
    if rng.random() < 0.2:
        levels = [replace(level, copies_own=level.kind in ("switch", "bus")) for level in levels]
    if rng.random() < 0.3:
        levels = [replace(level, message_s=rng.choice([0, 1, 20]) * US) for level in levels]
    by_place, trees = rng.random() < 0.3, rng.random() < 0.3
    rest = {"device_order": order, "rings": rings, "rings_by_place": by_place, "trees": trees}
    return Topology("random", tuple(levels), 1e12, 2 * US, **rest)
