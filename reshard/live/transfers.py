# SPDX-License-Identifier: Apache-2.0
"""Transfers: whether and how each leaf moves, and its way in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding

from reshard.live.leaves import (
    LEAST_BITS,
    Ends,
    bits_of,
    devices_of,
    is_default_memory,
    placement_of,
    tile_bytes,
)
from reshard.live.ways import Question, Way, fastest
from reshard.planning.element_types import ElementTypeError, element_type
from reshard.planning.entry import _sharding as planned_sharding
from reshard.synthesis.layouts.refinement import NoPlanError
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs.exchange import TooManyPieces

STAYS, SHARES, MOVES, DEVICE_PUT = "stays", "shares buffers", "moves", "device_put"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One leaf.

    Attributes:
      path: the path in the tree, in jax's notation. source: None for a numpy array or a number.
      kind: "stays", "shares buffers" (of the source, under another sharding), "moves", or "device_put".
      reason: for "device_put", the reason why jax moves the leaf.
      ways: the way that is taken; before the leaf is scheduled, all possible ways.
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
    def chosen(self) -> Way:
        """Returns the way of a leaf of kind "moves"."""
        assert self.kind == MOVES
        return self.ways[0]

    @property
    def goal(self) -> jax.sharding.Sharding:
        """Returns the target of a leaf that is, or will be, on devices."""
        assert self.target is not None
        return self.target

    @property
    def source_bytes(self) -> int:
        return 0 if self.source is None else tile_bytes(self.dtype, self.source, self.shape)

    @property
    def target_bytes(self) -> int:
        return tile_bytes(self.dtype, self.target, self.shape)

    @property
    def peak_bytes(self) -> int:
        """Returns the bytes of this leaf that the busiest device holds, source and target included."""
        if self.way is not None:
            return self.way.peak_bytes
        return self.source_bytes + (self.target_bytes if self.kind == DEVICE_PUT else 0)

    @property
    def text(self) -> str:
        """Returns the way in words."""
        if self.kind == MOVES:
            return self.chosen.text
        return f"{self.kind}: {self.reason}" if self.reason else self.kind

    def to_dict(self) -> dict:
        way = self.way
        return {
            "path": self.path,
            "type": _type_text(self),
            "from": _sharding_text(self.source, self.shape),
            "from_mesh": mesh_text(self.source),
            "to": _sharding_text(self.target, self.shape),
            "to_mesh": mesh_text(self.target),
            "kind": self.kind,
            "chain": self.text,
            "bytes_received": way.bytes_received if way else 0 if self.kind != DEVICE_PUT else None,
            "bound_bytes": way.bound_bytes if way else 0 if self.kind != DEVICE_PUT else None,
            "time_us": way.time_s * 1e6 if way else None,
            "peak_bytes": self.peak_bytes,
        }


def same_as_before(leaves: Sequence, targets: Sequence) -> list[int | None]:
    """Returns for each leaf the number of an earlier leaf with the same array and the same target, else None."""
    first: dict[tuple, int] = {}
    found = []
    for number, (leaf, target) in enumerate(zip(leaves, targets)):
        at = first.setdefault((id(leaf), target), number) if isinstance(leaf, jax.Array) else number
        found.append(None if at == number else at)
    return found


def transfer_of(ends: Ends, topology: Topology | None, objective: str, same_as: int | None) -> Transfer:
    """Returns the transfer of a leaf, with its fastest way if the planner moves it."""
    ways: tuple[Way, ...] = ()
    kind, reason, question = STAYS, "", None
    target = ends.source if ends.target is None else ends.target
    if ends.target is not None and (ends.source != target or not _is_committed(ends.leaf)):
        kind, reason, question = _kind(ends, topology, objective)
    if kind == MOVES:
        try:
            ways = (fastest(question),)
        except (NoPlanError, TooManyPieces) as error:
            kind, reason = DEVICE_PUT, str(error)
    if kind == MOVES and not all(way.stages for way in ways):
        kind = SHARES
    return Transfer(ends.path, ends.dtype, ends.shape, ends.source, target, kind, reason, question, ways, same_as)


def _is_committed(leaf) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.committed


def _kind(ends: Ends, topology: Topology | None, objective: str) -> tuple[str, str, Question | None]:
    """Returns for a leaf that does not stay: its kind, the reason, and the question for the planner."""
    reason = _reason_to_put(ends)
    if reason:
        return DEVICE_PUT, reason, None
    source, target = (placement_of(each, ends.shape) for each in (ends.source, ends.target))
    if source.places_like(target):
        return SHARES, "", None
    if not ends.shape:
        return DEVICE_PUT, "a scalar", None
    bits = bits_of(ends.dtype)
    assert bits is not None  # by _reason_of_type
    return MOVES, "", Question(ends.shape, bits, source, target, topology, objective)


def _reason_to_put(ends: Ends) -> str:
    """Returns the reason why jax.device_put moves a leaf; empty if the planner moves it."""
    source, target = ends.source, ends.target
    if source is None:
        return "held by the host"
    if jnp.issubdtype(ends.dtype, jax.dtypes.extended):
        return f"{ends.dtype} has no elements that a program moves"
    if not all(map(is_default_memory, (ends.source, ends.target))):
        return "in another memory of the device"
    if getattr(ends.leaf, "weak_type", False):
        return "a weak type"
    if 0 in ends.shape:
        return "no elements"
    assert target is not None  # such a leaf stays
    if len({device.platform for each in (source, target) for device in each.device_set}) > 1:
        return "between platforms"
    if any(getattr(getattr(each, "spec", None), "unreduced", ()) for each in (ends.source, ends.target)):
        return "partial sums"
    return _reason_of_type(ends.dtype)


def _reason_of_type(dtype) -> str:
    bits = bits_of(dtype)
    if bits is None:
        return f"{dtype} is not known to the planner"
    return f"{dtype} goes by way of the host" if bits < LEAST_BITS else ""


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
        kind = "" if is_default_memory(sharding) else f" in {sharding.memory_kind}"
        return f"{planned_sharding(sharding, max(len(shape), len(sharding.spec)))}{kind}"
    if isinstance(sharding, SingleDeviceSharding):
        return f"device {next(iter(sharding.device_set)).id}"
    return type(sharding).__name__


def mesh_text(sharding) -> str:
    if not isinstance(sharding, NamedSharding):
        return ""
    axes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    ids = [device.id for device in devices_of(sharding)]
    first = sorted(device.id for device in jax.devices())[: len(ids)] if ids == sorted(ids) else []
    return axes if ids == first else f"{axes} over {ids}"
