# SPDX-License-Identifier: Apache-2.0
"""The problems that `plan_costs.py` plans, as text: the same ones in every process, for every version of the planner.

Each problem is drawn from its own random generator, so the first problems are the same for every number of problems. A
planner gets only the text, and no objects of the checkout in which the problems are drawn.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.conversions.cases import LEAST_ELEMENTS, network_cases
from benchmarks.conversions.pairs import Pair, random_pair, random_reductions
from benchmarks.planner import MANY_AXES, MANY_DEVICES
from reshard import Mesh, Sharding

COUNT = 5000  # number of random problems
SEED = 0
# Numbers of devices: powers of two, primes, products of several primes. Numbers up to 100 are four times as frequent.
FEWER = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 18, 20, 24, 27, 30, 32, 36, 40, 48, 60, 64, 72, 96, 100)
MORE = (128, 144, 200, 256, 512, MANY_DEVICES)
DEVICES = tuple(random.Random(SEED).sample(4 * FEWER + MORE, 4 * len(FEWER) + len(MORE)))
PAIRS, UNEVEN, SUMS, MESHES, NETWORKS = "pairs", "uneven", "partial sums", "two meshes", "networks"
TURNS = (PAIRS, UNEVEN, SUMS, MESHES, PAIRS)
MOST_DEVICES = {SUMS: 512, MESHES: 512}  # a plan for 4,096 devices can take two minutes
NETWORK_PAIRS = 100  # number of pairs for each mesh of each network
BITS = {"f32": 32, "bf16": 16, "i8": 8, "i4": 4, "c64": 64}
ELEMENTS = ("f32", "f32", "f32", "bf16", "bf16", "i8", "i4", "c64")
REDUCTIONS = ("sum", "sum", "sum", "prod", "min", "max")
MOST_GPUS = 8  # in one node of h100
FEW_DEVICES = 24  # with more devices only one of the four networks is used, unless all are asked for
LIMIT = 5, 4  # the memory limit is 5/4 of the source tile and the target tile together


@dataclass(frozen=True, slots=True)
class Problem:
    """A redistribution as text, with the networks on which it is timed, and the memory limit of its limited plans.

    Attributes:
      suite, number: identify the problem.
      target_mesh: None if it is `mesh`. limit_bytes: depends only on the tiles of source and target.
      topologies: all networks. timed_on: the networks of a short run.
    """

    suite: str
    number: int
    mesh: str
    target_mesh: str | None
    shape: tuple[int, ...]
    dtype: str
    source: str
    target: str
    reduction: str
    topologies: tuple[str, ...]
    timed_on: tuple[str, ...]
    limit_bytes: int

    def calls(self, *, on_all: bool = False) -> Iterator[Call]:
        """Yields the calls of `reshard.plan`, by bytes and by time on each network, without and with the limit."""
        networks = self.topologies if on_all else self.timed_on
        for objective, topology in (("bytes", None), *(("time", each) for each in networks)):
            for limit in (None, self.limit_bytes):
                yield Call(self, objective, topology, limit)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `reshard.plan`."""

    problem: Problem
    objective: str
    topology: str | None
    memory_limit: int | None

    @property
    def arguments(self) -> dict:
        """Returns the arguments of `reshard.plan`, without arguments that are None."""
        problem = self.problem
        given = {"source": problem.source, "target": problem.target, "mesh": problem.mesh}
        given |= {"target_mesh": problem.target_mesh, "shape": problem.shape, "dtype": problem.dtype}
        given |= {"reduction": problem.reduction}
        given |= {"objective": self.objective, "topology": self.topology, "memory_limit": self.memory_limit}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def preset(self) -> str:
        """Returns the entry of the column "preset": the name, with sizes only for the network pairs; "-" by bytes."""
        if self.topology is None:
            return "-"
        return self.topology if self.problem.suite == NETWORKS else self.topology.partition(":")[0]

    @property
    def key(self) -> str:
        """Returns the key of the call in a journal."""
        digest = hashlib.sha256(json.dumps(self.arguments, sort_keys=True).encode()).hexdigest()[:16]
        words = (self.problem.suite, self.problem.number, self.objective, self.topology or "-")
        return f"{', '.join(map(str, words))}, {'no limit' if self.memory_limit is None else 'limit'}, {digest}"

    def command(self) -> str:
        """Returns the command line that makes the same plan.

        Example:
          >>> problem = Problem("pairs", 0, "x=4", None, (8, 8), "f32", '[{"x"}, {}]', "[{}, {}]", "sum", (), (), 400)
          >>> print(Call(problem, "time", "h100", 400).command())  # doctest: +NORMALIZE_WHITESPACE
          reshard plan --mesh x=4 --type 'f32[8,8]' --from '[{"x"}, {}]' --to '[{}, {}]' --objective time
            --topology h100 --memory-limit 400
        """
        problem, dims = self.problem, ",".join(map(str, self.problem.shape))
        flags = {"mesh": problem.mesh, "to-mesh": problem.target_mesh, "type": f"{problem.dtype}[{dims}]"}
        flags |= {"from": problem.source, "to": problem.target, "objective": self.objective, "topology": self.topology}
        flags["memory-limit"] = self.memory_limit
        flags["reduction"] = None if problem.reduction == "sum" else problem.reduction
        words = [(f"--{flag}", shlex.quote(str(value))) for flag, value in flags.items() if value is not None]
        return " ".join(["reshard plan", *itertools.chain(*words)])


