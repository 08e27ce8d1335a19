# SPDX-License-Identifier: Apache-2.0
"""Rule R3: the traffic that every method needs, whatever its steps.

A device ends with its target tile. The part of it that is not in the source tile has to arrive from another device. So
the busiest device receives at least max over devices of |target tile \\ source tile|. No chain can receive less, and
most plans receive exactly that. Where tiles are partial sums, each element needs a known number of transfers, and the
busiest device receives at least its share of these. `cost_to_go.py` has the counts with their proofs.
"""

from __future__ import annotations

import math

import numpy as np

from ..layouts.blocks import Blocks, both_ends
from ..layouts.layout import Layout, coordinates, unreduced_factors, whole_factors
from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding

MOST_MEETINGS = 1 << 22  # pairs of boxes that are compared one by one; for more pairs the bound is weaker


def received_elements_bound(
    mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding, target_mesh: Mesh | None = None
) -> int:
    """Returns the least number of elements that the busiest device must receive.

    Dimensions need not divide into their shards: tiles have the size of ceil division, and padding does not count.

    Args:
      shape: the global shape, in elements.
      target_mesh: the mesh of `target`; None means `mesh`.

    Example:
      >>> mesh = Mesh.parse("x=4,y=2")
      >>> source, target = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
      >>> received_elements_bound(mesh, (16, 16, 16), source, target)
      448
    """
    if target_mesh is not None:
        return _between_meshes(mesh, shape, source, target, target_mesh)
    needed, present = _needed_and_present(mesh, shape, source, target)
    if source.unreduced or target.unreduced:
        return _with_sums(mesh, math.prod(shape), source, target, needed, present)
    return int((needed - present).max())


