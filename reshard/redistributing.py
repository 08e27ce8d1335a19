# SPDX-License-Identifier: Apache-2.0
"""`reshard.redistribute`: live arrays, whole trees of them, from the shardings they have to other ones.

    params = reshard.redistribute(params, shardings, memory_limit="8GiB", donate=True)
    print(reshard.plan_tree(params, shardings))     # what it would do

Each leaf that moves goes the way that the planner finds; equal leaves share a compiled program, small ones a launch; the
order of all of them keeps one memory limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
import functools
import json
import logging
import math
import os
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
import numpy as np

from reshard import agreement
from reshard.byte_sizes import byte_size
from reshard.dialect_utils.interrupts import HeldBack
from reshard.element_types import ElementTypeError, element_type
from reshard.live_programs import Move, moved, rewrapped
from reshard.live_ways import Placement, Question, Way, by_peak, fastest
from reshard.planning import _sharding as planned_sharding
from reshard.progress import shown
from reshard.scheduling import Going, Job, LimitError, scheduled
from reshard.synthesis.exchange import TooManyPieces
from reshard.synthesis.problem import NoPlanError
from reshard.synthesis.request import OBJECTIVES
from reshard.synthesis.sharding import Sharding, ShardingError
from reshard.synthesis.topology import Topology
from reshard.tools import text_table

SCHEMA = "reshard.schedule/1"
LEAST_BITS = 4  # whatever XLA on CPU computes with smaller elements damages its memory, jax.device_put between layouts too

STAYS, SHARES, MOVES, DEVICE_PUT = "stays", "shares buffers", "moves", "device_put"

_log = logging.getLogger("reshard.redistribute")


class RedistributeError(ValueError):
    """A leaf, a sharding or a limit that does not serve; the message is one line, and nothing has moved."""


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
    """Returns the tree with each array in its new sharding, bit for bit the same.

    Args:
      tree: a pytree of jax arrays; numpy arrays and numbers are put on the devices.
      shardings: a pytree of the same structure, or a prefix of it, of `NamedSharding`s or other jax shardings, devices, or
        `PartitionSpec`s, which are on the mesh of `jax.set_mesh`, or else on that of the array. None leaves arrays as they are.
      memory_limit: the most that a device may hold at a time of the sources, the targets and what is in between; bytes or text
        such as "2GiB". Where arrays do not fit at once they go one after the other, and where one does not, in parts.
      donate: whether sources may go as soon as their targets are there.
      progress: show how far it is: None if it takes longer than a second, True, or False.
      topology, objective: as `reshard.plan` takes them.
    Returns: arrays that are where they are wanted are returned as they are; if just the names differ, with the same buffers.
    Raises:
      RedistributeError: a tree or a sharding that does not serve; a memory limit that no order keeps, with the least one.
        Nothing has moved then.
      DisagreementError: the processes of a job of `jax.distributed` have other schedules; nothing has moved in any of them.
    If it is interrupted, the sources are intact, but for those that were donated and are done: a note on the exception names
    them, and its attribute `moved` has their new arrays by path.
    """
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree_util.tree_leaves(tree)):
        _refuse_shapes(*_flattened(tree)[:2])
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
    """Returns what `redistribute` does with these arguments; nothing moves, nothing is compiled.

    Args:
      tree: arrays, or `jax.ShapeDtypeStruct`s that have a sharding. All others: see `redistribute`.
    Raises: RedistributeError, as `redistribute` does.
    """
    if objective not in OBJECTIVES:
        raise RedistributeError(f'unknown objective "{objective}"; choose from {", ".join(OBJECTIVES)}')
    network = topology if topology is None or isinstance(topology, Topology) else Topology.parse(os.fspath(topology))
    limit = None if memory_limit is None else byte_size(memory_limit)
    paths, leaves, structure = _flattened(tree)
    targets = _targets(shardings, tree, leaves)
    ends = [_ends(*each) for each in zip(paths, leaves, targets)]
    same_as = _same_as(leaves, targets)
    transfers = tuple(_transfer(end, network, objective, first) for end, first in zip(ends, same_as))
    return _scheduled(transfers, _held(leaves, transfers), _arrays_used_again(leaves), structure, limit, donate)


# ---------------------------------------------------------------------------------------------------------------------
# What a schedule says
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transfer:
    """One leaf.

    Attributes:
      path: in the tree, as jax writes it. source: None for what the host holds.
      kind: "stays", "shares buffers" (of the source, under another sharding), "moves", or "device_put".
      reason: why it is put by jax. ways: the one that it goes, or, before it is scheduled, those that it can go.
      same_as: the number of an earlier leaf that is the same array with the same target.
    """

    path: str
    dtype: Any
    shape: tuple[int, ...]
    source: jax.sharding.Sharding | None
    target: jax.sharding.Sharding | None
    kind: str
    reason: str = ""
    question: Question | None = None
    ways: tuple[Way, ...] = ()
    same_as: int | None = None

    @property
    def way(self) -> Way | None:
        return self.ways[0] if self.kind == MOVES else None

    @property
    def source_bytes(self) -> int:
        return 0 if self.source is None else _tile_bytes(self.dtype, self.source, self.shape)

    @property
    def target_bytes(self) -> int:
        return _tile_bytes(self.dtype, self.target, self.shape)

    @property
    def peak_bytes(self) -> int:
        """Returns what the busiest device holds of this leaf, source and target included."""
        if self.way is not None:
            return self.way.peak_bytes
        return self.source_bytes + (self.target_bytes if self.kind == DEVICE_PUT else 0)

    @property
    def text(self) -> str:
        """Returns the way in words."""
        if self.kind == MOVES:
            return self.way.text
        return f"{self.kind}: {self.reason}" if self.reason else self.kind

    def to_dict(self) -> dict:
        way = self.way
        return {
            "path": self.path,
            "type": _type_text(self),
            "from": _sharding_text(self.source, self.shape),
            "from_mesh": _mesh_text(self.source),
            "to": _sharding_text(self.target, self.shape),
            "to_mesh": _mesh_text(self.target),
            "kind": self.kind,
            "chain": self.text,
            "bytes_received": way.bytes_received if way else 0 if self.kind != DEVICE_PUT else None,
            "bound_bytes": way.bound_bytes if way else 0 if self.kind != DEVICE_PUT else None,
            "time_us": way.time_s * 1e6 if way else None,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a redistribution does: each leaf's way, and which leaves go together, one batch after the other.

    Attributes:
      transfers: the leaves in the order of the tree. batches: numbers of leaves.
      peak_bytes: the most that a device holds at a time of sources, targets and temporaries, as modelled.
    """

    transfers: tuple[Transfer, ...]
    batches: tuple[tuple[int, ...], ...]
    peak_bytes: int
    memory_limit: int | None
    donate: bool
    _structure: Any = field(repr=False)

    def run(self, tree, *, progress: bool | None = None):
        """Returns the tree redistributed; it is one like that which was planned for. See `redistribute`."""
        paths, leaves, structure = _flattened(tree)
        if structure != self._structure:
            raise RedistributeError(f"the schedule is for {self._structure}, not for {structure}; plan the tree anew")
        _refuse_shapes(paths, leaves)
        for leaf, transfer in zip(leaves, self.transfers):
            _check_leaf(leaf, transfer)
        self._agree()
        return _Run(self, leaves).results(progress)

    def _agree(self) -> None:
        """Makes sure, once for each schedule, that all processes which own some of the devices follow the same."""
        ends = (end for each in self.transfers for end in (each.source, each.target) if end is not None)
        devices = {device for end in ends for device in end.device_set}
        if agreement.members_of(devices):
            claim = agreement.Claim("redistribute", json.dumps(self.to_dict(), indent=1), agreement.versions(), "schedule")
            agreement.require(devices, claim)

    @property
    def bytes_received(self) -> int:
        """Returns the bytes that arrive at the busiest device, at most: the sum over the leaves that the planner moves."""
        return sum(each.way.bytes_received for each in self._moving)

    @property
    def bound_bytes(self) -> int:
        """Returns the sum over the same leaves of what the busiest device must receive whatever the method."""
        return sum(each.way.bound_bytes for each in self._moving)

    @property
    def _moving(self) -> list[Transfer]:
        return [each for each in self.transfers if each.kind == MOVES and each.same_as is None]

    def to_dict(self) -> dict:
        """Returns the schedule as plain data, schema `reshard.schedule/1`."""
        return {
            "schema": SCHEMA,
            "leaves": [each.to_dict() for each in self.transfers],
            "batches": [[self.transfers[number].path for number in batch] for batch in self.batches],
            "totals": {
                "bytes_received": self.bytes_received,
                "bound_bytes": self.bound_bytes,
                "peak_bytes": self.peak_bytes,
            },
            "memory_limit": self.memory_limit,
            "donate": self.donate,
        }

    def text(self) -> str:
        """Returns a table with a row for each kind of leaf, and the totals."""
        alike: dict[tuple, list[Transfer]] = {}
        for each in self.transfers:
            row = each.to_dict()
            alike.setdefault(tuple(row[name] for name in row if name != "path"), []).append(each)
        meshes = sorted({text for each in self.transfers for text in map(_mesh_text, (each.source, each.target)) if text})
        rows = [_cells(group, names_meshes=len(meshes) > 1) for group in alike.values()]
        return "\n".join([text_table.table(_HEADINGS, rows, "lllllrrr"), "", self._summary(meshes)])

    def _summary(self, meshes: list[str]) -> str:
        limit = "no limit" if self.memory_limit is None else f"limit {self.memory_limit:,}"
        on = f" on {meshes[0] if len(meshes) == 1 else f'{len(meshes)} meshes'}" if meshes else ""
        return (
            f"leaves: {len(self.transfers)}{on}; batches: {len(self.batches)}; {'donated' if self.donate else 'sources kept'}\n"
            f"received {self.bytes_received:,} bytes per device, bound {self.bound_bytes:,}; "
            f"peak {self.peak_bytes:,}, {limit}"
        )

    def __str__(self) -> str:
        return self.text()