def problems(count: int = COUNT) -> list[Problem]:
    """Returns `count` random problems and the same share of the network pairs.

    A smaller `count` gives the first problems of a larger one.
    """
    wanted = max(1, round(len(_network_problems()) * count / COUNT))
    step = max(1, len(_network_problems()) // wanted)
    return [*map(_random_problem, range(count)), *_network_problems()[::step][:wanted]]


def presets(devices: int) -> tuple[str, ...]:
    """Returns four networks with this number of devices: one switch, nodes of at most eight GPUs, a torus, slow hosts.

    Example:
      >>> presets(12), presets(7)
      (('uniform', 'h100:2x6', 'v5e:3x4', 'ethernet:2x6'), ('uniform', 'h100:1x7', 'v5e:1x7', 'ethernet:7x1'))
    """
    divisors = [each for each in range(1, devices + 1) if devices % each == 0]
    gpus = max(each for each in divisors if each <= MOST_GPUS)
    rows = max(each for each in divisors if each * each <= devices)
    hosts = divisors[1] if devices > 1 else 1
    sizes = {"h100": (devices // gpus, gpus), "v5e": (rows, devices // rows), "ethernet": (hosts, devices // hosts)}
    return ("uniform", *(f"{name}:{outer}x{inner}" for name, (outer, inner) in sizes.items()))


# ---- drawing


@functools.cache
def _network_problems() -> tuple[Problem, ...]:
    found = []
    for number, case in enumerate(network_cases(NETWORK_PAIRS, SEED)):
        networks = case.topologies
        found.append(_as_text(NETWORKS, number, _Ends.of(case.pair), case.element, "sum", networks, networks))
    return tuple(found)


def _random_problem(number: int) -> Problem:
    suite, rng = TURNS[number % len(TURNS)], random.Random(f"{SEED} {number}")
    devices = DEVICES[number // len(TURNS) % len(DEVICES)]
    ends = _DRAWN[suite](rng, min(devices, MOST_DEVICES.get(suite, devices)))
    has_sums = bool(ends.source.unreduced or ends.target.unreduced)
    element, reduction = rng.choice(ELEMENTS), rng.choice(REDUCTIONS) if has_sums else "sum"
    fitting = presets(ends.devices)
    timed_on = fitting if ends.devices <= FEW_DEVICES else (rng.choice(fitting),)
    return _as_text(suite, number, ends, element, reduction, fitting, timed_on)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The source and the target of a redistribution; `goal` is the mesh of the target."""

    mesh: Mesh
    goal: Mesh
    shape: tuple[int, ...]
    source: Sharding
    target: Sharding

    @classmethod
    def of(cls, pair: Pair) -> _Ends:
        return cls(pair.mesh, pair.mesh, pair.shape, pair.source, pair.target)

    @property
    def devices(self) -> int:
        """Returns the number of devices of both meshes together."""
        return max(self.mesh.devices, self.goal.devices)


def _as_text(
    suite: str,
    number: int,
    ends: _Ends,
    element: str,
    reduction: str,
    networks: tuple[str, ...],
    timed_on: tuple[str, ...],
) -> Problem:
    target_mesh = None if ends.goal == ends.mesh else str(ends.goal)
    source, target, limit = str(ends.source), str(ends.target), _limit_bytes(ends, element)
    return Problem(
        suite,
        number,
        str(ends.mesh),
        target_mesh,
        ends.shape,
        element,
        source,
        target,
        reduction,
        networks,
        timed_on,
        limit,
    )


def _limit_bytes(ends: _Ends, element: str) -> int:
    """Returns 5/4 of the bytes of both tiles, the source's and the target's; they are padded where needed."""
    tiles = (side.tile_shape(on, ends.shape) for side, on in ((ends.source, ends.mesh), (ends.target, ends.goal)))
    return -(-sum(map(math.prod, tiles)) * BITS[element] * LIMIT[0] // (8 * LIMIT[1]))


def _pair(rng: random.Random, devices: int, **options) -> Pair:
    return random_pair(rng, devices, **_options(rng, devices), **options)


def _pair_with_sums(rng: random.Random, devices: int) -> Pair:
    return random_reductions(rng.getrandbits(32), 1, (devices,), **_options(rng, devices))[0]


def _options(rng: random.Random, devices: int) -> dict:
    return {"least_elements": rng.choice(LEAST_ELEMENTS), "num_axes": MANY_AXES if devices >= MANY_DEVICES else None}


def _even_ends(rng: random.Random, devices: int) -> _Ends:
    return _Ends.of(_pair(rng, devices))


def _uneven_ends(rng: random.Random, devices: int) -> _Ends:
    pair = _pair(rng, devices)
    return _Ends(pair.mesh, pair.mesh, _uneven(rng, pair.shape), pair.source, pair.target)


def _ends_with_sums(rng: random.Random, devices: int) -> _Ends:
    pair = _pair_with_sums(rng, devices)
    shape = _uneven(rng, pair.shape) if rng.random() < 0.25 else pair.shape
    return _Ends(pair.mesh, pair.mesh, shape, pair.source, pair.target)


def _ends_on_two_meshes(rng: random.Random, devices: int) -> _Ends:
    """Returns ends on two meshes, over the same devices or some of them, or with a single device at one end."""
    one = _pair_with_sums(rng, devices) if rng.random() < 0.2 else _pair(rng, devices)
    if rng.random() < 0.2:
        return _ends_on_one_device(rng, one)
    others = (devices, devices, devices, rng.choice([each for each in DEVICES if each <= devices]))
    other = _of_rank(rng, rng.choice(others), len(one.shape))
    shards = zip(one.source.shards(one.mesh), other.target.shards(other.mesh), strict=True)
    shape = [math.lcm(*both) * rng.choice((1, 1, 2, 3)) for both in shards]
    while math.prod(shape) < math.prod(one.shape):
        shape[rng.randrange(len(shape))] *= 2
    shape = _uneven(rng, tuple(shape)) if rng.random() < 0.3 else tuple(shape)
    ends = _Ends(one.mesh, other.mesh, shape, one.source, other.target)
    return ends if rng.random() < 0.5 else _turned(ends)


def _ends_on_one_device(rng: random.Random, pair: Pair) -> _Ends:
    alone = Mesh((), (rng.randrange(pair.mesh.size),))
    ends = _Ends(pair.mesh, alone, pair.shape, pair.source, Sharding(((),) * len(pair.shape)))
    return ends if rng.random() < 0.5 else _turned(ends)


def _turned(ends: _Ends) -> _Ends:
    """Returns the redistribution in the other direction."""
    return _Ends(ends.goal, ends.mesh, ends.shape, ends.target, ends.source)


def _of_rank(rng: random.Random, devices: int, rank: int) -> Pair:
    while True:
        pair = random_pair(rng, devices, device_order=0.4, num_axes=MANY_AXES if devices >= MANY_DEVICES else None)
        if len(pair.shape) == rank:
            return pair


def _uneven(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns random sizes, at most twice as large as the given ones; rarely one of them is 0."""
    sizes = [rng.randint(1, 2 * size) if rng.random() < 0.7 else size for size in shape]
    if rng.random() < 0.02:
        sizes[rng.randrange(len(sizes))] = 0
    return tuple(sizes)


_DRAWN = {PAIRS: _even_ends, UNEVEN: _uneven_ends, SUMS: _ends_with_sums, MESHES: _ends_on_two_meshes}
