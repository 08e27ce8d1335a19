# SPDX-License-Identifier: Apache-2.0
"""A numpy interpreter of shardings and tile programs, the second witness of a plan.

It shares no code with the typing rules. Placements follow from block arithmetic on the sharding, and collectives move
arrays between simulated devices as StableHLO specifies them. So a wrong rule, a wrong group or a wrong index leads to
wrong numbers.
"""

from __future__ import annotations

import math

import numpy as np

from ..layouts.layout import Factor
from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding
from .exchange import run_exchange
from .tile_program import (
    Gather,
    Join,
    KeepFirst,
    KeepOwn,
    Loop,
    On,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Resize,
    Rounds,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
)

Tiles = dict[int, np.ndarray]  # by device id

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def scatter(array: np.ndarray, mesh: Mesh, sharding: Sharding) -> Tiles:
    """Returns the tile of each device id, cut from a global array; padding after the end of the array is -1."""
    tiles = {}
    for position in np.ndindex(*(size for _, size in mesh.axes)):
        place = dict(zip(mesh.axis_names, position))
        cuts = []
        for size, axes in zip(array.shape, sharding.dims, strict=True):
            block, blocks = 0, 1
            for digit, width in _along(mesh, place, axes):
                block, blocks = block * width + digit, blocks * width
            width = -(-size // blocks)
            cuts.append((block * width, width))
        linear = int(np.ravel_multi_index(position, [size for _, size in mesh.axes])) if mesh.axes else 0
        held = array[tuple(slice(start, start + width) for start, width in cuts)]
        missing = [(0, width - size) for (_, width), size in zip(cuts, held.shape)]
        tiles[mesh.device_at(linear)] = (
            np.pad(held, missing, constant_values=-1) if any(any(each) for each in missing) else held
        )
    return tiles


def _valid(shape: tuple[int, ...], mesh: Mesh, sharding: Sharding) -> Tiles:
    """Returns for each device a mask of the entries of its tile that are elements of the array."""
    return {device: tile > 0 for device, tile in scatter(np.ones(shape, np.int64), mesh, sharding).items()}


def _along(mesh: Mesh, place: dict[str, int], axes: tuple[AxisRef, ...]) -> list[tuple[int, int]]:
    """Returns (coordinate, size) of a place along each of the axes."""
    found = []
    for axis in axes:
        pre, width = axis.resolve(mesh)
        found.append((int(place[axis.name]) // (mesh.axis_size(axis.name) // (pre * width)) % width, width))
    return found


def scatter_sums(partial_sums: np.ndarray, mesh: Mesh, sharding: Sharding) -> Tiles:
    """Returns the tile of each device id, cut from global arrays whose sum is the array that is sharded.

    Args:
      partial_sums: an array with one leading dimension per unreduced axis, then the dimensions of the array.
    """
    tiles = {}
    for along in np.ndindex(*(axis.resolve(mesh)[1] for axis in sharding.unreduced)):
        for device, tile in scatter(partial_sums[along], mesh, sharding).items():
            if along == _sum_at(mesh, device, sharding):
                tiles[device] = tile
    return tiles


def _sum_at(mesh: Mesh, device: int, sharding: Sharding) -> tuple[int, ...]:
    """Returns the coordinates of a device along the unreduced axes, which number its partial sum."""
    return tuple(digit for digit, _ in _along(mesh, _place(mesh, device), sharding.unreduced))


def run(program: TileProgram, tiles: Tiles) -> Tiles:
    """Returns every device's tile after the program."""
    mesh = program.mesh
    for operation in program.operations:
        if isinstance(operation, On):
            mesh = operation.mesh
        else:
            tiles = _run_operation(mesh, operation, tiles, program.reduction)
    return tiles


def check(
    program: TileProgram, shape: tuple[int, ...], source: Sharding, target: Sharding, target_mesh: Mesh | None = None
) -> None:
    """Raises: AssertionError if the program does not turn the source's placement into the target's, element by element.

    Args:
      target_mesh: the mesh of `target`; None means the mesh of the program.
    """
    goal = target_mesh or program.mesh
    if source.unreduced or target.unreduced:
        return _check_sums(program, shape, source, target, goal)
    indices = np.arange(math.prod(shape)).reshape(shape)
    got = run(program, _on_all(program, goal, scatter(indices, program.mesh, source)))
    for device, expected in scatter(indices, goal, target).items():
        assert got[device].shape == expected.shape, f"device {device}: tile {got[device].shape}, not {expected.shape}"
        is_right = (got[device] == expected) | (expected < 0)
        assert is_right.all(), f"device {device} holds other elements than {target} puts there"


def _on_all(program: TileProgram, goal: Mesh, tiles: Tiles) -> Tiles:
    """Returns the tiles, with an empty tile added for each device that only the other mesh has."""
    devices = range(max(program.mesh.devices, goal.devices))
    like = next(iter(tiles.values()))
    return {device: tiles.get(device, np.full_like(like, -1)) for device in devices}


def _check_sums(program: TileProgram, shape: tuple[int, ...], source: Sharding, target: Sharding, goal: Mesh) -> None:
    """Checks a program on random partial sums of integers, which have one sum in every order of addition.

    The partial sums after the program may be any that make the same array.
    """
    mesh, reduce = program.mesh, UFUNCS[program.reduction].reduce
    sizes = tuple(axis.resolve(mesh)[1] for axis in source.unreduced)
    partial_sums = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (*sizes, *shape))
    array = reduce(partial_sums.reshape(math.prod(sizes), *shape), axis=0)
    got = run(program, _on_all(program, goal, scatter_sums(partial_sums, mesh, source)))
    expected, valid = scatter(array, goal, target), _valid(shape, goal, target)
    holders: dict[tuple, list[int]] = {}  # by block, and by (block, partial sum)
    for device, right in sorted(expected.items()):
        tile = got[device]
        assert tile.shape == right.shape, f"device {device}: tile {tile.shape}, not {right.shape}"
        block = tuple(_along(goal, _place(goal, device), tuple(axis for axes in target.dims for axis in axes)))
        replicas = holders.setdefault((block, _sum_at(goal, device, target)), [])
        if not replicas:
            holders.setdefault((block,), []).append(device)
        replicas.append(device)
        is_same = (tile == got[replicas[0]]) | ~valid[device]
        assert is_same.all(), f"device {device} holds another partial sum than device {replicas[0]}"
    for devices in (each for key, each in holders.items() if len(key) == 1):
        total = reduce(np.stack([got[device] for device in devices]), axis=0)
        is_right = (total == expected[devices[0]]) | ~valid[devices[0]]
        assert is_right.all(), f"the tiles of {devices} make other elements than {target} puts there"


def neutral(reduction: str, dtype: np.dtype):
    """Returns the neutral element of a reduction for a dtype of integers or floats."""
    if reduction in ("min", "max"):
        if dtype.kind == "f":
            return np.inf if reduction == "min" else -np.inf
        return np.iinfo(dtype).max if reduction == "min" else np.iinfo(dtype).min
    return {"sum": 0, "prod": 1, "or": 0, "and": -1}[reduction]


def _run_operation(mesh: Mesh, operation: Operation, tiles: Tiles, reduction: str) -> Tiles:
    match operation:
        case Rounds(exchange):
            return run_exchange(exchange, tiles)
        case Send(pairs):
            assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == len(tiles)
            return {b: tiles[a] for a, b in pairs}
        case Loop():
            return _run_loop(operation, tiles)
        case Gather() | Swap() | Reduce() | ReduceOwn():
            return {device: _from_group(mesh, device, operation, tiles, reduction) for device in tiles}
    return {device: _on_own_tile(mesh, device, operation, tile, reduction) for device, tile in tiles.items()}


def _from_group(
    mesh: Mesh, device: int, operation: Gather | Swap | Reduce | ReduceOwn, tiles: Tiles, reduction: str
) -> np.ndarray:
    """Returns a device's tile after an operation that reads the tiles of its group."""
    peers = _peers(mesh, device, operation.factors)
    match operation:
        case Gather(axis=axis):
            return np.concatenate([tiles[peer] for peer in peers], axis)
        case Reduce():
            return UFUNCS[reduction].reduce([tiles[peer] for peer in peers])
    axis = operation.axis
    mine = peers.index(device)
    parts = [np.split(tiles[peer], len(peers), axis)[mine] for peer in peers]
    return np.concatenate(parts, axis) if isinstance(operation, Swap) else UFUNCS[reduction].reduce(parts)


def _on_own_tile(mesh: Mesh, device: int, operation: Operation, tile: np.ndarray, reduction: str) -> np.ndarray:
    """Returns a device's tile after an operation that reads only this tile."""
    match operation:
        case Reshape(shape):
            return tile.reshape(shape)
        case Resize(shape):
            return _resized(tile, shape)
        case Transpose(axes):
            return np.ascontiguousarray(tile.transpose(axes))
        case Join(axis):
            return np.concatenate(list(np.moveaxis(tile, axis, 0)), -1)
        case TakeOwn(picks):
            return _take_own(mesh, device, tile, picks)
        case KeepOwn(picks):
            for axis, factor in picks:
                tile = np.split(tile, factor.size, axis)[_digit(mesh, _place(mesh, device), factor)]
            return tile
        case PutOwn(factors):
            return _put_own(mesh, device, tile, factors, reduction)
        case KeepFirst(factors):
            return _keep_first(mesh, device, tile, factors, reduction)
    raise TypeError(operation)


def _run_loop(loop: Loop, tiles: Tiles) -> Tiles:
    parts = {device: np.split(tile, loop.count, axis=loop.taken) for device, tile in tiles.items()}
    results = {device: np.empty(loop.out_shape, tile.dtype) for device, tile in tiles.items()}
    places = {device: np.split(result, loop.count, axis=loop.put) for device, result in results.items()}  # views
    for i in range(loop.count):
        entries = {device: part[i].reshape(loop.body.in_shape) for device, part in parts.items()}
        for device, entry in run(loop.body, entries).items():
            places[device][i][...] = entry.reshape(places[device][i].shape)
    return results


def _resized(tile: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    kept = tile[tuple(map(slice, shape))]
    return np.pad(kept, [(0, new - old) for new, old in zip(shape, kept.shape, strict=True)])


def _place(mesh: Mesh, device: int) -> dict[str, int]:
    linear = device if mesh.device_ids is None else mesh.device_ids.index(device)
    return dict(zip(mesh.axis_names, map(int, np.unravel_index(linear, [size for _, size in mesh.axes]))))


def _digit(mesh: Mesh, place: dict[str, int], factor: Factor) -> int:
    return place[factor.axis] // (mesh.axis_size(factor.axis) // (factor.pre * factor.size)) % factor.size


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


def _peers(mesh: Mesh, device: int, factors: tuple[Factor, ...]) -> list[int]:
    """Returns the devices that differ from `device` only along `factors`, in the order of those coordinates."""
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