_HEADINGS = ("leaves", "type", "from", "to", "way", "received", "bound", "peak")


def _cells(group: Sequence[Transfer], names_meshes: bool) -> tuple[str, ...]:
    row = group[0].to_dict()
    name = row["path"] if len(group) == 1 else f"{row['path']} and {len(group) - 1} more"
    ends = (
        f"{row[end]} on {row[f'{end}_mesh']}" if names_meshes and row[f"{end}_mesh"] else row[end] for end in ("from", "to")
    )
    numbers = ("-" if row[key] is None else f"{row[key]:,}" for key in ("bytes_received", "bound_bytes", "peak_bytes"))
    return (name, row["type"], *ends, row["chain"], *numbers)


def _type_text(transfer: Transfer) -> str:
    try:
        name = element_type(transfer.dtype).name
    except ElementTypeError:
        name = str(transfer.dtype)
    return f"{name}[{','.join(map(str, transfer.shape))}]"


def _sharding_text(sharding, shape: tuple[int, ...]) -> str:
    if sharding is None:
        return "host"
    if isinstance(sharding, NamedSharding):
        kind = "" if _is_default_memory(sharding) else f" in {sharding.memory_kind}"
        return f"{planned_sharding(sharding, max(len(shape), len(sharding.spec)))}{kind}"
    if isinstance(sharding, SingleDeviceSharding):
        return f"device {next(iter(sharding.device_set)).id}"
    return type(sharding).__name__


