# SPDX-License-Identifier: Apache-2.0
"""Meshes of named axes for GSPMD's shardings: on such a mesh, a list of numbered devices becomes a `Sharding`.

A device's position on a row-major mesh is a mixed-radix number, and a mesh axis or sub-axis is a digit of it. A mesh
explains a tile assignment if along each tile dimension the position is a run of such digits:

    >>> from .gspmd_shardings import parse
    >>> tiled = parse("{devices=[4,2]<=[2,4]T(1,0)}")
    >>> found = synthesize([tiled, parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")])
    >>> print(found.meshes[0], found.translation(tiled).sharding)
    <["axis_0"=2, "axis_1"=4]> [{"axis_1"}, {"axis_0"}]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..platform.typed import present
from .gspmd_shardings import MANUAL, REPLICATED, UNREDUCED, InexpressibleError, Named, Tiled

_MAX_MESHES = 8  # a module that needs more meshes is left alone


@dataclass(frozen=True, slots=True)
class Translation:
    """A sharding in Shardy's terms: its mesh (an index of `Synthesis.meshes`), and the axes that are manual."""

    mesh: int
    sharding: Sharding
    manual: tuple[AxisRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Synthesis:
    """Meshes for the shardings of a module, and each sharding on its mesh."""

    meshes: tuple[Mesh, ...]
    _translations: dict[Tiled | Named, Translation]

    def translation(self, leaf: Tiled | Named) -> Translation:
        """Returns the translation of one of the shardings; KeyError for one that was not given to `synthesize`."""
        return self._translations[leaf]


def synthesize(leaves: Sequence[Tiled | Named], axis_prefix: str = "axis_") -> Synthesis:
    """Returns meshes on which every sharding is expressible.

    A greedy cover keeps the number of meshes small. The meshes of V3 shardings come first, in the order of the
    shardings. Then comes the device order that explains most of the other shardings, and so on. A mesh has an axis for
    each digit on which its shardings agree. If they cut an axis in different ways, and neither cut refines the other,
    sub-axes express the cuts.

    Raises: InexpressibleError if the shardings are for different numbers of devices, or need too many meshes.
    """
    counts = dict.fromkeys(leaf.mesh.size if isinstance(leaf, Named) else math.prod(leaf.tiles) for leaf in leaves)
    if len(counts) > 1:
        raise InexpressibleError(f"shardings for {' and '.join(map(str, counts))} devices in one module")
    meshes = list(dict.fromkeys(leaf.mesh for leaf in leaves if isinstance(leaf, Named)))
    translations: dict[Tiled | Named, Translation] = {
        leaf: Translation(meshes.index(leaf.mesh), leaf.sharding, leaf.manual)
        for leaf in leaves
        if isinstance(leaf, Named) and leaf.sharding is not None
    }
    left = {leaf: leaf.assignment() for leaf in leaves if isinstance(leaf, Tiled)}
    for index, mesh in enumerate(meshes):
        found = _on_named_mesh(left, mesh, index)
        translations |= found
        left = {leaf: devices for leaf, devices in left.items() if leaf not in found}
    while left:
        if len(meshes) >= _MAX_MESHES:
            raise InexpressibleError(
                f"shardings with more than {_MAX_MESHES} orders of the devices that no mesh explains"
            )
        mesh, found = _on_new_mesh(left, len(meshes), axis_prefix)
        meshes.append(mesh)
        translations |= found
        left = {leaf: devices for leaf, devices in left.items() if leaf not in found}
    return Synthesis(tuple(meshes), translations)


def _on_named_mesh(assignments: Mapping[Tiled, np.ndarray], mesh: Mesh, index: int) -> dict[Tiled, Translation]:
    """Returns the translations of the shardings that a mesh explains; `index` is the number of the mesh."""
    position = _positions(np.array([mesh.device_at(place) for place in range(mesh.size)]))
    translations = {}
    for leaf, devices in assignments.items():
        digits = _digits(_canonical(position[devices], leaf))
        found = digits and _on_mesh(leaf, digits, mesh, index)
        if found:
            translations[leaf] = found
    return translations


def _on_new_mesh(
    assignments: Mapping[Tiled, np.ndarray], index: int, axis_prefix: str
) -> tuple[Mesh, dict[Tiled, Translation]]:
    """Returns a mesh that explains as many of the shardings as possible, and their translations."""
    order, explained = _best_order(assignments)
    members = {leaf: digits for leaf, digits in zip(assignments, explained, strict=True) if digits is not None}
    mesh = _refined_mesh(list(members.values()), order, axis_prefix)
    translations = {}
    for leaf, digits in members.items():
        translations[leaf] = _on_mesh(leaf, digits, mesh, index)
        assert translations[leaf] is not None, f"{mesh} was made for {leaf}"
    return mesh, translations


_Digits = tuple[
    tuple[tuple[int, int], ...], ...
]  # for each tile dimension (stride of the position, size), major to minor


def _canonical(positions: np.ndarray, leaf: Tiled) -> np.ndarray:
    """Returns the positions, sorted within each set of devices that hold the same tile, whose order has no meaning."""
    same = [leaf.rank + i for i, group in enumerate(leaf.groups) if group == REPLICATED]
    if not same:
        return positions
    axes = [*(axis for axis in range(positions.ndim) if axis not in same), *same]
    moved = positions.transpose(axes)
    kept = moved.shape[: positions.ndim - len(same)]
    moved = np.sort(moved.reshape(*kept, -1), axis=-1).reshape(moved.shape)
    return moved.transpose(np.argsort(axes))


def _positions(order: np.ndarray) -> np.ndarray:
    """Returns the position of each device in an order of devices."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return position


def _digits(positions: np.ndarray) -> _Digits | None:
    """Returns the digits of the position along each tile dimension; None if it is not a mixed-radix number.

    Example:
      >>> _digits(np.arange(8).reshape(2, 4).T.reshape(4, 2))
      (((1, 4),), ((4, 2),))
    """
    if positions.flat[0] != 0:
        return None
    dims, total = [], np.zeros((), np.int64)
    for dim in range(positions.ndim):
        line = positions[tuple(slice(None) if axis == dim else 0 for axis in range(positions.ndim))]
        digits = _digits_of_line(line)
        if digits is None:
            return None
        dims.append(digits)
        total = np.add.outer(total, line)
    if not np.array_equal(total, positions):
        return None
    reached = 1
    for stride, size in sorted(digit for digits in dims for digit in digits):
        if stride != reached:
            return None
        reached *= size
    return tuple(dims)


def _digits_of_line(line: np.ndarray) -> tuple[tuple[int, int], ...] | None:
    """Returns the digits along a line of positions, major to minor; None if the line does not count in digits."""
    digits: list[tuple[int, int]] = []
    while len(line) > 1:
        stride = int(line[1])
        straight = line == stride * np.arange(len(line))
        size = len(line) if straight.all() else int(np.argmin(straight))
        if stride < 1 or len(line) % size:
            return None
        blocks = line.reshape(-1, size)
        if not np.array_equal(blocks, blocks[:, :1] + stride * np.arange(size)):
            return None
        digits.append((stride, size))
        line = blocks[:, 0]
    return tuple(digits[::-1])


def _best_order(assignments: Mapping[Tiled, np.ndarray]) -> tuple[np.ndarray, list[_Digits | None]]:
    """Returns the order of devices that explains most shardings, and the digits of each sharding on it.

    The candidates are the ids in ascending order, each assignment in row-major order, and the order by the tiles of
    several assignments together. The latter finds a mesh even if each sharding on it is partly replicated. If
    candidates are equally good, the first one is returned.
    """

    def explained_by(order: np.ndarray) -> list[_Digits | None]:
        position = _positions(order)
        return [_digits(_canonical(position[each], leaf)) for leaf, each in assignments.items()]

    identity = np.arange(next(iter(assignments.values())).size)
    best = identity, explained_by(identity)
    if None not in best[1]:
        return best
    unexplained = [each for each, digits in zip(assignments.values(), best[1], strict=True) if digits is None]
    flat = {each.tobytes(): each.reshape(-1) for each in assignments.values()}
    groups = unexplained, list(assignments.values())
    together = [np.lexsort([identity, *(_tile_of_device(each) for each in some[::-1])]) for some in groups]
    for order in (*flat.values(), *together):
        found = explained_by(order)
        if found.count(None) < best[1].count(None):
            best = order, found
    return best


def _tile_of_device(assignment: np.ndarray) -> np.ndarray:
    """Returns for each device the number of its line along the last dimension.

    This is the number of its tile if the last dimension replicates.
    """
    lines = assignment.reshape(-1, assignment.shape[-1])
    tile = np.empty(assignment.size, np.int64)
    tile[lines] = np.arange(len(lines))[:, None]
    return tile


def _refined_mesh(explained: Sequence[_Digits], order: np.ndarray, prefix: str) -> Mesh:
    """Returns the mesh whose axes end where digits end.

    If two ends do not divide each other, no axis ends there; sub-axes express these digits.
    """
    devices = len(order)
    cuts = {1, devices}
    for digits in explained:
        cuts |= {cut for dim in digits for stride, size in dim for cut in (stride, stride * size)}
    agreed = sorted(cut for cut in cuts if all(cut % other == 0 or other % cut == 0 for other in cuts))
    sizes = [high // low for low, high in zip(agreed, agreed[1:])][::-1]
    axes = tuple((f"{prefix}{number}", size) for number, size in enumerate(sizes))
    return Mesh(axes, tuple(order.tolist()))


def _on_mesh(leaf: Tiled, digits: _Digits, mesh: Mesh, index: int) -> Translation | None:
    """Returns the sharding on a mesh; None if its digits are not axes or sub-axes of the mesh."""
    axes: list[tuple[AxisRef, ...]] = []
    for dim in digits:
        found = [_axes_of_digit(digit, mesh) for digit in dim]
        if None in found:
            return None
        axes.append(_merged([axis for each in found for axis in present(each)], mesh))
    grouped: dict[str, tuple[AxisRef, ...]] = {kind: () for kind in (REPLICATED, MANUAL, UNREDUCED)}
    for kind, of_group in zip(leaf.groups, axes[leaf.rank :], strict=True):
        grouped[kind] += of_group
    unreduced = tuple(
        sorted(grouped[UNREDUCED], key=lambda axis: (mesh.axis_names.index(axis.name), axis.pre_size or 1))
    )
    return Translation(index, Sharding(tuple(axes[: leaf.rank]), unreduced=unreduced), grouped[MANUAL])


def _axes_of_digit(digit: tuple[int, int], mesh: Mesh) -> list[AxisRef] | None:
    """Returns the axes and sub-axes that make up one digit (stride, size), major to minor; None if none do."""
    low, high = digit[0], digit[0] * digit[1]
    axes, end = [], mesh.size
    for name, size in mesh.axes:
        start = end // size
        bottom, top = max(low, start), min(high, end)
        if bottom < top:
            if bottom % min(low, start) or max(high, end) % top or top % bottom or end % top:
                return None
            whole = (bottom, top) == (start, end)
            axes.append(AxisRef(name) if whole else AxisRef(name, end // top, top // bottom))
        end = start
    return axes


def _merged(axes: list[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Returns the axes with neighbouring pieces of one axis merged, as Shardy requires."""
    merged: list[AxisRef] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        if merged and merged[-1].name == axis.name:
            before, so_far = merged[-1].resolve(mesh)
            if before * so_far == pre:
                whole = (before, so_far * size) == (1, mesh.axis_size(axis.name))
                merged[-1] = AxisRef(axis.name) if whole else AxisRef(axis.name, before, so_far * size)
                continue
        merged.append(axis)
    return tuple(merged)
