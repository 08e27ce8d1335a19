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

from reshard.configuration import contexts
from reshard.configuration.settings import resolved
from reshard.live.leaves import (
    Ends,
    RedistributeError,
    ends_of,
    flattened,
    targets_of,
)
from reshard.live.running import refuse_shapes
from reshard.live.transfers import same_as_before, transfer_of
from reshard.live.tree_schedule import Schedule, arrays_used_again, bytes_held, scheduled_transfers
from reshard.passes.sites.network import topology_of as topology_of_text
from reshard.planning import device_networks
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
      tree: a pytree of jax arrays. Numpy arrays and numbers are allowed too; they are put on the devices.
      shardings: a pytree of the same structure as `tree`, or a prefix of it. Each leaf is a `NamedSharding` or another
        jax sharding, a device, a `PartitionSpec`, or None, which leaves its arrays as they are. A `PartitionSpec` is on
        the mesh of `jax.set_mesh`, or if none is set, on the mesh of the array.
      memory_limit: the most bytes that a device may hold at once for sources, targets and temporaries, as modelled; or
        text such as "2GiB". If not all arrays fit at once, they move one after the other; if a single array does not
        fit, it moves in slices. None means no limit.
      donate: whether a source array may be deleted as soon as its target exists.
      progress: True shows the progress on stderr, False does not, and None does if it takes more than a second.
      topology: the network for which the fastest way is chosen; None for that of `reshard.options`, else for the one
        that the kind and the places of TPUs or GPUs tell, such as h100:2; else `uniform`.
      objective: the same as for `reshard.plan`.
    Returns: the tree of new arrays. An array that already has its sharding is returned itself. If only the names of
      mesh axes differ, the new array has the buffers of the old one.
    Raises:
      RedistributeError: the tree or a sharding cannot be used, or no order of the arrays fits the memory limit (the
        message has the smallest limit that is enough). Nothing has moved.
      DisagreementError: processes of a `jax.distributed` job have different schedules. Nothing has moved in any of
        them.
      TopologyError, ByteSizeError: the topology or the memory limit cannot be read.

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
      tree: a pytree of arrays, or of `jax.ShapeDtypeStruct`s with shardings.
      shardings, memory_limit, donate, topology, objective: the same as for `redistribute`.
    Returns: the schedule. `print` shows it as a table, and `run(tree)` follows it.
    Raises: RedistributeError, TopologyError and ByteSizeError, as for `redistribute`.
    """
    if objective not in OBJECTIVES:
        raise RedistributeError(f'unknown objective "{objective}"; choose from {", ".join(OBJECTIVES)}')
    network = _network(topology)
    limit = None if memory_limit is None else byte_size(memory_limit)
    paths, leaves, structure = flattened(tree)
    targets = targets_of(shardings, tree, leaves)
    ends = [ends_of(*each) for each in zip(paths, leaves, targets)]
    same_as = same_as_before(leaves, targets)
    transfers = tuple(transfer_of(end, network or _between(end), objective, first) for end, first in zip(ends, same_as))
    return scheduled_transfers(
        transfers, bytes_held(leaves, transfers), arrays_used_again(leaves), structure, limit, donate
    )


def _network(topology: Topology | str | os.PathLike | None) -> Topology | None:
    """Returns the topology that the caller or `reshard.options` names; None without one."""
    if isinstance(topology, Topology):
        return topology
    text = os.fspath(topology) if topology is not None else resolved({}, dict(contexts.current().options))["topology"]
    return topology_of_text(text) if text else None


def _between(ends: Ends) -> Topology | None:
    """Returns the topology of the devices of both ends of a leaf; None if it cannot be told, and for CPU devices.

    One memory holds all tiles of CPU devices, and copies there cost more than the preset's network says: `uniform`
    gives plans with fewer and larger moves, which benchmarks/live_arrays.py found to be faster.
    """
    sides = [each for each in (ends.source, ends.target) if each is not None]
    devices = sorted({device for each in sides for device in each.device_set}, key=lambda device: device.id)
    if {device.platform for device in devices} == {"cpu"}:
        return None
    text = device_networks.topology_of(devices)
    return topology_of_text(text) if text else None