def _mesh_text(sharding) -> str:
    if not isinstance(sharding, NamedSharding):
        return ""
    axes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    ids = [device.id for device in sharding.mesh.devices.flat]
    first = sorted(device.id for device in jax.devices())[: len(ids)] if ids == sorted(ids) else []
    return axes if ids == first else f"{axes} over {ids}"


# ---------------------------------------------------------------------------------------------------------------------
# Leaves and where they go
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ends:
    """A leaf before anything is planned; `target` is None where it stays as it is."""

    path: str
    leaf: Any
    target: jax.sharding.Sharding | None

    @property
    def source(self) -> jax.sharding.Sharding | None:
        return self.leaf.sharding if _is_placed(self.leaf) else None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.leaf))

    @property
    def dtype(self):
        return self.leaf.dtype if hasattr(self.leaf, "dtype") else jax.dtypes.canonicalize_dtype(np.asarray(self.leaf).dtype)


def _is_placed(leaf) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def _flattened(tree) -> tuple[list[str], list, Any]:
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) or "the array" for path, _ in found], [leaf for _, leaf in found], structure


def _targets(shardings, tree, leaves: Sequence) -> list:
    """Returns the entry of `shardings` for each leaf."""

    def is_leaf(entry) -> bool:
        return entry is None or isinstance(entry, (PartitionSpec, jax.sharding.Sharding, jax.Device))

    try:
        spread = jax.tree_util.tree_map(
            lambda entry, part: [entry] * len(jax.tree_util.tree_leaves(part)), shardings, tree, is_leaf=is_leaf
        )
    except ValueError as error:
        raise RedistributeError(f"shardings are no prefix of the tree: {str(error).splitlines()[0]}") from None
    entries = jax.tree_util.tree_leaves(spread, is_leaf=is_leaf)
    assert len(entries) == len(leaves)
    return entries


