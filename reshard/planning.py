# SPDX-License-Identifier: Apache-2.0
"""`reshard.plan`: the planner in the user's own terms: strings, mappings, or jax's meshes and shardings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
import operator
import os
import time

from reshard.byte_sizes import byte_size
from reshard.element_types import check_size, element_type
from reshard.synthesis.mesh import Mesh, MeshError
from reshard.synthesis.plan import Plan
from reshard.synthesis.plan import pareto as _pareto
from reshard.synthesis.plan import plan as _plan
from reshard.synthesis.sharding import AxisRef, Sharding, ShardingError
from reshard.synthesis.topology import Topology


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
) -> Plan:
    """Returns the cheapest way to turn an array sharded as `source` into `target`.

    Args:
      source, target: Shardy text such as '[{"x"}, {}]', a `jax.sharding.PartitionSpec`, or a `NamedSharding`.
      mesh: a jax `Mesh` or `AbstractMesh`, a mapping {"x": 4, "y": 2}, the text "x=4,y=2" or Shardy's; may be left out
        where `source` is a `NamedSharding`.
      shape: the global shape, in elements.
      dtype: a numpy or jax dtype, or its name; "f32" and "int4" work too.
      topology: of the network: a preset such as "h100" or "v5e:4x4*2", the path of a TOML file, or a `Topology`; None
        is "uniform".
      objective: "time", modelled on the topology, or "bytes", the fewest received bytes.
      reduction: what makes an array of partial sums along unreduced axes: sum, prod, min, max, and, or.
      effort: how many times as many steps to consider before the search for a cheaper plan, or for the proof that there is
        none, is given up; `Plan.is_optimal`, `Plan.proved_gap`.
      memory_limit: the most that `Plan.peak_bytes` may be, per device: bytes, or text such as "2GiB". A plan that does not fit
        in one piece works on parts of the tile, one after the other.
    Returns: the plan; `to_dict()` is what `reshard plan --json` prints.
    Raises:
      MeshError, ShardingError: text that cannot be read, unknown axes, axes used twice, a wrong rank.
      TopologyError: an unknown topology, or one that does not fit the mesh.
      ElementTypeError: an unknown dtype, a negative size. NoPlanError: unreduced axes of dimensions that do not divide; a
        memory limit that no plan fits, with the least one that would do. ByteSizeError: a limit that is no number of bytes.

    Example:
      >>> found = plan('[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4}, shape=(8, 8))
      >>> print(found.chain_text, found.bytes_received, found.bound_bytes)
      all_to_all x: dim 0 -> 1 48 48
    """
    began_s = time.perf_counter()
    on = _mesh(mesh if mesh is not None else getattr(source, "mesh", None))
    _check_meshes(on, source, target)
    shape, element = tuple(map(operator.index, shape)), element_type(dtype)
    check_size(element, shape)
    sides = (_sharding(each, len(shape)) for each in (source, target))
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    limit = None if memory_limit is None else byte_size(memory_limit)
    options = {"objective": objective, "topology": network, "with_exchange": True, "reduction": reduction}
    options |= {"effort": effort, "memory_limit": limit}
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
) -> tuple[Plan, ...]:
    """Returns the plans that no other one beats both in modelled time and in peak, the fastest first.

    Arguments and errors are those of `plan`; what it returns by time, whatever the memory limit, is no better than one of these.

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
    asked = plan(source, target, **problem)
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    ends = (asked.source, asked.target)
    found = _pareto(asked.mesh, asked.shape, asked.bits, *ends, topology=network, with_exchange=True, reduction=reduction)
    seconds = time.perf_counter() - began_s
    return tuple(replace(each, dtype=asked.dtype, seconds=seconds) for each in found)


def _mesh(mesh) -> Mesh:
    if mesh is None:
        raise MeshError('no mesh; pass mesh="x=4,y=2" or a NamedSharding')
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    sizes = mesh if isinstance(mesh, Mapping) else mesh.shape  # jax's Mesh and AbstractMesh
    return Mesh.of(dict(sizes))


def _check_meshes(on: Mesh, *sides) -> None:
    """Raises: MeshError if a `NamedSharding` is on a mesh of other axes."""
    for side in sides:
        own = getattr(side, "mesh", None)
        if own is not None and _mesh(own).axes != on.axes:
            raise MeshError(f"{side.spec} is on mesh {_mesh(own)}, not on {on}; plans between two meshes are not made yet")


def _sharding(sharding, rank: int) -> Sharding:
    if isinstance(sharding, Sharding):
        return sharding
    if isinstance(sharding, str):
        return Sharding.parse(sharding)
    spec = getattr(sharding, "spec", sharding)  # a NamedSharding, or a PartitionSpec, which is a sequence
    entries = list(spec.partitions if hasattr(spec, "partitions") else spec)
    if len(entries) > rank:
        raise ShardingError(f"{spec} has {len(entries)} entries, the array has rank {rank}")
    unreduced = tuple(AxisRef(name) for name in sorted(getattr(spec, "unreduced", ())))
    return Sharding(tuple(_axes(entry) for entry in entries + [None] * (rank - len(entries))), unreduced=unreduced)


def _axes(entry) -> tuple[AxisRef, ...]:
    if entry is None:
        return ()
    names = (entry,) if isinstance(entry, str) else tuple(entry)
    return tuple(AxisRef(name) for name in names)
