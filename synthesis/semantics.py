# SPDX-License-Identifier: Apache-2.0
"""A numpy interpreter of shardings and tile programs, the second witness of a plan.

It shares no code with the typing rules: placements are computed from block arithmetic on the sharding, and collectives
by moving arrays between simulated devices as the operations of StableHLO are specified, so that a wrong rule, a wrong
group or a wrong index shows as wrong numbers.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import Blocks, cut
from .exchange import run_exchange
from .layout import Factor
from .mesh import Mesh
from .sharding import AxisRef, Sharding
from .tile_program import (
    Gather,
    KeepFirst,
    Loop,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Rounds,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
)

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def scatter(array: np.ndarray, mesh: Mesh, sharding: Sharding) -> dict[int, np.ndarray]:
    """Returns the tile of each device id, cut from a global array whose dimensions divide."""
    tiles = {}
    for position in np.ndindex(*(size for _, size in mesh.axes)):
        place = dict(zip(mesh.axis_names, position))
        cuts = []
        for size, axes in zip(array.shape, sharding.dims, strict=True):
            block, blocks = 0, 1
            for digit, width in _along(mesh, place, axes):
                block, blocks = block * width + digit, blocks * width
            assert size % blocks == 0, f"{size} does not divide into {blocks} blocks"
            cuts.append(slice(block * size // blocks, (block + 1) * size // blocks))
        linear = int(np.ravel_multi_index(position, [size for _, size in mesh.axes])) if mesh.axes else 0
        tiles[mesh.device_at(linear)] = array[tuple(cuts)]
    return tiles


def _along(mesh: Mesh, place: dict[str, int], axes: tuple[AxisRef, ...]) -> list[tuple[int, int]]:
    """Returns (coordinate, size) of a place along each of the axes."""
    found = []
    for axis in axes:
        pre, width = axis.resolve(mesh)
        found.append((int(place[axis.name]) // (mesh.axis_size(axis.name) // (pre * width)) % width, width))
    return found


def scatter_sums(partial_sums: np.ndarray, mesh: Mesh, sharding: Sharding) -> dict[int, np.ndarray]:
    """Returns the tile of each device id, cut from global arrays whose sum is the array that is sharded.

    Args:
      partial_sums: a leading dimension for each of the unreduced axes, then those of the array.
    """
    tiles = {}
    for along in np.ndindex(*(axis.resolve(mesh)[1] for axis in sharding.unreduced)):
        for device, tile in scatter(partial_sums[along], mesh, sharding).items():
            if along == _sum_at(mesh, device, sharding):
                tiles[device] = tile
    return tiles


def _sum_at(mesh: Mesh, device: int, sharding: Sharding) -> tuple[int, ...]:
    """Returns which partial sum a device holds: its coordinates along the unreduced axes."""
    return tuple(digit for digit, _ in _along(mesh, _place(mesh, device), sharding.unreduced))


def run(program: TileProgram, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Returns every device's tile after the program."""
    for operation in program.operations:
        tiles = _run_operation(program.mesh, operation, tiles, program.reduction)
    return tiles


def check(program: TileProgram, shape: tuple[int, ...], source: Sharding, target: Sharding) -> None:
    """Raises: AssertionError if the program does not turn the source's placement into the target's, element by element."""
    if source.unreduced or target.unreduced:
        return _check_sums(program, shape, source, target)
    indices = np.arange(math.prod(shape)).reshape(shape)
    got = run(program, scatter(indices, program.mesh, source))
    for device, expected in scatter(indices, program.mesh, target).items():
        assert got[device].shape == expected.shape, f"device {device}: tile {got[device].shape}, not {expected.shape}"
        assert (got[device] == expected).all(), f"device {device} holds other elements than {target} puts there"