def _ends(path: str, leaf, entry) -> _Ends:
    if isinstance(leaf, jax.core.Tracer):
        raise RedistributeError(f"{path} is traced; redistribute takes live arrays, inside jit use reshard.jit")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise RedistributeError(f"{path} has been deleted or donated; pass a live array")
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None:
        raise RedistributeError(f"{path} is a shape without a sharding; pass jax.ShapeDtypeStruct(shape, dtype, sharding=...)")
    if isinstance(leaf, jax.ShapeDtypeStruct) and isinstance(leaf.sharding, NamedSharding):
        _read(path, leaf.sharding, len(leaf.shape))
    target = _as_sharding(path, leaf, entry)
    found = _Ends(path, leaf, target)
    if target is not None:
        _check_target(found)
    return found


def _as_sharding(path: str, leaf, entry) -> jax.sharding.Sharding | None:
    if entry is None:
        return None
    if isinstance(entry, jax.Device):
        return SingleDeviceSharding(entry)
    if isinstance(entry, PartitionSpec):
        return NamedSharding(_mesh_for(path, leaf, entry), entry)
    if not isinstance(entry, jax.sharding.Sharding):
        raise RedistributeError(f"{path}: {entry!r} is no sharding; pass a NamedSharding, a PartitionSpec or a device")
    if isinstance(entry, NamedSharding) and not isinstance(entry.mesh, jax.sharding.Mesh):
        raise RedistributeError(f"{path}: {entry.mesh} has no devices; pass a NamedSharding on a jax.sharding.Mesh")
    return entry


def _mesh_for(path: str, leaf, spec: PartitionSpec) -> jax.sharding.Mesh:
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    source = leaf.sharding if _is_placed(leaf) else None
    if not isinstance(source, NamedSharding):
        raise RedistributeError(f"{path}: {spec} is on no mesh; pass a NamedSharding, or call it under jax.set_mesh")
    return source.mesh


def _read(path: str, sharding: NamedSharding, rank: int) -> Sharding:
    try:
        return planned_sharding(sharding, rank)
    except ShardingError as error:
        raise RedistributeError(f"{path}: {error}") from None


