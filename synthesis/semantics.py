# SPDX-License-Identifier: Apache-2.0
"""A numpy interpreter of shardings and tile programs, the second witness of a plan.

It shares no code with the typing rules: placements are computed from block arithmetic on the sharding, and collectives
by moving arrays between simulated devices as the operations of StableHLO are specified, so that a wrong rule, a wrong
group or a wrong index shows as wrong numbers.
"""

from __future__ import annotations

import math

import numpy as np

from .exchange import run_exchange
from .layout import Factor
from .mesh import Mesh
from .sharding import Sharding
from .tile_program import Gather, Operation, Reshape, Rounds, Send, Swap, TakeOwn, TileProgram, Transpose


def scatter(array: np.ndarray, mesh: Mesh, sharding: Sharding) -> dict[int, np.ndarray]:
    """Returns the tile of each device id, cut from a global array whose dimensions divide."""
    tiles = {}
    for position in np.ndindex(*(size for _, size in mesh.axes)):
        place = dict(zip(mesh.axis_names, position))
        cuts = []
        for size, axes in zip(array.shape, sharding.dims, strict=True):
            block, blocks = 0, 1
            for axis in axes:
                pre, width = axis.resolve(mesh)
                digit = place[axis.name] // (mesh.axis_size(axis.name) // (pre * width)) % width
                block, blocks = block * width + digit, blocks * width
            assert size % blocks == 0, f"{size} does not divide into {blocks} blocks"
            cuts.append(slice(block * size // blocks, (block + 1) * size // blocks))
        linear = int(np.ravel_multi_index(position, [size for _, size in mesh.axes])) if mesh.axes else 0
        tiles[mesh.device_at(linear)] = array[tuple(cuts)]
    return tiles


def run(program: TileProgram, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Returns every device's tile after the program."""
    for operation in program.operations:
        tiles = _run_operation(program.mesh, operation, tiles)
    return tiles


def check(program: TileProgram, shape: tuple[int, ...], source: Sharding, target: Sharding) -> None:
    """Raises: AssertionError if the program does not turn the source's placement into the target's, element by element."""
    indices = np.arange(math.prod(shape)).reshape(shape)
    got = run(program, scatter(indices, program.mesh, source))
    for device, expected in scatter(indices, program.mesh, target).items():
        assert got[device].shape == expected.shape, f"device {device}: tile {got[device].shape}, not {expected.shape}"
        assert (got[device] == expected).all(), f"device {device} holds other elements than {target} puts there"


def _run_operation(mesh: Mesh, operation: Operation, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
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
        case Send(pairs):
            assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == len(tiles)
            return {b: tiles[a] for a, b in pairs}
    raise TypeError(operation)


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
