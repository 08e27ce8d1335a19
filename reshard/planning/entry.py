# SPDX-License-Identifier: Apache-2.0
"""`reshard.plan`: the planner in the user's own terms: strings, mappings, or jax's meshes and shardings."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reshard.planning.byte_sizes import byte_size
from reshard.planning.element_types import check_size, element_type
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import AxisRef, Sharding, ShardingError
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.planner.entry import pareto as _pareto
from reshard.synthesis.planner.entry import plan as _plan


def plan(
    source,
    target,
    *,
    mesh=None,
    shape: tuple[int, ...],
    dtype="float32",
    topology: Topology | str | os.PathLike | None = None,
    objective: str = "time",
    reduction: str = "sum",
    effort: int = 1,
    memory_limit: int | str | None = None,
    target_mesh=None,
    tile_limit: int | str | None = None,
) -> Plan:
    """Returns the cheapest way to turn an array sharded as `source` into `target`.

    Args:
      source, target: the sharding before and after: text such as '[{"x"}, {}]' or "P('x', None)", a
        `jax.sharding.PartitionSpec`, a `NamedSharding`, a `SingleDeviceSharding`, or a `reshard.Sharding`. It has one
        entry for each dimension of `shape`; a `PartitionSpec` may have fewer.
      mesh: the mesh of `source`: a jax `Mesh` or `AbstractMesh`, a `reshard.Mesh`, a mapping {"x": 4, "y": 2}, the text
        "x=4,y=2", or Shardy's text. It may be omitted if `source` is a `NamedSharding` or `SingleDeviceSharding`. The
        device ids of a jax `Mesh` are used as they are if they are 0 to n - 1; otherwise the devices are numbered in
        the order of their ids.
      shape: the global shape, in elements.
      dtype: a numpy or jax dtype, or its name; "f32" and "int4" work too.
      topology: the network: a preset such as "h100" or "v5e:4x4*2", the path of a TOML file, or a `Topology`. None
        means "uniform".
      objective: "time" asks for the shortest modelled time on the topology, "bytes" for the fewest received bytes.
      reduction: how partial sums along unreduced axes are combined: "sum", "prod", "min", "max", "and" or "or".
      effort: at least 1. The search for a cheaper plan, or for a proof that there is none, considers `effort` times as
        many steps before it stops. `Plan.is_optimal` and `Plan.proved_gap` have the result.
      memory_limit: the largest allowed `Plan.peak_bytes`, in bytes per device, or text such as "2GiB". If no plan fits
        in one piece, the plan works on slices of the array, one after the other. None means no limit.
      target_mesh: the mesh of `target`, in the same forms as `mesh`; "<[], device_ids=[3]>" is device 3 alone. If it is
        omitted, it is the mesh of `target` itself, or else `mesh`.
      tile_limit: the largest allowed tile between the steps, in bytes per device, or text such as "64KiB". None means
        the larger one of the source tile and the target tile. A larger limit helps small arrays: it can be faster to
        gather all of the array and then slice it.
    Returns: the plan. Its `to_dict()` is what `reshard plan --json` prints.
    Raises:
      MeshError, ShardingError: a text cannot be read, an axis is unknown or used twice, or the rank is wrong.
      TopologyError: the topology is unknown, or does not fit the mesh.
      ElementTypeError: the dtype is unknown, or a size is negative.
      ByteSizeError: a limit is not a number of bytes.
      ValueError: the objective or the reduction is unknown, or the effort is less than 1.
      NoPlanError: no plan fits the memory limit (the message has the smallest limit that is enough); or partial sums
        are on a mesh with fewer devices than the other mesh; or only an exchange over thousands of devices would do.

    Example:
      >>> found = plan('[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4}, shape=(8, 8))
      >>> print(found.chain_text, found.bytes_received, found.bound_bytes)
      all_to_all x: dim 0 -> 1 48 48
    """
    began_s = time.perf_counter()
    on, goal = _meshes(mesh, target_mesh, source, target)
    shape, element = tuple(map(operator.index, shape)), element_type(dtype)
    check_size(element, shape)
    sides = (_sharding(each, len(shape)) for each in (source, target))
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    limit = None if memory_limit is None else byte_size(memory_limit)
    options = {"objective": objective, "topology": network, "with_exchange": True, "reduction": reduction}
    largest = None if tile_limit is None else byte_size(tile_limit)
    options |= {"effort": effort, "memory_limit": limit, "target_mesh": goal, "tile_limit": largest}
    found = _plan(on, shape, element.bits, *sides, **options)
    return replace(found, dtype=element.name, seconds=time.perf_counter() - began_s)


def pareto(
    source,
    target,
    *,
    mesh=None,
    shape: tuple[int, ...],
    dtype="float32",
    topology: Topology | str | os.PathLike | None = None,
    reduction: str = "sum",
    target_mesh=None,
) -> tuple[Plan, ...]:
    """Returns the plans that no other plan beats in both modelled time and peak, the fastest first.

    The arguments and errors are the same as for `plan`. For every memory limit, the result has a plan that fits the
    limit and is at least as fast as the plan that `plan` returns with this limit and the objective "time".

    Example:
      >>> for each in pareto('[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4}, shape=(64, 64)):
      ...     print(each.peak_bytes, each.chain_text)
      16384 all_to_all x: dim 0 -> 1
      12288 exchange in 3 rounds of 3 x [16, 16]
      10240 4 chunks along dim 0: all_to_all x: dim 0 -> 1
      9216 8 chunks along dim 0: all_to_all x: dim 0 -> 1
      8704 16 chunks along dim 0: all_to_all x: dim 0 -> 1
    """
    began_s = time.perf_counter()
    problem = {"mesh": mesh, "shape": shape, "dtype": dtype, "topology": topology, "reduction": reduction}
    problem["target_mesh"] = target_mesh
    asked = plan(source, target, **problem)
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    options = {"topology": network, "with_exchange": True, "reduction": reduction, "target_mesh": asked.target_mesh}
    found = _pareto(asked.mesh, asked.shape, asked.bits, asked.source, asked.target, **options)
    seconds = time.perf_counter() - began_s
    return tuple(replace(each, dtype=asked.dtype, seconds=seconds) for each in found)


def _meshes(mesh, target_mesh, source, target) -> tuple[Mesh, Mesh]:
    """Returns the meshes of source and target. Raises: MeshError if there is none, or if two differ."""
    ids = _device_ids(mesh, target_mesh, *(getattr(side, "mesh", side) for side in (source, target)))
    own = [_own_mesh(side, ids) for side in (source, target)]
    asked = [None if each is None else _mesh(each, ids) for each in (mesh, target_mesh)]
    on = asked[0] or own[0]
    if on is None:
        raise MeshError('no mesh; pass mesh="x=4,y=2" or a NamedSharding')
    goal = asked[1] or own[1] or on
    for chosen, side, of_side, name in ((on, source, own[0], "mesh"), (goal, target, own[1], "target_mesh")):
        if of_side is None or of_side == chosen:
            continue
        if of_side.axes != chosen.axes or _devices(getattr(side, "mesh", None)) is not None:
            spec = getattr(side, "spec", side)
            raise MeshError(f"{spec} is on mesh {of_side}, not on {chosen}; leave {name} out, or pass a PartitionSpec")
    return on, goal


def _device_ids(*of) -> tuple[int, ...]:
    """Returns the sorted ids of all devices if a jax `Mesh` is among `of`, else (); they number the devices."""
    arrays = [array for each in of if (array := _devices(each)) is not None]
    meshes = {device.id for array in arrays for device in array.flat}
    single = {device.id for each in of for device in _single_device(each)}
    return tuple(sorted(meshes | single)) if meshes else ()


def _devices(mesh):
    """Returns the array of the devices of a jax `Mesh`; None for an object without devices, as an `AbstractMesh`."""
    if isinstance(mesh, Mesh):
        return None
    try:
        found = getattr(mesh, "devices", None)
    except ValueError:  # an AbstractMesh
        return None
    return found if hasattr(found, "flat") else None


def _own_mesh(side, ids: tuple[int, ...]) -> Mesh | None:
    """Returns the mesh of a jax sharding, its devices numbered by their place in `ids`; None for other objects."""
    if hasattr(side, "mesh"):
        return _mesh(side.mesh, ids)
    device = _single_device(side)
    return Mesh((), _numbered([device[0].id], ids)) if device else None


def _single_device(sharding) -> tuple:
    """Returns the device of a `SingleDeviceSharding` in a tuple; () for any other object."""
    is_single = not hasattr(sharding, "spec") and not hasattr(sharding, "shape") and hasattr(sharding, "device_set")
    return tuple(sharding.device_set) if is_single else ()


def _mesh(mesh, ids: tuple[int, ...]) -> Mesh:
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if isinstance(mesh, Mapping):
        return Mesh.of(mesh)
    axes = tuple((str(name), int(size)) for name, size in mesh.shape.items())
    devices = _devices(mesh)
    if devices is None:
        return Mesh(axes)
    own = [device.id for device in devices.flat]
    ranks = _numbered(own, ids)
    if sorted(ranks) != list(range(len(own))):
        raise MeshError(
            f"the mesh of {Mesh(axes)} has devices {sorted(own)} of {list(ids)}; "
            "plans are between meshes over the same devices, or the first ones of them, or one device"
        )
    return Mesh(axes, ranks)


def _numbered(own: list[int], ids: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the rank of each id among `ids`; the ids themselves if `ids` is empty."""
    return tuple(ids.index(each) for each in own) if ids else tuple(own)


def _sharding(sharding, rank: int) -> Sharding:
    if isinstance(sharding, Sharding):
        return sharding
    if isinstance(sharding, str):
        return Sharding.parse(sharding, rank)
    if _single_device(sharding):
        return Sharding(((),) * rank)
    spec = getattr(sharding, "spec", sharding)  # a NamedSharding, or a PartitionSpec, which is a sequence
    entries = list(spec.partitions if hasattr(spec, "partitions") else spec)
    if len(entries) > rank:
        raise ShardingError(f"{spec} has {len(entries)} entries, the array has rank {rank}")
    unreduced = tuple(AxisRef(name) for name in sorted(getattr(spec, "unreduced", ())))
    return Sharding(
        tuple(_axes(entry, spec) for entry in entries + [None] * (rank - len(entries))), unreduced=unreduced
    )


def _axes(entry, spec) -> tuple[AxisRef, ...]:
    """Returns the axes of one entry of a spec.

    Raises: ShardingError if it names none, as `PartitionSpec.UNCONSTRAINED`.
    """
    if entry is None:
        return ()
    names = (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        said = f"{spec} has an entry {entry}, which names no axes"
        raise ShardingError(f"{said}; write a dimension's axes, or None where it is whole")
    return tuple(AxisRef(name) for name in names)
