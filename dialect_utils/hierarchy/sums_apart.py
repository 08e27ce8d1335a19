# SPDX-License-Identifier: Apache-2.0
"""Sums before a loop and behind it, for a compiler that would put them together and hold the early ones meanwhile.

XLA's combiner makes one all_reduce of several with the same groups, listed in the same order, at the place of the last
one. If a loop runs between them, the tiles of the early ones, and what could be computed from their sums, are in memory
while it runs. Which group is listed first means nothing, so sums behind more loops list them in another order:

    %1 = all_reduce(%0) groups = [[0, 1], [2, 3]]      %1 = all_reduce(%0) groups = [[0, 1], [2, 3]]
    %2 = while(...)                                    %2 = while(...)
    %3 = all_reduce(%2) groups = [[0, 1], [2, 3]]      %3 = all_reduce(%2) groups = [[2, 3], [0, 1]]
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reshard.synthesis.network.topology import Topology

from ..ir.ops import dense_elements, producer_of
from ..platform.bindings import ir
from ..shardings.sdy_shardings import module_meshes
from .explicit_collectives import NotPlannable, in_islands
from .joined_collectives import Prices, read, used_by

_SUM = "stablehlo.all_reduce"
_LOOP = "stablehlo.while"
_GROUPS = "replica_groups"


def keep_apart(root: ir.Operation, topology: Topology) -> list[ir.Operation]:
    """Writes the groups of sums in another order where a large one would wait for one behind a loop.

    A small one, whose latency is longer than its sending on the network, may wait: then the latency is paid once.

    Returns: the sums with another order of groups.
    """
    meshes, prices = module_meshes(root), Prices(topology)
    alike: dict[tuple, list[tuple[ir.Operation, bool]]] = {}
    for op, mesh in in_islands(root, {_SUM}):
        if isinstance(mesh, NotPlannable) or not isinstance(op.attributes[_GROUPS], ir.DenseIntElementsAttr):
            continue
        if (member := read(op, meshes)) is not None:
            is_large = not prices.is_small(member.collective, mesh.devices)
            alike.setdefault((op.block, member.key), []).append((op, is_large))
    changed, depths = [], _Depths()
    for (block, _), sums in alike.items():
        if len(sums) == 1:
            continue
        behind = {op: depths.of(block, op) for op, _ in sums}
        if any(is_large and behind[op] < max(behind.values()) for op, is_large in sums):
            ranks = {depth: rank for rank, depth in enumerate(sorted(set(behind.values())))}
            changed += [op for op, _ in sums if _is_moved_on(op, ranks[behind[op]])]
    return changed


def _is_moved_on(op: ir.Operation, places: int) -> bool:
    """Lists groups from another one on, and returns whether that changes anything."""
    listed = np.array(ir.DenseIntElementsAttr(op.attributes[_GROUPS]))
    if not places % len(listed):
        return False
    moved = np.ascontiguousarray(np.roll(listed, -places, axis=0))
    op.attributes[_GROUPS] = dense_elements(moved)
    return True


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
