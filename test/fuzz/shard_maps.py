# SPDX-License-Identifier: Apache-2.0
"""Random programs in `jax.shard_map`, whose collectives are decomposed for random networks, and joined, against stock
XLA.

As a script, this file is the worker of `test_shard_maps.py`: it checks seeds, and prints one JSON object for each, and
others that name the seed before its programs run, since they may hang or abort.

python3 test/fuzz/shard_maps.py 0 100

All numbers in the programs are small and whole, and so are their sums: outputs are compared bit for bit. A network
whose bytes take much longer than its latencies makes nearly every collective worth a chain.
"""

from __future__ import annotations

import json
import math
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from reshard.dialect_utils.hierarchy.collective_groups import groups_of
from reshard.dialect_utils.hierarchy.explicit_collectives import OPS
from reshard.dialect_utils.hierarchy.varying_axes import varying_axes
from reshard.dialect_utils.ir.ops import name_of, ops_in
from reshard.dialect_utils.platform.bindings import ir, sdy
from reshard.dialect_utils.platform.global_arrays import as_numpy
from reshard.dialect_utils.shardings.sdy_shardings import mesh_of, module_meshes
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
from reshard.synthesis.forms.platforms import FORMS, PLATFORMS
from reshard.synthesis.hierarchy.device_groups import factors_of
from reshard.synthesis.network.topology import MAY_BE_RINGS, Level, Topology

DEVICES = 12
SIZES = (8, 8, 8, 6, 12, 4)
DTYPES = ("int32", "uint8", "float32", "bfloat16", "complex64", "int32", "float32", "bool")
DIMS = (1, 2, 3, 4, 6, 8, 12)
_MOST_ELEMENTS = 1024  # of a tile
NAMES = ("x", "y", "z")
PASS, JOINING = "decompose-collectives", "join-collectives"
# A maximum of NaN is NaN in the forms for gloo; XLA's collectives on CPU devices lose it.
_PLATFORMS = tuple(each for each in PLATFORMS if FORMS[each].has_reduce_scatter)


def random_mesh(rng: random.Random) -> dict[str, int]:
    """Returns the sizes of one to three axes over 4 to 12 devices."""
    left, sizes = rng.choice(SIZES), []
    for _ in range(rng.choice((0, 1, 1, 2))):
        size = rng.choice([each for each in range(2, left + 1) if left % each == 0] or [1])
        sizes.append(size)
        left //= size
    sizes = [size for size in (*sizes, left) if size > 1]
    rng.shuffle(sizes)
    return dict(zip(NAMES, sizes))


def random_network(rng: random.Random, devices: int) -> Topology:
    """Returns a network of two or three levels; bytes take long on it, and latencies sometimes."""
    sizes, left = [], devices
    while left > 1:
        sizes.append(rng.choice([each for each in range(2, left + 1) if left % each == 0]))
        left //= sizes[-1]
    latency = rng.choice((0.0, 0.0, 1e-8, 1e-6, 1e-5))
    speed, levels = 1e7, []
    for number, size in enumerate(sizes):
        kind = rng.choice(("switch", "switch", "switch", "bus", "ring"))
        shared = speed if kind == "switch" and rng.random() < 0.5 else None
        levels.append(Level(f"l{number}", size, kind, speed, latency, shared))
        speed *= rng.choice((1, 4, 10, 100))
        latency /= rng.choice((1, 5))
    rings = tuple(kind for kind in MAY_BE_RINGS if rng.random() < 0.5)
    order = tuple(rng.sample(range(devices), devices)) if rng.random() < 0.1 else None
    launch_s = rng.choice((0.0, 1e-8, 1e-6))
    message_s = rng.choice((0.0, 1e-6, 0.0, 1e-5))  # of an all_to_all, which then may go in hops
    levels = [replace(level, message_s=message_s) for level in levels]
    return Topology("random", tuple(levels), 1e12, launch_s, device_order=order, rings=rings)