def _check_target(ends: _Ends) -> None:
    shape, target = list(ends.shape), ends.target
    if not isinstance(target, NamedSharding):
        target.shard_shape(ends.shape)
        return
    if len(target.spec) > len(shape):
        raise RedistributeError(
            f"{ends.path} of shape {shape} cannot be sharded as {target.spec}, which has {len(target.spec)} entries; "
            "write one for each dimension"
        )
    for dim, axes in enumerate(_read(ends.path, target, len(shape)).dims):
        shards = math.prod(target.mesh.shape[axis.name] for axis in axes)
        if shape[dim] % shards:
            raise RedistributeError(
                f"{ends.path}: dimension {dim} of size {shape[dim]} does not divide into the {shards} shards of {target.spec}; "
                "jax holds no such array, pad it or shard another dimension"
            )


def _same_as(leaves: Sequence, targets: Sequence) -> list[int | None]:
    """Returns for each leaf the number of an earlier one that is the same array with the same target."""
    first: dict[tuple, int] = {}
    found = []
    for number, (leaf, target) in enumerate(zip(leaves, targets)):
        at = first.setdefault((id(leaf), target), number) if isinstance(leaf, jax.Array) else number
        found.append(None if at == number else at)
    return found


def _transfer(ends: _Ends, topology: Topology | None, objective: str, same_as: int | None) -> Transfer:
    """Returns a leaf with the way that is the fastest."""
    kind, reason, question, ways = STAYS, "", None, ()
    target = ends.source if ends.target is None else ends.target
    if ends.target is not None and (ends.source != target or not _is_committed(ends.leaf)):
        kind, reason, question = _kind(ends, topology, objective)
    if kind == MOVES:
        try:
            ways = (fastest(question),)
        except (NoPlanError, TooManyPieces) as error:
            kind, reason = DEVICE_PUT, str(error)
    if kind == MOVES and not ways[0].stages:
        kind = SHARES
    return Transfer(ends.path, ends.dtype, ends.shape, ends.source, target, kind, reason, question, ways, same_as)


def _is_committed(leaf) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.committed


def _kind(ends: _Ends, topology: Topology | None, objective: str) -> tuple[str, str, Question | None]:
    """Returns what becomes of a leaf that does not stay: the kind, the reason, and what to ask the planner."""
    reason = _reason_to_put(ends)
    if reason:
        return DEVICE_PUT, reason, None
    source, target = (_placement(each, ends.shape) for each in (ends.source, ends.target))
    if source.places_like(target):
        return SHARES, "", None
    if not ends.shape:
        return DEVICE_PUT, "a scalar", None
    return MOVES, "", Question(ends.shape, _bits(ends.dtype), source, target, topology, objective)


def _reason_to_put(ends: _Ends) -> str:
    """Returns why a leaf is put by jax, "" if it is not."""
    if ends.source is None:
        return "held by the host"
    if jax.dtypes.issubdtype(ends.dtype, jax.dtypes.extended):
        return f"{ends.dtype} has no elements that a program moves"
    if not all(map(_is_default_memory, (ends.source, ends.target))):
        return "in another memory of the device"
    if getattr(ends.leaf, "weak_type", False):
        return "a weak type"
    if 0 in ends.shape:
        return "no elements"
    if len({device.platform for each in (ends.source, ends.target) for device in each.device_set}) > 1:
        return "between platforms"
    if any(getattr(getattr(each, "spec", None), "unreduced", ()) for each in (ends.source, ends.target)):
        return "partial sums"
    return _reason_of_type(ends.dtype)


def _reason_of_type(dtype) -> str:
    bits = _bits(dtype)
    if bits is None:
        return f"{dtype} is not known to the planner"
    return f"{dtype} goes by way of the host" if bits < LEAST_BITS else ""


@functools.lru_cache(maxsize=256)
def _bits(dtype) -> int | None:
    """Returns the bits of an element, None of a type that the planner does not know."""
    try:
        return element_type(dtype).bits
    except ElementTypeError:
        return None


def _is_default_memory(sharding) -> bool:
    kind = sharding.memory_kind
    return kind is None or kind == next(iter(sharding.device_set)).default_memory().kind


