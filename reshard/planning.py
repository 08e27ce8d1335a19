# SPDX-License-Identifier: Apache-2.0
"""`reshard.plan`: the planner in the user's own terms: strings, mappings, or jax's meshes and shardings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
import operator
import os
import time

from reshard.element_types import check_size, element_type
from reshard.synthesis.mesh import Mesh, MeshError
from reshard.synthesis.plan import Plan
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
    Returns: the plan; `to_dict()` is what `reshard plan --json` prints.
      reduction: what makes an array of partial sums along unreduced axes: sum, prod, min, max, and, or.
      effort: how many times as many steps to consider before the search for a cheaper plan, or for the proof that there is
        none, is given up; `Plan.is_optimal`, `Plan.proved_gap`.
    Raises:
      MeshError, ShardingError: text that cannot be read, unknown axes, axes used twice, a wrong rank.
      TopologyError: an unknown topology, or one that does not fit the mesh.
      ElementTypeError: an unknown dtype, a negative size. NoPlanError: unreduced axes of dimensions that do not divide.

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
    options = {"objective": objective, "topology": network, "with_exchange": True, "reduction": reduction, "effort": effort}
    found = _plan(on, shape, element.bits, *sides, **options)
    return replace(found, dtype=element.name, seconds=time.perf_counter() - began_s)


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
