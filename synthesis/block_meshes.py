# SPDX-License-Identifier: Apache-2.0
"""Chains whose groups of devices no axis of the mesh has: on meshes made of the blocks themselves.

What a step does to tiles depends on who holds which block, not on what the mesh calls its axes. So devices may be called as
suits a chain:

- *By their blocks*: the mesh with an axis for each dimension, which numbers its blocks, and one for the replicas of a block,
  nearest first. Its axes are cut where the other side needs them cut, though the mesh's own are cut in another radix; then one
  permute takes whole tiles to where they belong, at the end of a chain or, on the mesh of the target's blocks, at its start.
- *Along replicas*: from where on some factors stay replicated, it does not matter which of the replicas talk to each other.
  They are matched in the order of their places in the network, not by coordinates.

A plan says which mesh its steps are on (`tile_program.On`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import itertools
import math

import numpy as np

from . import steps
from .cost import stride
from .layout import Factor, Layout, Slot, coordinates
from .mesh import Mesh
from .problem import primes
from .steps import AllGather, AllToAll, Slice, Step
from .tile_program import block_ids
from .two_meshes import ids_of

REPLICA = "replica"


def block_mesh(mesh: Mesh, layout: Layout, places: np.ndarray) -> Mesh:
    """Returns the devices of a mesh in the order of their blocks, with an axis "block<d>" for each dimension d that is split.

    Args:
      layout: what they hold, blocked. places: of each device id in the network; replicas of a block are in their order.

    Example:
      >>> from .layout import layout_of
      >>> from .sharding import Sharding
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


def chains_by_counts(before: Layout, after: Layout, replicas: int) -> Iterator[tuple[Layout, tuple[Step, ...]]]:
    """Yields (start, steps) on the mesh of the blocks before, to a layout of as many blocks along each dimension as there are after.

    The leading blocks that both sides have in common stay. What a dimension has beyond them goes to those that lack blocks of
    its size, the rest is gathered; what is lacking then, replicas provide. Or replicas split the leading parts of what is lacking.

    Args:
      before, after: blocked; no more of them is used than the blocks along each dimension. replicas: of each block before.
    """
    seen = []
    for is_descending in (False, True):
        cut = _Cut(before.shape, _counts(before), _counts(after), replicas, is_descending)
        for typed in (*cut.chains(slices_lead=False), *cut.chains(slices_lead=True)):
            if typed not in seen:
                seen.append(typed)
                yield cut.start, typed


class _Cut:
    """The axes of a block mesh in the pieces that a chain moves. State: `given` and `wanted`, what dimensions have beyond and lack."""

    def __init__(self, shape, before: Sequence[int], after: Sequence[int], replicas: int, is_descending: bool):
        self.is_descending = is_descending
        owners: list[tuple[Factor, Slot]] = []
        self.given: list[tuple[Factor, Slot]] = []
        self.wanted: list[Slot] = []
        for dim, (has, needs) in enumerate(zip(before, after)):
            kept = math.gcd(has, needs)
            if kept > 1:
                owners.append((Factor(f"block{dim}", 1, kept), Slot(dim, 1, kept)))
            self.given += [(Factor(f"block{dim}", a, b // a), Slot(dim, a, b)) for a, b in self._pieces(kept, has)]
            self.wanted += [Slot(dim, a, b) for a, b in self._pieces(kept, needs)]
        self.spare = [Factor(REPLICA, a, b // a) for a, b in self._pieces(1, replicas)]
        self.start = Layout(tuple(shape), tuple(sorted([*owners, *self.given], key=lambda owner: owner[1])))

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        sizes = sorted(primes(stop // start), reverse=self.is_descending)
        return list(itertools.pairwise(itertools.accumulate(sizes, lambda a, b: a * b, initial=start)))

    def chains(self, slices_lead: bool) -> Iterator[tuple[Step, ...]]:
        """Yields the chains; the slices of replicas lead if they come before what others bring, in their dimensions and in the count."""
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


def inverted(start: Layout, typed: Sequence[Step]) -> tuple[Layout, tuple[Step, ...]]:
    """Returns the chain that leads back: of slices gathers, of gathers slices. Raises: RuleError if a rule forbids a step."""
    back: list[Step] = []
    layout = start
    for step in typed:
        after = steps.apply(layout, step)
        match step:
            case Slice(moves):
                back.append(AllGather(tuple(factor for factor, _ in moves)))
            case AllGather(factors):
                back.append(Slice(tuple((factor, layout.slot_of(factor)) for factor in factors)))
            case AllToAll(moves):
                back.append(AllToAll(tuple((factor, layout.slot_of(factor)) for factor, _ in moves)))
        layout = after
    return layout, tuple(reversed(back))


def matched_along(mesh: Mesh, factors: Sequence[Factor], places: np.ndarray) -> Mesh:
    """Returns the mesh with the devices that differ in these factors alone in the order of their places.

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
    """Returns for each layout the factors that it and all behind it leave replicated."""
    found, left = [], _pieces(mesh, layouts)
    for layout in reversed(layouts):
        left = [factor for factor in left if layout.slot_of(factor) is None and factor not in layout.unreduced]
        found.append(tuple(left))
    return found[::-1]


def _pieces(mesh: Mesh, layouts: Sequence[Layout]) -> list[Factor]:
    """Returns the axes in the pieces that some layout has them in."""
    owned = {factor for layout in layouts for factor, _ in layout.owners}
    found = []
    for axis, size in mesh.axes:
        ends = {1, size, *(end for f in owned if f.axis == axis for end in (f.pre, f.pre * f.size))}
        found += [Factor(axis, a, b // a) for a, b in itertools.pairwise(sorted(ends)) if b % a == 0]
    return found


def _counts(layout: Layout) -> list[int]:
    return [size // tile for size, tile in zip(layout.shape, layout.tile_shape)]
