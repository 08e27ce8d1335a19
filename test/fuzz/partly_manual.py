# SPDX-License-Identifier: Apache-2.0
"""Random programs in a `jax.shard_map` over some axes, written per device, against the same body over all axes.

As a script, this file is the worker of `test_partly_manual.py`: it checks seeds, and prints one JSON object for each,
and another one that names the seed before.

python3 test/fuzz/partly_manual.py 0 100

Over all axes, the devices along the axes that are free here compute the same, and nothing is split along them. All
numbers in the programs are small and whole, and so are their sums: outputs are compared bit for bit.
"""

from __future__ import annotations

import json
import math
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shard_maps import DEVICES, DTYPES, Program, Writer, random_network

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import manual_axes, ops_in
from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.global_arrays import as_numpy
from reshard.synthesis.network.topology import Topology

SIZES = ((("x", 2), ("f", 2)), (("x", 2), ("f", 4)), (("f", 2), ("x", 4)), (("x", 3), ("f", 2)), (("f", 3), ("x", 4)))
SIZES += ((("x", 2), ("y", 2), ("f", 2)), (("x", 2), ("f", 2), ("y", 3)), (("x", 2), ("f", 2), ("g", 3)))
FREE = ("f", "g")
DIMS = (1, 2, 3, 4, 6, 8, 12)
_WAYS = ("time", "time", "bytes")


class _Constrained(Writer):
    """Draws steps some of which say how a tile is to be split along the free axes.

    Attributes:
      free: the free axes with their sizes. constrains: whether constraints are written.
    """

    free: dict[str, int]
    constrains = True

    def step(self, may: frozenset[str], depth: int) -> tuple[int, Callable]:
        if self.rng.random() < 0.35:
            return self._constraint(depth)
        return super().step(may, depth)

    def _constraint(self, depth: int) -> tuple[int, Callable]:
        drawn = [(axis, self.rng.randrange(6)) for axis in self.free if self.rng.random() < 0.7]
        self.words.append(f"{'  ' * depth}constraint {drawn}")

        def step(tile):
            if not self.constrains or not tile.ndim:
                return tile
            return lax.with_sharding_constraint(tile, P(*_spread(drawn, tile.shape, self.free)))

        return self.rng.choice((0, -1, -1, -1)), step


