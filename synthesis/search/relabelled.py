# SPDX-License-Identifier: Apache-2.0
"""Chains on meshes that are made of the blocks, with groups of devices that no axis of the mesh has.

The effect of a step depends on which device holds which block, not on the names of the mesh's axes. So each chain may
have a mesh that suits it:

- *By their blocks*: the mesh has an axis for each dimension, which numbers its blocks, and one for the replicas of a
  block, nearest first. These axes are cut as the other side needs them, even if the mesh's own axes are cut in another
  radix. Then one permute takes whole tiles to their devices: at the end of a chain or, on the mesh of the target's
  blocks, at its start.
- *Along replicas*: once some factors stay replicated to the end, it does not matter which replicas talk to each other.
  Replicas are matched in the order of their places in the network, not by coordinates.

A plan says which mesh its steps are on (`tile_program.On`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..layouts.layout import Factor, Layout, Slot, coordinates, places_by_axis
from ..layouts.mesh import Mesh
from ..network.cost import stride
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllToAll, Slice, Step
from ..programs.tile_program import block_ids
from ..programs.two_meshes import ids_of

REPLICA = "replica"


def block_mesh(mesh: Mesh, layout: Layout, places: np.ndarray) -> Mesh:
    """Returns the mesh of the same devices in the order of blocks, with an axis "block<d>" for each split dimension d.

    Args:
      layout: the blocked layout of the devices. places: the place of each device id in the network; the replicas of a
        block are ordered by it.

    Example:
      >>> from ..layouts.layout import layout_of
      >>> from ..layouts.sharding import Sharding
      >>> mesh = Mesh.parse("x=2,y=3")
      >>> print(block_mesh(mesh, layout_of(mesh, (6, 4), Sharding.parse('[{"y"}, {}]')), np.arange(6)))
      <["block0"=3, "replica"=2], device_ids=[0, 3, 1, 4, 2, 5]>
    """
    ids = ids_of(mesh)
    order = np.lexsort((places[ids], block_ids(mesh, layout)))
    counts = _counts(layout)
    axes = [(f"block{dim}", count) for dim, count in enumerate(counts) if count > 1]
    replicas = mesh.size // math.prod(counts)
    axes += [(REPLICA, replicas)] if replicas > 1 else []
    found = tuple(ids[order].tolist())
    return Mesh(tuple(axes), None if found == tuple(range(mesh.size)) else found)


def chains_by_counts(before: Layout, after: Layout, replicas: int) -> Iterator[Chain]:
    """Yields chains on the mesh of the blocks before, to a layout with the same numbers of blocks as the one after.

    The leading blocks that both sides have in common stay. Further factors of a dimension move to dimensions that lack
    blocks of that size, and the others are gathered. Replicas provide the blocks that are lacking then. Or replicas
    provide the leading ones of the lacking blocks.

    Args:
      before, after: blocked; no more of them is used than the blocks along each dimension. replicas: of each block
        before.
    """
    seen = []
    for is_descending in (False, True):
        cut = _Cut(before.shape, _counts(before), _counts(after), replicas, is_descending)
        for typed in (*cut.chains(slices_lead=False), *cut.chains(slices_lead=True)):
            if typed not in seen:
                seen.append(typed)
                yield Chain(cut.start, typed)


class _Cut:
    """The axes of a block mesh, cut into the pieces that a chain moves.

    State: `given`, the pieces that dimensions have too many; `wanted`, the slots that dimensions lack.
    """

    def __init__(self, shape, before: Sequence[int], after: Sequence[int], replicas: int, is_descending: bool):
        owners: list[tuple[Factor, Slot]] = []
        self.given: list[tuple[Factor, Slot]] = []
        self.wanted: list[Slot] = []
        for dim, (has, needs) in enumerate(zip(before, after)):
            kept = math.gcd(has, needs)
            if kept > 1:
                owners.append((Factor(f"block{dim}", 1, kept), Slot(dim, 1, kept)))
            given, wanted = (
                Factor(f"block{dim}", kept, count // kept).primes(largest_first=is_descending) for count in (has, needs)
            )
            self.given += [(factor, Slot(dim, factor.pre, factor.end)) for factor in given]
            self.wanted += [Slot(dim, factor.pre, factor.end) for factor in wanted]
        self.spare = Factor(REPLICA, 1, replicas).primes(largest_first=is_descending)
        self.start = Layout(tuple(shape), tuple(sorted([*owners, *self.given], key=lambda owner: owner[1])))

    def chains(self, slices_lead: bool) -> Iterator[tuple[Step, ...]]:
        """Yields the chains; with `slices_lead`, replicas take leading slots, and moved pieces the others."""
        moves, slices, gathered = [], [], list(self.given)
        spare = list(self.spare)
        lacking = dict(Counter(slot.size for slot in self.wanted) - Counter(factor.size for factor, _ in self.given))
        for slot in self.wanted:
            size = slot.size
            mover = next((each for each in gathered if each[0].size == size), None)
            factor = next((each for each in spare if each.size == size), None)
            if factor is not None and (mover is None or slices_lead and lacking.get(size)):
                spare.remove(factor)
                slices.append((factor, slot))
                lacking[size] = lacking.get(size, 0) - 1
            elif mover is not None:
                gathered.remove(mover)
                moves.append((mover[0], slot))
            else:
                return
        first = (Slice(tuple(slices)),) if slices else ()
        gathers = (AllGather(tuple(factor for factor, _ in gathered)),) if gathered else ()
        slot_of = dict(self.given)
        routes = itertools.groupby(moves, lambda move: (slot_of[move[0]].dim, move[1].dim))
        apart = tuple(AllToAll(tuple(run)) for _, run in routes)
        together = (AllToAll(tuple(moves)),) if moves else ()
        yield (*first, *together, *gathers)
        if len(apart) > 1:
            yield (*first, *apart, *gathers)
        if moves and gathers:
            yield (*first, *gathers, *together)


def matched_along(mesh: Mesh, factors: Sequence[Factor], places: np.ndarray) -> Mesh:
    """Returns the mesh in which devices that differ only in these factors are in the order of their places.

    Example:
      >>> mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 0, 1, 2]>')
      >>> print(matched_along(mesh, [Factor("y", 1, 2)], np.arange(4)))
      <["x"=2, "y"=2], device_ids=[0, 3, 1, 2]>
    """
    ids, group = ids_of(mesh), np.arange(mesh.size)
    for factor in factors:
        group = group - coordinates(mesh, factor) * stride(mesh, factor)
    rows = np.lexsort((np.arange(mesh.size), group))  # positions, group by group
    order = np.lexsort((places[ids], group))
    found = ids.copy()
    found[rows] = ids[order]
    return Mesh(mesh.axes, tuple(found.tolist()))


def replicated_from(mesh: Mesh, layouts: Sequence[Layout]) -> list[tuple[Factor, ...]]:
    """Returns for each layout the factors that are replicated in it and in all later layouts."""
    found, left = [], _pieces(mesh, layouts)
    for layout in reversed(layouts):
        left = [factor for factor in left if layout.slot_of(factor) is None and factor not in layout.unreduced]
        found.append(tuple(left))
    return found[::-1]


def _pieces(mesh: Mesh, layouts: Sequence[Layout]) -> list[Factor]:
    """Returns the axes of the mesh, cut into the pieces that the layouts use."""
    places = places_by_axis(factor for layout in layouts for factor, _ in layout.owners)
    wholes = [Factor(axis, 1, size) for axis, size in mesh.axes if size > 1]
    return [piece for whole in wholes for piece in whole.cut(places.get(whole.axis, ()))]


def _counts(layout: Layout) -> list[int]:
    return [size // tile for size, tile in zip(layout.shape, layout.tile_shape)]