def random_options(rng: random.Random) -> dict[str, str]:
    """Returns the form for a platform, and sometimes little memory."""
    limit = {"memory-limit": str(rng.choice((300, 1000, 3000)))} if rng.random() < 0.2 else {}
    return {"platform": rng.choice(_PLATFORMS), **limit}


# ---------------------------------------------------------------------------------------------------------------------
# Programs: a list of steps, each a function from tiles to tiles
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Program:
    """A random body of a shard_map.

    Attributes:
      specs: of the inputs, dims as tuples of axes. tiles: their shapes. dtypes: of the inputs.
      body: from the list of tiles to the list of all tiles that it makes.
      words: what the steps are, for people. order: of the devices in the mesh.
    """

    mesh: dict[str, int]
    order: list[int]
    specs: list[tuple[tuple[str, ...], ...]]
    tiles: list[tuple[int, ...]]
    dtypes: list[str]
    has_specials: bool
    body: Callable[[list], list] = list
    words: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return math.prod(self.mesh.values())

    def arguments(self, seed: int) -> list[np.ndarray]:
        """Returns small whole numbers; with specials also infinities, NaN and both zeros among floats."""
        rng = np.random.default_rng(seed)
        found = []
        for spec, tile, dtype in zip(self.specs, self.tiles, self.dtypes, strict=True):
            shape = [size * math.prod(self.mesh[axis] for axis in axes) for size, axes in zip(tile, spec, strict=True)]
            least = 0 if dtype in ("uint8", "bool") else -2
            array = rng.integers(least, 3, shape).astype(jnp.dtype(dtype))
            if self.has_specials and dtype in ("float32", "bfloat16"):
                some = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]), shape).astype(array.dtype)
                array = np.where(rng.random(shape) < 0.3, some, array)
            found.append(array)
        return found

    def function(self) -> Callable:
        """Returns the program on global arrays; each output has the tiles of all devices."""
        devices = np.array(jax.devices()[: self.size])[self.order].reshape(tuple(self.mesh.values()))
        mesh = Mesh(devices, tuple(self.mesh))
        everywhere = PartitionSpec(tuple(self.mesh))

        def tiles(*arguments):
            return [each[None] for each in self.body(list(arguments))]

        return jax.jit(
            jax.shard_map(
                tiles,
                mesh=mesh,
                in_specs=tuple(PartitionSpec(*spec) for spec in self.specs),
                out_specs=everywhere,
                check_vma=False,
            )
        )


