# SPDX-License-Identifier: Apache-2.0
"""Sums before a loop and behind it, for a compiler that would put them together and hold the early ones meanwhile.

XLA's combiner makes one all_reduce of several with the same groups, listed in the same order, at the place of the last
one. If a loop runs between them, the tiles of the early ones, and what could be computed from their sums, are in memory
while it runs. Which group is listed first means nothing, so the sums behind the loop list them in another order:

    %1 = all_reduce(%0) groups = [[0, 1], [2, 3]]      %1 = all_reduce(%0) groups = [[0, 1], [2, 3]]
    %2 = while(...)                                    %2 = while(...)
    %3 = all_reduce(%2) groups = [[0, 1], [2, 3]]      %3 = all_reduce(%2) groups = [[2, 3], [0, 1]]
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reshard.synthesis.hierarchy.device_groups import Groups
from reshard.synthesis.network.topology import Topology

from ..ir.ops import dense_elements, producer_of
from ..platform.bindings import ir
from ..shardings.sdy_shardings import module_meshes
from .explicit_collectives import NotPlannable, in_islands
from .joined_collectives import Prices, needs_of, read, used_by

_SUM = "stablehlo.all_reduce"
_LOOP = "stablehlo.while"
_GROUPS = "replica_groups"


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum among those of one block that XLA may put together.

    Attributes:
      groups: device ids. depth: how many loops it is behind. held_bytes: what waits if it waits; 0 for a small one.
      number, needs: its own number among the sums, and those of the sums that it needs, as bits.
    """

    op: ir.Operation
    groups: Groups
    depth: int
    held_bytes: int
    number: int
    needs: int


def keep_apart(root: ir.Operation, topology: Topology) -> list[ir.Operation]:
    """Writes the groups of sums in another order where a large one would wait for one behind a loop.

    A small one, whose latency is longer than its sending on the network, may wait: then the latency is paid once. So
    may one that those behind need, for which it does not wait. There are as many orders as groups; if these are too
    few, what waits is least, in bytes times loops.

    Returns: the sums with another order of groups.
    """
    meshes, prices = module_meshes(root), Prices(topology)
    alike: dict[tuple, list[tuple[ir.Operation, Groups, int]]] = {}
    for op, mesh in in_islands(root, {_SUM}):
        if isinstance(mesh, NotPlannable) or (member := read(op, meshes)) is None:
            continue
        moved = member.collective
        held_bytes = 0 if prices.is_small(moved, mesh.devices) else moved.bytes_before
        alike.setdefault((op.block, member.key), []).append((op, moved.groups, held_bytes))
    changed, depths = [], _Depths()
    for (block, _), members in alike.items():
        if len(members) == 1 or not any(held_bytes for _, _, held_bytes in members):
            continue
        needs = needs_of(block, [op for op, _, _ in members])
        sums = [
            _Sum(op, groups, depths.of(block, op), held_bytes, number, needs[number])
            for number, (op, groups, held_bytes) in enumerate(members)
        ]
        places = _places(sums, len(sums[0].groups))
        changed += [each.op for each in sums if _is_moved_on(each, places[each.depth])]
    return changed


def _places(sums: Sequence[_Sum], most: int) -> dict[int, int]:
    """Returns for each depth the place, below `most`, of the group that its sums list first: the first place where
    nothing waits for them, or where least does.

    Example: a large sum, a small one behind a loop and another one behind two loops, of two groups each.

      >>> sums = [_Sum(None, (), 0, 4096, 0, 0), _Sum(None, (), 1, 0, 1, 0), _Sum(None, (), 2, 4096, 2, 0)]
      >>> _places(sums, 2)
      {0: 0, 1: 1, 2: 1}
    """
    found: dict[int, int] = {}

    def waiting(place: int, depth: int) -> int:
        at = [each for each in sums if each.depth == depth]
        return sum(
            each.held_bytes * (depth - each.depth)
            for each in sums
            if found.get(each.depth) == place and any(not behind.needs >> each.number & 1 for behind in at)
        )

    for depth in sorted({each.depth for each in sums}):
        found[depth] = min(range(most), key=functools.partial(waiting, depth=depth))
    return found


def _is_moved_on(each: _Sum, places: int) -> bool:
    """Lists groups from another one on, and returns whether that changes anything."""
    if places:
        listed = np.array(each.groups, np.int64)
        each.op.attributes[_GROUPS] = dense_elements(np.ascontiguousarray(np.roll(listed, -places, axis=0)))
    return bool(places)


class _Depths:
    """How many loops, one behind the other, the ops of a block need at most; each block is looked at once."""

    def __init__(self) -> None:
        self._known: dict[ir.Block, dict[ir.Operation, int]] = {}

    def of(self, block: ir.Block, op: ir.Operation) -> int:
        if block not in self._known:
            self._known[block] = _depths(each.operation for each in block.operations)
        return self._known[block].get(op, 0)


def _depths(ops: Iterable[ir.Operation]) -> dict[ir.Operation, int]:
    """Returns the depths of ops; those of depth 0 are not in it."""
    found: dict[ir.Operation, int] = {}
    for op in ops:
        made = (producer_of(value) for value in used_by(op))
        depth = max((found.get(each, 0) for each in made if each is not None), default=0) + (op.name == _LOOP)
        if depth:
            found[op] = depth
    return found
