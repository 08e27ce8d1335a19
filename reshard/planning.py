# SPDX-License-Identifier: Apache-2.0
"""`reshard.plan`: the planner in the user's own terms: strings, mappings, or jax's meshes and shardings."""

from __future__ import annotations

from collections.abc import Mapping
import re

from reshard.synthesis.mesh import Mesh, MeshError
from reshard.synthesis.plan import Plan
from reshard.synthesis.plan import plan as _plan
from reshard.synthesis.sharding import AxisRef, Sharding, ShardingError


def plan(source, target, *, mesh=None, shape: tuple[int, ...], dtype="float32", reduction: str = "sum") -> Plan:
    """Returns the cheapest chain of collectives that turns an array sharded as `source` into `target`.

    Args:
      source, target: Shardy text such as '[{"x"}, {}]', a `jax.sharding.PartitionSpec`, or a `NamedSharding`.
      mesh: a jax `Mesh` or `AbstractMesh`, a mapping {"x": 4, "y": 2}, the text "x=4,y=2" or Shardy's; may be left out
        where `source` is a `NamedSharding`.
      shape: the global shape, in elements.
      dtype: a numpy or jax dtype, or its name; "f32" and "int4" work too.
      reduction: what makes an array of partial sums along unreduced axes: sum, prod, min, max, and, or.
    Raises:
      MeshError, ShardingError: text that cannot be read, unknown axes, axes used twice, a wrong rank.
      NoPlanError: dimensions that do not divide.

    Example:
      >>> found = plan('[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4}, shape=(8, 8))
      >>> print(found.chain_text, found.bytes_received, found.bound_bytes)
      all_to_all x: dim 0 -> 1 48 48
    """
    on = _mesh(mesh if mesh is not None else getattr(source, "mesh", None))
    rank = len(shape)
    ends = _sharding(source, rank), _sharding(target, rank)
    return _plan(on, tuple(shape), bits_of(dtype), *ends, reduction=reduction)


def _mesh(mesh) -> Mesh:
    if mesh is None:
        raise MeshError('no mesh; pass mesh="x=4,y=2" or a NamedSharding')
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    sizes = mesh if isinstance(mesh, Mapping) else mesh.shape  # jax's Mesh and AbstractMesh
    return Mesh.of(dict(sizes))


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


_SHORT = {"f": "float", "i": "int", "s": "int", "u": "uint", "ui": "uint", "bf": "bfloat", "c": "complex"}


def bits_of(dtype) -> int:
    """Returns the bits of one element of a dtype; a bool counts as the byte that XLA stores.

    Example:
      >>> bits_of("bf16"), bits_of("int4"), bits_of("complex64"), bits_of(bool)
      (16, 4, 64, 8)
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    if name in ("bool", "i1", "pred"):
        return 8
    found = re.fullmatch(r"([a-z]+?)_?(\d+)(?:_?(?:e\d+m\d+)?(?:fn|b11|uz)*)?", name)
    word = found and _SHORT.get(found[1], found[1])
    if word not in ("float", "int", "uint", "bfloat", "complex"):
        raise ValueError(f"unknown dtype {name!r}; write a numpy name such as float32, or f32, bf16, i8, c64")
    return int(found[2])