def lacking_elements(mesh: Mesh, before: Layout, after: Layout) -> int | None:
    """Returns max over devices of |tile of `after` \\ tile of `before`|, for layouts in digits, without partial sums.

    Returns None if there are too many devices and digits to look at one by one.

    Example:
      >>> from ..layouts.layout import layout_of
      >>> mesh, shape = Mesh.parse("x=4,y=2"), (8, 8)
      >>> ends = (layout_of(mesh, shape, Sharding.parse(text)) for text in ('[{"x"}, {}]', '[{}, {"x"}]'))
      >>> lacking_elements(mesh, *ends)
      12
    """
    common = np.ones(mesh.size, dtype=np.int64)
    for dim, size in enumerate(before.shape):
        owners = [(factor, slot) for factor, slot in (*before.owners, *after.owners) if slot.dim == dim]
        digits = math.lcm(*(slot.end for _, slot in owners))
        if digits * mesh.size > MOST_MEETINGS:
            return None
        values, held = np.arange(digits), np.ones((mesh.size, digits), bool)
        for factor, slot in owners:
            held &= values // (digits // slot.end) % slot.size == coordinates(mesh, factor)[:, None]
        common *= held.sum(axis=1) * (size // digits)
    return after.tile_elements - int(common.min())


def _between_meshes(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding, target_mesh: Mesh) -> int:
    """Returns the bound between two meshes.

    If the source has partial sums, a device lacks those of all other devices, so it receives each element of its tile
    at least once.
    """
    if target.unreduced:
        return 0
    held, wanted = both_ends(mesh, shape, source, target, target_mesh)
    if math.prod(axis.resolve(mesh)[1] for axis in source.unreduced) > 1:
        return int(wanted.elements.max())
    return int((wanted.elements - _in_common(held, wanted)).max())


def _in_common(held: Blocks, wanted: Blocks) -> np.ndarray:
    """Returns the number of elements that each device has in both placements."""
    sizes = np.minimum(held.stops, wanted.stops) - np.maximum(held.starts, wanted.starts)
    return np.maximum(0, sizes).prod(axis=1)


def sent_elements_bound(
    mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding, target_mesh: Mesh | None = None
) -> int:
    """Returns the least number of elements that the busiest device must send.

    All devices together send as many elements as all devices together lack. And an element that only the holders of one
    block have, and that others need, leaves one of these holders at least once, even if other devices pass it on
    afterwards.

    Example: all 8 devices lack 4 of the 8 elements, so each sends 4 elements on average.
      >>> mesh = Mesh.parse("x=2,y=4")
      >>> sent_elements_bound(mesh, (8,), Sharding.parse('[{"x"}]'), Sharding.parse("[{}]"))
      4
    """
    if source.unreduced or target.unreduced:
        return 0  # partial sums may be combined on their way, and no useful bound is known
    ends = both_ends(mesh, shape, source, target, target_mesh)
    together = -(-int((ends[1].elements - _in_common(*ends)).sum()) // ends[0].devices)
    shape = ends[0].shape
    held, wanted = map(_Boxes, ends)
    if len(held.starts) * len(wanted.starts) > MOST_MEETINGS:
        return together
    common = np.ones((len(held.starts), len(wanted.starts)), np.int64)
    for dim in range(len(shape)):
        first = np.maximum(held.starts[:, None, dim], wanted.starts[None, :, dim])
        common *= np.maximum(0, np.minimum(held.stops[:, None, dim], wanted.stops[None, :, dim]) - first)
    wanted_by = np.zeros_like(common)
    np.add.at(wanted_by, (held.of_device, wanted.of_device), 1)
    leaves = (common * (wanted.count > wanted_by)).sum(axis=1)
    return max(together, int((-(-leaves // held.count)).max(initial=0)))


class _Boxes:
    """The distinct boxes of a placement.

    State: `of_device` is the box number of each device, and `count` the number of devices of each box.
    """

    def __init__(self, blocks: Blocks):
        rank = len(blocks.shape)
        bounds = np.concatenate([blocks.starts, blocks.stops], axis=1)
        if rank:
            boxes, self.of_device = np.unique(bounds, axis=0, return_inverse=True)
        else:
            boxes, self.of_device = bounds[:1], np.zeros(len(bounds), np.int64)
        self.of_device = self.of_device.reshape(-1)
        self.starts, self.stops = boxes[:, :rank], boxes[:, rank:]
        self.count = np.bincount(self.of_device, minlength=len(boxes))


def _needed_and_present(mesh: Mesh, shape, source: Sharding, target: Sharding) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each mesh position, the elements of the target tile and how many of these the source tile has."""
    needed = np.ones(mesh.size, dtype=np.int64)
    present = np.ones(mesh.size, dtype=np.int64)
    for size, held, wanted in zip(shape, whole_factors(mesh, source), whole_factors(mesh, target)):
        if held == wanted:
            start, stop = _block(mesh, size, wanted)
            needed *= stop - start
            present *= stop - start
        elif not wanted:
            start, stop = _block(mesh, size, held)
            needed *= size
            present *= stop - start
        else:
            start, stop = _block(mesh, size, held) if held else (0, size)
            goal_start, goal_stop = _block(mesh, size, wanted)
            needed *= goal_stop - goal_start
            present *= np.maximum(0, np.minimum(stop, goal_stop) - np.maximum(start, goal_start))
    return needed, present


def _with_sums(mesh: Mesh, elements: int, source: Sharding, target: Sharding, needed, present) -> int:
    """Returns the bound rounded down, since an all_reduce counts fractions of an element."""
    before, after = unreduced_factors(mesh, source), unreduced_factors(mesh, target)
    sums, target_sums = (math.prod(factor.size for factor in each) for each in (before, after))
    if sums == target_sums == 1:
        return int((needed - present).max())
    if target_sums == 1:
        lacking = max(0, elements - int(present.sum()))
        transfers = elements * (sums - 1) + int(needed.sum()) - elements + lacking
        return max(int(needed.max()), transfers // mesh.size)
    copies = mesh.size // math.prod(f.size for dim in whole_factors(mesh, target) for f in dim) // target_sums
    holders = _most_alike(mesh, (*after, *(f for dim in whole_factors(mesh, source) for f in dim)))
    return elements * max(0, sums - target_sums, copies - holders) // mesh.size


def _most_alike(mesh: Mesh, factors) -> int:
    """Returns the largest number of devices that share their coordinates along the factors.

    The factors may overlap, even in radices that do not nest.
    """
    along = np.stack([coordinates(mesh, factor) for factor in factors])
    return int(np.unique(along, axis=1, return_counts=True)[1].max())


def _block(mesh: Mesh, size: int, factors) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first index and the index behind the last one of each mesh position's block of a dimension."""
    block = np.zeros(mesh.size, dtype=np.int64)
    for number, factor in enumerate(factors):
        block = block * factor.size + coordinates(mesh, factor) if number else coordinates(mesh, factor)
    shards = math.prod([factor.size for factor in factors])
    width = -(-size // shards)
    start = block * width
    if width * shards == size:
        return start, start + width
    return np.minimum(start, size), np.minimum(start + width, size)
