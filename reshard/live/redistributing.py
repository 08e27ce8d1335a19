# SPDX-License-Identifier: Apache-2.0
"""`reshard.redistribute`: moves live arrays, or whole trees of them, to other shardings.

    params = reshard.redistribute(params, shardings, memory_limit="8GiB", donate=True)
    print(reshard.plan_tree(params, shardings))     # what it would do

Each leaf that moves takes the way that the planner finds. Equal leaves share a compiled program, and small leaves share
a launch. The order of all leaves keeps one memory limit.
"""

from __future__ import annotations

import os

import jax

from reshard.live.leaves import (
    RedistributeError,
    ends_of,
    flattened,
    targets_of,
)
from reshard.live.running import refuse_shapes
from reshard.live.transfers import same_as_before, transfer_of
from reshard.live.tree_schedule import Schedule, arrays_used_again, bytes_held, scheduled_transfers
from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.request import OBJECTIVES


def redistribute(
    tree,
    shardings,
    *,
    memory_limit: int | str | None = None,
    donate: bool = False,
    progress: bool | None = None,
    topology: Topology | str | os.PathLike | None = None,
    objective: str = "time",
):
    """Returns the tree with each array in its new sharding; the values are the same, bit for bit.

    Args:
      tree: a pytree of jax arrays; numpy arrays and numbers are put on the devices.
      shardings: a pytree of the same structure, or a prefix of it, of `NamedSharding`s or other jax shardings, devices,
        or `PartitionSpec`s, which are on the mesh of `jax.set_mesh`, or else on that of the array. None leaves arrays
        as they are.
      memory_limit: the most that a device may hold at a time of the sources, the targets and what is in between; bytes
        or text such as "2GiB". Where arrays do not fit at once they go one after the other, and where one does not, in
        parts.
      donate: whether sources may go as soon as their targets are there.
      progress: show how far it is: None if it takes longer than a second, True, or False.
      topology, objective: as `reshard.plan` takes them.
    Returns: arrays that are where they are wanted are returned as they are; if just the names differ, with the same
    buffers.
    Raises:
      RedistributeError: a tree or a sharding that does not serve; a memory limit that no order keeps, with the least
        one. Nothing has moved then.
      DisagreementError: the processes of a job of `jax.distributed` have other schedules; nothing has moved in any of
        them.
    After an interrupt the sources are intact, except the donated sources of leaves that have already moved. A note on
    the exception names these leaves, and the attribute `moved` of the exception has their new arrays, by path.
    """
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree_util.tree_leaves(tree)):
        refuse_shapes(*flattened(tree)[:2])
    schedule = plan_tree(
        tree, shardings, memory_limit=memory_limit, donate=donate, topology=topology, objective=objective
    )
    return schedule.run(tree, progress=progress)


def plan_tree(
    tree,
    shardings,
    *,
    memory_limit: int | str | None = None,
    donate: bool = False,
    topology: Topology | str | os.PathLike | None = None,
    objective: str = "time",
) -> Schedule:
    """Returns the schedule that `redistribute` follows with these arguments. Nothing moves and nothing is compiled.

    Args:
      tree: arrays, or `jax.ShapeDtypeStruct`s that have a sharding. All others: see `redistribute`.
    Raises: RedistributeError, as `redistribute` does.
    """
    if objective not in OBJECTIVES:
        raise RedistributeError(f'unknown objective "{objective}"; choose from {", ".join(OBJECTIVES)}')
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    limit = None if memory_limit is None else byte_size(memory_limit)
    paths, leaves, structure = flattened(tree)
    targets = targets_of(shardings, tree, leaves)
    ends = [ends_of(*each) for each in zip(paths, leaves, targets)]
    same_as = same_as_before(leaves, targets)
    transfers = tuple(transfer_of(end, network, objective, first) for end, first in zip(ends, same_as))
    return scheduled_transfers(
        transfers, bytes_held(leaves, transfers), arrays_used_again(leaves), structure, limit, donate
    )