def check_blocks(program: TileProgram, source: Blocks, target: Blocks) -> None:
    """Checks as `check` does where tiles are padded: what is behind a device's box may be anything.

    Raises: AssertionError if an element of a device's target box is not the one that belongs there.
    """
    indices = np.arange(1, 1 + math.prod(source.shape)).reshape(source.shape)
    got = run(program, cut(indices, source, padding=-1))
    for device, expected in cut(indices, target).items():
        assert got[device].shape == expected.shape, f"device {device}: tile {got[device].shape}, not {expected.shape}"
        assert (got[device] == expected)[expected > 0].all(), f"device {device} holds other elements than its box"


def _check_sums(program: TileProgram, shape: tuple[int, ...], source: Sharding, target: Sharding) -> None:
    """Runs random partial sums of integers, which add up in any order alike; what they are afterwards is free."""
    mesh, reduce = program.mesh, UFUNCS[program.reduction].reduce
    sizes = tuple(axis.resolve(mesh)[1] for axis in source.unreduced)
    partial_sums = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (*sizes, *shape))
    array = reduce(partial_sums.reshape(-1, *shape), axis=0)
    got = run(program, scatter_sums(partial_sums, mesh, source))
    expected = scatter(array, mesh, target)
    holders: dict[tuple, list[int]] = {}  # by block, and by block and partial sum
    for device, tile in sorted(got.items()):
        assert tile.shape == expected[device].shape, f"device {device}: tile {tile.shape}, not {expected[device].shape}"
        block = tuple(_along(mesh, _place(mesh, device), tuple(axis for axes in target.dims for axis in axes)))
        replicas = holders.setdefault((block, _sum_at(mesh, device, target)), [])
        if not replicas:
            holders.setdefault((block,), []).append(device)
        replicas.append(device)
        assert (tile == got[replicas[0]]).all(), f"device {device} holds another partial sum than device {replicas[0]}"
    for devices in (each for key, each in holders.items() if len(key) == 1):
        total = reduce(np.stack([got[device] for device in devices]), axis=0)
        assert (total == expected[devices[0]]).all(), f"the tiles of {devices} make other elements than {target} puts there"


def neutral(reduction: str, dtype: np.dtype):
    """Returns the value that a reduction leaves out of account, for integers and floats."""
    if reduction in ("min", "max"):
        if dtype.kind == "f":
            return np.inf if reduction == "min" else -np.inf
        return np.iinfo(dtype).max if reduction == "min" else np.iinfo(dtype).min
    return {"sum": 0, "prod": 1, "or": 0, "and": -1}[reduction]


def _run_operation(mesh: Mesh, operation: Operation, tiles: dict[int, np.ndarray], reduction: str) -> dict[int, np.ndarray]:
    match operation:
        case Reshape(shape):
            return {device: tile.reshape(shape) for device, tile in tiles.items()}
        case Transpose(axes):
            return {device: np.ascontiguousarray(tile.transpose(axes)) for device, tile in tiles.items()}
        case TakeOwn(picks):
            return {device: _take_own(mesh, device, tile, picks) for device, tile in tiles.items()}
        case Gather(factors):
            return {d: np.concatenate([tiles[peer] for peer in _peers(mesh, d, factors)]) for d in tiles}
        case Swap(factors):
            return {d: _swapped(mesh, d, factors, tiles) for d in tiles}
        case Rounds(exchange):
            return run_exchange(exchange, tiles)
        case Reduce(factors):
            return {d: UFUNCS[reduction].reduce([tiles[peer] for peer in _peers(mesh, d, factors)]) for d in tiles}
        case ReduceOwn(factors):
            return {d: _reduced_own(mesh, d, factors, tiles, reduction) for d in tiles}
        case PutOwn(factors):
            return {device: _put_own(mesh, device, tile, factors, reduction) for device, tile in tiles.items()}
        case KeepFirst(factors):
            return {device: _keep_first(mesh, device, tile, factors, reduction) for device, tile in tiles.items()}
        case Send(pairs):
            assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == len(tiles)
            return {b: tiles[a] for a, b in pairs}
        case Loop():
            return _run_loop(operation, tiles)
    raise TypeError(operation)