@functools.lru_cache(maxsize=4096)
def _placement(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Placement:
    """Returns where a sharding puts an array of a shape."""
    box_of = {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(index, shape))
        for device, index in sharding.devices_indices_map(shape).items()
    }
    if isinstance(sharding, NamedSharding):
        ids = tuple(device.id for device in sharding.mesh.devices.flat)
        axes = tuple((str(name), int(size)) for name, size in sharding.mesh.shape.items())
        return Placement(ids, tuple(map(box_of.get, ids)), axes, planned_sharding(sharding, len(shape)))
    ids = tuple(sorted(box_of))
    if len(ids) == 1:
        return Placement(ids, (box_of[ids[0]],), (), Sharding(((),) * len(shape)))
    return Placement(ids, tuple(map(box_of.get, ids)))


@functools.lru_cache(maxsize=4096)
def _tile_bytes(dtype, sharding, shape: tuple[int, ...]) -> int:
    bits = _bits(dtype) or 8 * dtype.itemsize
    return -(-math.prod(sharding.shard_shape(shape)) * bits // 8)


# ---------------------------------------------------------------------------------------------------------------------
# In which order
# ---------------------------------------------------------------------------------------------------------------------


def _ids(sharding) -> tuple[int, ...]:
    return () if sharding is None else tuple(sorted(device.id for device in sharding.device_set))


def _held(leaves: Sequence, transfers: Sequence[Transfer]) -> dict[int, int]:
    """Returns the bytes that each device holds of the sources, arrays that occur twice counted once."""
    held: Counter[int] = Counter()
    seen = set()
    for leaf, transfer in zip(leaves, transfers):
        if isinstance(leaf, jax.Array) and id(leaf) in seen:
            continue
        seen.add(id(leaf))
        held.update(dict.fromkeys(_ids(transfer.source), transfer.source_bytes))
    return dict(held)


def _arrays_used_again(leaves: Sequence) -> set[int]:
    """Returns the numbers of the leaves whose array occurs more than once."""
    uses = Counter(id(leaf) for leaf in leaves if isinstance(leaf, jax.Array))
    return {number for number, leaf in enumerate(leaves) if uses[id(leaf)] > 1}


def _scheduled(transfers, held, used_again: set[int], structure, limit: int | None, donate: bool) -> Schedule:
    """Returns the schedule; where the fastest ways do not fit a limit, those with smaller peaks are looked for too.

    Raises: RedistributeError if none fits.
    """
    going = [i for i, each in enumerate(transfers) if each.kind in (MOVES, DEVICE_PUT) and each.same_as is None]
    frees = {i for i in going if donate and i not in used_again and transfers[i].source is not None}
    try:
        found = scheduled(_jobs(transfers, going, frees), held, limit)
    except LimitError:
        transfers = _with_small_ways(transfers, going)
        try:
            found = scheduled(_jobs(transfers, going, frees), held, limit)
        except LimitError as error:
            raise RedistributeError(f"memory limit: {error}") from None
    if limit is not None and found.peak_bytes > limit:
        least = found.peak_bytes
        raise RedistributeError(
            f"memory limit: the sources alone are {least:,} bytes on a device, limit {limit:,}; raise the limit to {least}"
        )
    batches = tuple(tuple(each.job for each in batch) for batch in found.batches)
    return Schedule(_with_ways(transfers, found.batches), batches, found.peak_bytes, limit, donate, structure)


def _jobs(transfers: Sequence[Transfer], going: Sequence[int], frees: set[int]) -> list[Job]:
    kinds: dict[Hashable, int] = {}
    companies: dict[Hashable, int] = {}
    jobs = []
    for number in going:
        each = transfers[number]
        kind = (each.question, str(each.dtype)) if each.kind == MOVES else ("put", number)
        company = tuple(stage.device_ids for stage in each.way.stages) if each.kind == MOVES else ("put", number)
        jobs.append(
            Job(
                number,
                kind=kinds.setdefault(kind, len(kinds)),
                company=companies.setdefault(company, len(companies)),
                source_bytes=each.source_bytes,
                target_bytes=each.target_bytes,
                sources=_ids(each.source),
                targets=_ids(each.target),
                peaks=tuple(way.peak_bytes for way in each.ways) or (each.peak_bytes,),
                frees=number in frees,
            )
        )
    return jobs


def _with_small_ways(transfers: Sequence[Transfer], going: Sequence[int]) -> tuple[Transfer, ...]:
    """Returns the transfers with every way that needs less memory than a faster one."""
    found = list(transfers)
    for number in going:
        each = found[number]
        if each.kind == MOVES:
            smaller = tuple(way for way in by_peak(each.question) if way.peak_bytes < each.way.peak_bytes)
            found[number] = replace(each, ways=(each.way, *smaller))
    return tuple(found)


def _with_ways(transfers: Sequence[Transfer], batches: Sequence[Sequence[Going]]) -> tuple[Transfer, ...]:
    """Returns the transfers with the one way that each goes."""
    found = list(transfers)
    for going in (each for batch in batches for each in batch):
        if found[going.job].kind == MOVES:
            found[going.job] = replace(found[going.job], ways=(found[going.job].ways[going.way],))
    for number, each in enumerate(found):
        if each.same_as is not None:
            found[number] = replace(each, ways=found[each.same_as].ways)
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------------
# Running it
# ---------------------------------------------------------------------------------------------------------------------


def _refuse_shapes(paths: Sequence[str], leaves: Sequence) -> None:
    """Raises: RedistributeError if a leaf has no elements to move."""
    for path, leaf in zip(paths, leaves):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise RedistributeError(f"{path} is a shape without elements; pass an array, or ask plan_tree what would be done")


def _check_leaf(leaf, transfer: Transfer) -> None:
    """Raises: RedistributeError if a leaf is not the one that was planned for."""
    found = _Ends(transfer.path, leaf, None)
    planned, given = ((each.source, each.shape, str(each.dtype)) for each in (transfer, found))
    if planned != given:
        raise RedistributeError(f"{transfer.path} is {given}, the schedule is for {planned}; plan the tree anew")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise RedistributeError(f"{transfer.path} has been deleted or donated; pass a live array")


class _Run:
    """One run of a schedule: `moved` has the new arrays so far, `consumed` the donated leaves that are gone, by number."""

    def __init__(self, schedule: Schedule, leaves: Sequence):
        self.schedule = schedule
        self.leaves = leaves
        self.moved: dict[int, Any] = {}
        self.consumed: list[int] = []
        self.pending: list[tuple[int, ...]] = []
        transfers = schedule.transfers
        self.buffers = [_buffer(leaf) for leaf in leaves] if schedule.donate else []
        uses = Counter(self.buffers)
        self.keeps = {i for i, buffer in enumerate(self.buffers) if uses[buffer] > 1}
        self.keeps |= {i for i, each in enumerate(transfers) if each.kind in (STAYS, SHARES)}
        self.waits = 0 if schedule.donate or schedule.memory_limit is not None else 1

    def results(self, progress: bool | None):
        """Returns the tree of new arrays."""
        transfers, batches = self.schedule.transfers, self.schedule.batches
        sizes = [sum(transfers[i].target_bytes * len(transfers[i].target.device_set) for i in batch) for batch in batches]
        try:
            for batch in shown(batches, sizes, "redistribute", progress):
                self._launch(batch)
                self._settle(self.waits)
            _log.info("leaves moved: %d, batches: %d, peak %d bytes", len(self.moved), len(batches), self.schedule.peak_bytes)
            results = [self._result(number) for number in range(len(transfers))]
            self._free_used_again()
            return jax.tree_util.tree_unflatten(self.schedule._structure, results)
        except BaseException as error:
            self._explain(error)
            raise

    def _launch(self, batch: tuple[int, ...]) -> None:
        transfers = self.schedule.transfers
        first = transfers[batch[0]]
        if first.kind == DEVICE_PUT:
            with HeldBack():  # between a donated source that is gone and the array that takes its place
                self.moved[batch[0]] = self._put(batch[0])
        else:
            self.moved |= zip(batch, moved([_move(self.leaves[i], transfers[i]) for i in batch]))
        self.pending.append(batch)

    def _put(self, number: int):
        leaf = self.leaves[number]
        is_donated = self._is_freed(number)
        if isinstance(leaf, jax.Array) and leaf.is_fully_addressable and (_bits(leaf.dtype) or LEAST_BITS) < LEAST_BITS:
            return jax.device_put(np.asarray(leaf), self.schedule.transfers[number].target)
        result = jax.device_put(leaf, self.schedule.transfers[number].target, donate=is_donated)
        if is_donated:
            self.consumed.append(number)
        return result

    def _is_freed(self, number: int) -> bool:
        return self.schedule.donate and number not in self.keeps and isinstance(self.leaves[number], jax.Array)

    def _settle(self, waits: int) -> None:
        """Waits until at most `waits` batches run; the sources of those that are done go."""
        while len(self.pending) > waits:
            batch = self.pending[0]
            jax.block_until_ready([self.moved[number] for number in batch])
            for number in batch:
                if self._is_freed(number) and self.schedule.transfers[number].kind == MOVES:
                    self.leaves[number].delete()
                    self.consumed.append(number)
            self.pending.pop(0)

    def _first(self, number: int) -> int:
        """Returns the leaf whose new array a leaf has too, itself mostly."""
        same_as = self.schedule.transfers[number].same_as
        return number if same_as is None else self._first(same_as)

    def _result(self, number: int):
        number = self._first(number)
        transfer = self.schedule.transfers[number]
        if transfer.kind == STAYS:
            return self.leaves[number]
        if transfer.kind == SHARES:
            return rewrapped(self.leaves[number], transfer.target)
        return self.moved[number]

    def _free_used_again(self) -> None:
        """Lets donated buffers go that several leaves needed, unless a result has them."""
        if not self.schedule.donate:
            return
        shared = (STAYS, SHARES, DEVICE_PUT)
        kept = {buffer for buffer, each in zip(self.buffers, self.schedule.transfers) if each.kind in shared}
        for leaf, buffer in zip(self.leaves, self.buffers):
            if isinstance(leaf, jax.Array) and buffer not in kept and not leaf.is_deleted():
                leaf.delete()

    def _explain(self, error: BaseException) -> None:
        """Adds to an exception what has been consumed, and the arrays that took its place."""
        paths = [each.path for each in self.schedule.transfers]
        gone = [number for number, leaf in enumerate(self.leaves) if number in self.consumed or _is_deleted(leaf)]
        firsts = {number: self._first(number) for number in gone}
        error.moved = {paths[number]: self.moved[first] for number, first in firsts.items() if first in self.moved}
        if not gone:
            error.add_note("reshard.redistribute stopped; all sources are intact")
            return
        names = ", ".join(paths[number] for number in gone)
        error.add_note(
            f"reshard.redistribute stopped after {len(gone)} donated leaves, whose sources are consumed: {names}; "
            "their new arrays are in the attribute `moved` of this exception, by path; all other sources are intact"
        )


def _is_deleted(leaf) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _buffer(leaf) -> Hashable:
    """Returns what is equal for arrays that share buffers, under other shardings it may be."""
    if not isinstance(leaf, jax.Array) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return id(leaf)
    shards = leaf.addressable_shards
    return ("at", shards[0].device.id, shards[0].data.unsafe_buffer_pointer()) if shards else id(leaf)


def _move(array: jax.Array, transfer: Transfer) -> Move:
    key = (transfer.question, str(transfer.dtype), transfer.way.text)
    return Move(array, transfer.target, transfer.way.stages, key)