def random_program(seed: int) -> Program:
    """Returns the program of a seed."""
    rng = random.Random(seed)
    mesh = random_mesh(rng)
    size = math.prod(mesh.values())
    order = rng.sample(range(size), size) if rng.random() < 0.15 else list(range(size))
    count = rng.choice((1, 2, 2, 3))
    tiles = [tuple(rng.choice(DIMS) for _ in range(rng.choice((1, 1, 2, 2, 3)))) for _ in range(count)]
    tiles = [tile if math.prod(tile) <= _MOST_ELEMENTS // 4 else tile[:1] for tile in tiles]
    if rng.random() < 0.05:
        tiles[0] = ()
    if rng.random() < 0.05 and tiles[0]:
        tiles[0] = (0, *tiles[0][1:])
    program = Program(
        mesh,
        order,
        [_spec(rng, mesh, tile) for tile in tiles],
        tiles,
        rng.choices(DTYPES, k=count),
        rng.random() < 0.15,
    )
    writer = Writer(rng, mesh)
    steps, bundle = writer.steps(rng.randint(2, 7), frozenset(mesh)), Writer(random.Random(f"{seed}"), mesh).bundle()
    program.body = lambda given: [*steps(given), *bundle(given)]
    program.words = writer.words
    return program


def _spec(rng: random.Random, mesh: dict[str, int], tile: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
    """Returns an in_spec; many axes split nothing, so that tiles are the same along them."""
    dims: list[list[str]] = [[] for _ in tile]
    for axis in rng.sample(list(mesh), len(mesh)):
        if dims and rng.random() < 0.5:
            rng.choice(dims).append(axis)
    return tuple(map(tuple, dims))


@dataclass
class Writer:
    """Draws steps. All but shapes is drawn when a step is written, so that a program is the same at each trace."""

    rng: random.Random
    mesh: dict[str, int]
    words: list[str] = field(default_factory=list)

    def steps(self, count: int, may: frozenset[str], depth: int = 0) -> Callable[[list], list]:
        """Returns a function that appends tiles. may: the axes that collectives may be along."""
        steps = [self.step(may, depth) for _ in range(count)]

        def run(tiles: list) -> list:
            for pick, step in steps:
                taken = tiles[pick % len(tiles)]
                made = step(taken)
                if made is not None and made.size <= _MOST_ELEMENTS:
                    tiles = [*tiles, made]
            return tiles

        return run

    def bundle(self) -> Callable[[list], list]:
        """Returns a function that makes tiles by collectives of one or two kinds, which need nothing of each other."""
        everywhere = frozenset(self.mesh)
        kinds = self.rng.sample(
            ("psum", "extreme", "scatter", "gather", "all_to_all", "permute"), self.rng.randint(1, 2)
        )
        made = [getattr(self, f"_{kind}")(self.axes(everywhere), everywhere, 0) for kind in kinds]
        ways = [self._local((), everywhere, 0) for _ in range(3)]

        def run(tiles: list) -> list:
            taken = [each for tile in tiles for each in (tile, *(way(tile) for way in ways))]
            found = [step(tile) for tile in taken for step in made]
            return [each for each in found if each is not None and each.size <= _MOST_ELEMENTS]

        return run

    def step(self, may: frozenset[str], depth: int) -> tuple[int, Callable]:
        kinds = ["psum", "psum", "extreme", "scatter", "scatter", "gather", "gather", "all_to_all", "all_to_all"]
        kinds += ["local", "varied"]
        if may == frozenset(self.mesh):
            kinds += ["permute"]
        if depth < 2:
            kinds += ["scan", "cond", "while"]
        kind = self.rng.choice(kinds)
        axes = self.axes(may)
        if not axes and kind not in ("local", "varied", "scan", "cond", "while"):
            kind = "local"
        step = getattr(self, f"_{kind}")(axes, may, depth)
        self.words.append(f"{'  ' * depth}{kind} {axes}")
        return self.rng.choice((0, -1, -1, -1, self.rng.randrange(100))), step

    def axes(self, may: frozenset[str]) -> tuple[str, ...]:
        """Returns some of the axes in any order."""
        names = sorted(may)
        return tuple(self.rng.sample(names, self.rng.randint(1, len(names)))) if names else ()

    def groups(self, axes: tuple[str, ...]) -> list[list[int]] | None:
        """Returns groups along a part of an axis, or nothing."""
        if len(axes) != 1 or self.rng.random() > 0.4:
            return None
        size = self.mesh[axes[0]]
        part = self.rng.choice([each for each in range(2, size + 1) if size % each == 0])
        way = self.rng.randrange(3)
        found = np.arange(size).reshape(-1, part) if way else np.arange(size).reshape(part, -1).T
        return self.rng.sample(found.tolist(), len(found)) if way < 2 else [row[::-1] for row in found.tolist()]

    def members(self, axes, groups) -> int:
        return len(groups[0]) if groups else math.prod(self.mesh[axis] for axis in axes)

    # ---- collectives

    def _psum(self, axes, may, depth):
        groups = self.groups(axes)

        def step(tile):
            tile = tile.astype(jnp.int32) if tile.dtype == bool else tile
            return _tame(lax.psum(tile, axes, axis_index_groups=groups))

        return step

    def _extreme(self, axes, may, depth):
        reduce = self.rng.choice((lax.pmax, lax.pmin))

        def step(tile):
            return None if jnp.iscomplexobj(tile) else reduce(tile, axes)

        return step

    def _scatter(self, axes, may, depth):
        groups, at = self.groups(axes), self.rng.randrange(6)
        count = self.members(axes, groups)

        def step(tile):
            tile = tile.astype(jnp.int32) if tile.dtype == bool else tile
            dim = next(
                (i % tile.ndim for i in range(at, at + tile.ndim) if tile.shape[i % tile.ndim] % count == 0), None
            )
            if dim is None:
                return None
            return _tame(lax.psum_scatter(tile, axes, scatter_dimension=dim, tiled=True, axis_index_groups=groups))

        return step

    def _gather(self, axes, may, depth):
        groups, at, tiled = self.groups(axes), self.rng.randrange(6), self.rng.random() < 0.7

        def step(tile):
            if tiled and not tile.ndim:
                return None
            dim = at % (tile.ndim + (not tiled))
            return lax.all_gather(tile, axes, axis=dim, tiled=tiled, axis_index_groups=groups)

        return step

    def _all_to_all(self, axes, may, depth):
        groups, at, to = self.groups(axes), self.rng.randrange(6), self.rng.randrange(6)
        count, tiled = self.members(axes, groups), self.rng.random() < 0.7

        def step(tile):
            dims = range(at, at + tile.ndim)
            fits = (lambda size: size % count == 0) if tiled else (lambda size: size == count)
            dim = next((i % tile.ndim for i in dims if fits(tile.shape[i % tile.ndim])), None)
            if dim is None:
                if tile.ndim and tiled:
                    tile, dim = jnp.concatenate([tile] * count, axis=0), 0
                else:
                    return None
            return lax.all_to_all(tile, axes, dim, to % tile.ndim, tiled=tiled, axis_index_groups=groups)

        return step

    def _permute(self, axes, may, depth):
        size = math.prod(self.mesh[axis] for axis in axes)
        shuffled = self.rng.sample(range(size), size)
        pairs = list(zip(range(size), shuffled))[: self.rng.randint(1, size)]
        return lambda tile: lax.ppermute(tile, axes, pairs)

    # ---- what devices compute alone

    def _local(self, axes, may, depth):
        way = self.rng.randrange(6)

        def step(tile):
            if way == 0:
                return _tame(tile + tile) if tile.dtype != bool else ~tile
            if way == 1 and tile.ndim:
                return jnp.concatenate([tile, tile], axis=0)
            if way == 2:
                return tile.T
            if way == 3 and tile.ndim:
                return _tame(jnp.cumsum(tile, axis=0)) if tile.dtype != bool else tile[::-1]
            if way == 4 and tile.ndim > 1:
                return tile.reshape(-1, tile.shape[-1])
            if way == 5 and tile.ndim and tile.dtype != bool:
                return tile.sum(axis=0)
            return tile[..., None]

        return step

    def _varied(self, axes, may, depth):
        axis = self.rng.choice(sorted(self.mesh))

        def step(tile):
            return (
                tile ^ (lax.axis_index(axis) == 1)
                if tile.dtype == bool
                else tile + lax.axis_index(axis).astype(tile.dtype)
            )

        return step

    # ---- control flow

    def _same(self, count: int, may: frozenset[str], depth: int) -> Callable:
        """Returns a function from a tile to one of the same type that runs some steps."""
        steps = self.steps(count, may, depth + 1)

        def run(tile):
            *_, made = steps([tile])
            if made.shape != tile.shape:
                made = jnp.resize(made, tile.shape) if made.size else jnp.zeros(tile.shape, made.dtype)
            return made if made.dtype == tile.dtype else _whole(made).astype(tile.dtype)

        return run

    def _told(self, may: frozenset[str]) -> tuple[str | None, frozenset[str]]:
        """Returns an axis along which devices decide differently, if any, and the axes left for collectives."""
        axis = self.rng.choice([None, *sorted(may)])
        return axis, may - {axis}

    def _scan(self, axes, may, depth):
        turns, body = self.rng.choice((0, 1, 2, 3)), self._same(self.rng.randint(1, 3), may, depth)

        def step(tile):
            def turn(held, i):
                first, second = held
                return (body(second), first), first.sum() if first.dtype != bool else first.any()

            return lax.scan(turn, (tile, tile), jnp.arange(turns))[0][0]

        return step

    def _cond(self, axes, may, depth):
        axis, left = self._told(may)
        one, other = (self._same(self.rng.randint(1, 2), left, depth) for _ in range(2))
        captures = self.rng.random() < 0.5

        def step(tile):
            which = jnp.int32(1) if axis is None else lax.axis_index(axis) % 2
            if captures:
                return lax.cond(which == 1, lambda: one(tile), lambda: other(tile))
            return lax.cond(which == 1, one, other, tile)

        return step

    def _while(self, axes, may, depth):
        axis, left = self._told(may)
        body, turns = self._same(self.rng.randint(1, 2), left, depth), self.rng.choice((1, 2))
        captures = self.rng.random() < 0.5

        def step(tile):
            limit = turns + (0 if axis is None else lax.axis_index(axis) % 2)

            def turn(held):
                i, value = held
                return i + 1, body(tile if captures else value)

            return lax.while_loop(lambda held: held[0] < limit, turn, (jnp.int32(0), tile))[1]

        return step


def _tame(tile):
    """Returns smaller whole numbers, so that sums stay whole numbers that each type has."""
    if jnp.iscomplexobj(tile):
        return lax.complex(_tame(tile.real), _tame(tile.imag))
    if jnp.issubdtype(tile.dtype, jnp.integer):
        return lax.rem(tile, jnp.array(5, tile.dtype))
    return tile - 8 * jnp.round(tile / 8)


def _whole(tile):
    """Returns numbers that every type has."""
    tile = tile.real if jnp.iscomplexobj(tile) else tile
    return (
        jnp.abs(jnp.nan_to_num(tile, nan=1, posinf=2, neginf=1)) if jnp.issubdtype(tile.dtype, jnp.floating) else tile
    )


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


def check(seed: int, say: Callable[[dict], None] = lambda row: None) -> dict:
    """Returns what happened with the program of a seed: counts, and `failures` as (kind, text)."""
    program = random_program(seed)
    network = random_network(random.Random(-seed - 1), program.size)
    outcome = {
        "seed": seed,
        "failures": [],
        "invalid": "",
        "decomposed": 0,
        "kept": 0,
        "left": 0,
        "again": 0,
        "joined": 0,
    }
    arguments = program.arguments(seed)
    try:
        lowered = _lowered(program, arguments)
    except Exception as error:  # jax does not have every combination
        outcome["invalid"] = f"{type(error).__name__}: {error}"[:200]
        return outcome
    module = lowered.compiler_ir("stablehlo")
    try:
        has_same = _reduces_the_same(module)
        options = random_options(random.Random(~seed))
        is_changed = _run_pass(module, network, outcome, options)
        outcome["failures"] += [["tile", text] for text in _too_large(module)]
        again = str(module)
        outcome["again"] = 0 if has_same else _run_pass(module, network, {}, options)
        if not outcome["again"] and not has_same and str(module) != again:
            outcome["failures"].append(["again", "the second run changes the module, and does not say so"])
        outcome["joined"] = _join(module, network)
    except Exception:
        outcome["failures"].append(["crash", traceback.format_exc()])
        return outcome
    if not is_changed and not outcome["joined"]:
        return outcome
    say({"seed": seed, "runs": True})
    stock = _outputs(_lowered(program, arguments), arguments)
    say({"seed": seed, "runs": "ours"})
    ours = _outputs(lowered, arguments)
    for number, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
        if problem := _difference(mine, theirs):
            outcome["failures"].append([problem, f"output {number} of type {mine.dtype}{list(mine.shape)}"])
    return outcome


def _lowered(program: Program, arguments: list[np.ndarray]) -> jax.stages.Lowered:
    jax.clear_caches()
    return program.function().lower(*arguments)


def _run_pass(module: ir.Module, network: Topology, outcome: dict, options: dict[str, str]) -> int:
    session = Session()
    Pipeline.parse(PASS).with_options({"topology": option_text(network), **options}).run(module, session)
    assert module.operation.verify()
    for name in ("decomposed", "kept", "left"):
        outcome[name] = session.results.statistics[PASS, name]
    reasons = [
        each.message.partition(" as it is: ")[2] for each in session.remarks if "no chain is faster" not in each.message
    ]
    outcome["reasons"] = reasons
    return outcome["decomposed"]


def _join(module: ir.Module, network: Topology) -> int:
    """Joins all collectives that can be one; returns how many are part of another one then."""
    session = Session()
    Pipeline.parse(JOINING).with_options({"topology": option_text(network), "policy": "always"}).run(module, session)
    assert module.operation.verify()
    return session.results.statistics[JOINING, "joined"]


def _reduces_the_same(module: ir.Module) -> bool:
    """Returns whether a collective is along axes on which nothing differs: then a second run knows more."""
    meshes = module_meshes(module)
    for island in ops_in(module.operation):
        if island.name != "sdy.manual_computation":
            continue
        mesh = mesh_of(sdy.TensorShardingPerValueAttr(island.attributes["out_shardings"]).shardings[0], meshes)
        found = varying_axes(island, mesh, meshes=meshes)
        for op in ops_in(island):
            factors = factors_of(mesh, groups_of(op, meshes) or ()) if op.name in OPS else None
            if factors and not {factor.axis for factor in factors} <= found.of(op.operands):
                return True
    return False


def _outputs(lowered: jax.stages.Lowered, arguments: list[np.ndarray]) -> list[np.ndarray]:
    return [as_numpy(each) for each in lowered.compile()(*arguments)]


def _difference(mine: np.ndarray, theirs: np.ndarray) -> str:
    """Returns the kind of a failure; "" for the same values. NaNs are alike."""
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return "types"
    wide = [each.astype(np.complex128) for each in (mine, theirs)]
    if not np.array_equal(*wide, equal_nan=True):
        return "values"
    signs = [np.signbit(each.real) & (each == 0) for each in wide]
    return "" if np.array_equal(*signs) else "zeros"


def _too_large(module: ir.Module) -> list[str]:
    """Returns the ops of chains with a larger result than the tile before or after the chain."""
    chains: dict[str, list[ir.Operation]] = {}
    for op in ops_in(module.operation):
        if (site := _site(op)) and op.results:
            chains.setdefault(site, []).append(op)
    found = []
    for ops in chains.values():
        made = {value for op in ops for value in op.results}
        taken = [value for op in ops for value in op.operands if value not in made and not _is_inside(value, ops)]
        given = [value for value in made if all(use.owner.operation not in ops for use in value.uses)]  # or unused
        most = max(_elements(value.type) for value in (*taken, *given))
        found += [f"{op}"[:300] for op in ops if any(_elements(each.type) > most for each in op.results)]
    return found


def _is_inside(value: ir.Value, ops: list[ir.Operation]) -> bool:
    """Returns whether a value is an argument of a region of one of the ops."""
    return isinstance(value.owner, ir.Block) and value.owner.owner.operation in ops


def _site(op: ir.Operation) -> str:
    name = name_of(op.location) or ""
    return name.split("/")[1] if name.startswith("reshard/") else ""


def _elements(kind: ir.Type) -> int:
    return math.prod(ir.RankedTensorType(kind).shape)


def main(first: int, count: int) -> None:
    warnings.simplefilter("ignore")
    say = partial(print, flush=True)
    for seed in range(first, first + count):
        say(json.dumps({"seed": seed, "begins": True}))
        say(json.dumps(check(seed, lambda row: say(json.dumps(row)))))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main(*map(int, sys.argv[1:]))