def _spread(drawn, shape: tuple[int, ...], sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """Returns for each dimension the axes that split it; those of which the size is no multiple split nothing."""
    dims: list[tuple[str, ...]] = [()] * len(shape)
    for axis, place in drawn:
        at = place % len(shape)
        if shape[at] % math.prod(sizes[each] for each in (*dims[at], axis)) == 0:
            dims[at] = (*dims[at], axis)
    return dims


def random_program(seed: int) -> tuple[Program, _Constrained, list]:
    """Returns the program of a seed, the writer of its body, and what splits its arguments along the free axes."""
    rng = random.Random(seed)
    mesh = dict(rng.choice(SIZES))
    free = {name: size for name, size in mesh.items() if name in FREE}
    manual = {name: size for name, size in mesh.items() if name not in FREE}
    size = math.prod(mesh.values())
    count = rng.choice((1, 2, 2, 3))
    tiles = [tuple(rng.choice(DIMS) for _ in range(rng.choice((1, 2, 2, 3)))) for _ in range(count)]
    specs, splits = [], []
    for tile in tiles:
        dims: list[list[str]] = [[] for _ in tile]
        for axis in rng.sample(list(manual), len(manual)):
            if rng.random() < 0.5:
                rng.choice(dims).append(axis)
        specs.append(tuple(map(tuple, dims)))
        splits.append([(axis, rng.randrange(6)) for axis in free if rng.random() < 0.6])
    program = Program(mesh, list(range(size)), specs, tiles, rng.choices(DTYPES, k=count), False)
    writer = _Constrained(rng, manual)
    writer.free = free
    program.body = writer.steps(rng.randint(2, 7), frozenset(manual))
    program.words = writer.words
    return program, writer, splits


def _function(program: Program, manual: dict[str, int], mesh: Mesh, names: set[str]) -> Callable:
    def tiles(*arguments):
        return [each[None] for each in program.body(list(arguments))]

    specs = tuple(P(*spec) for spec in program.specs)
    inner = jax.shard_map(
        tiles, mesh=mesh, in_specs=specs, out_specs=P(tuple(manual)), axis_names=names, check_vma=False
    )
    return jax.jit(inner)


def check(seed: int) -> dict:
    """Returns what happened with the program of a seed: `failures` as (kind, text), and how many conversions and
    collectives ours has."""
    program, writer, splits = random_program(seed)
    rng = random.Random(~seed)
    outcome = {"seed": seed, "failures": [], "invalid": "", "refused": "", "conversions": 0, "collectives": 0}
    devices = np.array(jax.devices()[: program.size]).reshape(tuple(program.mesh.values()))
    mesh = Mesh(devices, tuple(program.mesh), axis_types=(AxisType.Auto,) * len(program.mesh))
    arguments, manual = program.arguments(seed), writer.mesh
    try:
        writer.constrains = False
        wanted = [np.asarray(each) for each in _function(program, manual, mesh, set(program.mesh))(*arguments)]
        writer.constrains = True
        with jax.set_mesh(mesh):
            placed = [
                jax.device_put(each, NamedSharding(mesh, P(*_placed(*both, each.shape, tile, writer.free))))
                for each, *both, tile in zip(arguments, program.specs, splits, program.tiles, strict=True)
            ]
            jax.clear_caches()
            lowered = _function(program, manual, mesh, set(manual)).lower(*placed)
    except Exception as error:  # jax does not have every combination
        outcome["invalid"] = f"{type(error).__name__}: {error}"[:200]
        return outcome
    module = lowered.compiler_ir("stablehlo")
    try:
        with module.context:
            try:
                done = local_modules.convert(module, **_planning(rng, random_network(rng, program.size)))
            except DiagnosedError as refusal:  # uneven tiles where some devices alone may run a branch
                outcome["refused"] = str(refusal)
                outcome["failures"] += [] if "finds no chain" in str(refusal) else [["refused", str(refusal)]]
                return outcome
        assert module.operation.verify()
        outcome["conversions"] = len(done.conversions)
        outcome["collectives"] = _collectives(module, len(program.mesh))
        ours = [as_numpy(each) for each in lowered.compile()(*placed)]
    except Exception:
        outcome["failures"].append(["crash", traceback.format_exc()])
        return outcome
    for number, (mine, theirs) in enumerate(zip(ours, wanted, strict=True)):
        if mine.dtype != theirs.dtype or not np.array_equal(mine, theirs):
            outcome["failures"].append(["values", f"output {number} of type {mine.dtype}{list(mine.shape)}"])
    return outcome


def _placed(spec, split, shape, tile, free: dict[str, int]) -> list[tuple[str, ...]]:
    own = _spread(split, tile, free)
    return [(*axes, *inner) for axes, inner in zip(spec, own, strict=True)]


def _planning(rng: random.Random, network: Topology) -> dict:
    way = rng.choice(_WAYS)
    chosen = {"objective": "time", "topology": network} if way == "time" else {}
    return {**chosen, "platform": rng.choice(("cpu", "gpu", "tpu")), "compares_products": rng.random() < 0.5}


def _collectives(module: ir.Module, axes: int) -> int:
    """Returns how many collectives run in a module that is one manual computation over all axes."""
    islands = [op for op in ops_in(module.operation) if op.name == "sdy.manual_computation"]
    assert all(len(manual_axes(each.attributes["manual_axes"])) == axes for each in islands), "an island is left"
    return sum(op.name.split(".")[1].startswith(("all_", "reduce_scatter")) for op in ops_in(module.operation))


def main(first: int, count: int) -> None:
    warnings.simplefilter("ignore")
    say = partial(print, flush=True)
    for seed in range(first, first + count):
        say(json.dumps({"seed": seed, "begins": True}))
        say(json.dumps(check(seed)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main(*map(int, sys.argv[1:]))