def _run_loop(loop: Loop, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    parts = {device: np.split(tile, loop.count, axis=loop.taken) for device, tile in tiles.items()}
    results = {device: np.empty(loop.out_shape, tile.dtype) for device, tile in tiles.items()}
    places = {device: np.split(result, loop.count, axis=loop.put) for device, result in results.items()}  # views
    for i in range(loop.count):
        entries = {device: part[i].reshape(loop.body.in_shape) for device, part in parts.items()}
        for device, entry in run(loop.body, entries).items():
            places[device][i][...] = entry.reshape(places[device][i].shape)
    return results


def _place(mesh: Mesh, device: int) -> dict[str, int]:
    linear = device if mesh.device_ids is None else mesh.device_ids.index(device)
    return dict(zip(mesh.axis_names, np.unravel_index(linear, [size for _, size in mesh.axes])))


def _digit(mesh: Mesh, place: dict[str, int], factor: Factor) -> int:
    return int(place[factor.axis]) // (mesh.axis_size(factor.axis) // (factor.pre * factor.size)) % factor.size


def _take_own(mesh: Mesh, device: int, tile: np.ndarray, picks) -> np.ndarray:
    place = _place(mesh, device)
    index: list = [slice(None)] * tile.ndim
    for axis, factor in picks:
        assert tile.shape[axis] == factor.size
        index[axis] = _digit(mesh, place, factor)
    return tile[tuple(index)]


def _own(mesh: Mesh, device: int, factors: tuple[Factor, ...]) -> tuple[int, ...]:
    place = _place(mesh, device)
    return tuple(_digit(mesh, place, factor) for factor in factors)


def _keep_first(mesh: Mesh, device: int, tile: np.ndarray, factors: tuple[Factor, ...], reduction: str) -> np.ndarray:
    return np.full_like(tile, neutral(reduction, tile.dtype)) if any(_own(mesh, device, factors)) else tile


def _put_own(mesh: Mesh, device: int, tile: np.ndarray, factors: tuple[Factor, ...], reduction: str) -> np.ndarray:
    wide = np.full((*(factor.size for factor in factors), *tile.shape), neutral(reduction, tile.dtype), tile.dtype)
    wide[_own(mesh, device, factors)] = tile
    return wide


def _reduced_own(mesh: Mesh, device: int, factors: tuple[Factor, ...], tiles, reduction: str) -> np.ndarray:
    peers = _peers(mesh, device, factors)
    assert tiles[device].shape[0] == len(peers)
    mine = peers.index(device)
    return UFUNCS[reduction].reduce([tiles[peer][mine : mine + 1] for peer in peers])


def _peers(mesh: Mesh, device: int, factors: tuple[Factor, ...]) -> list[int]:
    """Returns the devices that differ from `device` along `factors` alone, in the order of those coordinates."""
    mine = _place(mesh, device)
    found = {}
    for position in np.ndindex(*(size for _, size in mesh.axes)):
        place = dict(zip(mesh.axis_names, position))
        linear = int(np.ravel_multi_index(position, [size for _, size in mesh.axes]))
        if _rest(mesh, place, factors) == _rest(mesh, mine, factors):
            found[tuple(_digit(mesh, place, factor) for factor in factors)] = mesh.device_at(linear)
    return [found[key] for key in sorted(found)]


def _rest(mesh: Mesh, place: dict[str, int], factors: tuple[Factor, ...]) -> tuple[int, ...]:
    """Returns a place with its coordinates along `factors` set to zero."""
    rest = dict(place)
    for factor in factors:
        minor = mesh.axis_size(factor.axis) // (factor.pre * factor.size)
        rest[factor.axis] = rest[factor.axis] - _digit(mesh, place, factor) * minor
    return tuple(int(value) for value in rest.values())


def _swapped(mesh: Mesh, device: int, factors, tiles) -> np.ndarray:
    peers = _peers(mesh, device, factors)
    assert tiles[device].shape[0] == len(peers)
    mine = peers.index(device)
    return np.stack([tiles[peer][mine] for peer in peers])
