# SPDX-License-Identifier: Apache-2.0
"""The tiles of values on one device, and which tiles are at hand for a value: in several layouts, of several values.

%w            [{"x"}, {}]      its own tile
%g = %w       [{}, {}]         gathered for an op
%c = %w       [{}, {"x"}]      behind a constraint: a part of what was gathered, in place of an all_to_all
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from reshard.synthesis.layouts.layout import whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..ir.diagnostics import error_at
from ..ir.ops import bits_of
from ..platform.bindings import ir
from ..shardings.sdy_shardings import sharding_from_attr
from ..tile_rules import local_rules
from ..tile_rules.local_rules import Axes, Dims
from .refusals import HINT

NEAR = 64  # ops behind which a large tile that is used once more would be in memory for long


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a value on one device.

    Attributes:
      value: the tile. dims: its layout.
      partial: the axes along which tiles are partial results of `reduction`.
      repeated: the dimensions along which all elements are equal, if an op broadcast_in_dim makes the tile.
    """

    value: ir.Value
    dims: Dims
    partial: Axes = ()
    reduction: str = "sum"
    repeated: tuple[int, ...] = ()


Key = ir.Value | tuple[ir.Value, Dims]
Scope = dict[Key, Tile]  # by value: in its own layout; by value and layout: in that one


@dataclass(slots=True)
class _Held:
    """A tile that is at hand: its key in a scope, and how many ops were written when it was made or last asked for."""

    key: Key
    since: int


def dims_of(attr: ir.Attribute | None, kind: ir.Type, mesh: Mesh) -> Dims:
    if not isinstance(kind, ir.RankedTensorType):
        return ()
    if attr is None or not any(sharding_from_attr(attr).dims):
        return ((),) * ir.RankedTensorType(kind).rank
    return whole_factors(mesh, sharding_from_attr(attr))


def sharding_of(mesh: Mesh, dims: Dims, partial: Axes = ()) -> Sharding:
    def reference(axis) -> AxisRef:
        is_whole = axis.pre == 1 and axis.size == mesh.axis_size(axis.axis)
        return AxisRef(axis.axis) if is_whole else AxisRef(axis.axis, axis.pre, axis.size)

    return Sharding(tuple(tuple(map(reference, axes)) for axes in dims), unreduced=tuple(map(reference, partial)))


def tile_type(kind: ir.Type, dims: Dims, op) -> ir.Type:
    if not isinstance(kind, ir.RankedTensorType) or not ir.RankedTensorType(kind).has_static_shape:
        raise error_at(op, f"emit=local has no tiles of a value of type {kind}", HINT)
    tensor = ir.RankedTensorType(kind)
    shape = [local_rules.tile_size(*each) for each in zip(tensor.shape, dims, strict=True)]
    return ir.RankedTensorType.get(shape, tensor.element_type)


def grows(tile: Tile, dims: Dims) -> bool:
    """Returns whether a tile is larger in another layout."""
    held, wanted = (math.prod(map(local_rules.shards, each)) for each in (tile.dims, dims))
    return not tile.partial and wanted < held


def tile_bytes(kind: ir.Type, dims: Dims) -> float:
    """Returns the bytes of a tile of a value of type `kind`; 0 for one of which nobody knows."""
    if not isinstance(kind, ir.RankedTensorType) or not ir.RankedTensorType(kind).has_static_shape:
        return 0.0
    shape = ir.RankedTensorType(kind).shape
    try:
        bits = bits_of(kind)
    except ValueError:  # a quantized type
        return 0.0
    return bits * math.prod(local_rules.tile_size(*each) for each in zip(shape, dims, strict=True)) / 8


def repeated_by(op: ir.Operation) -> tuple[int, ...]:
    """Returns the dimensions that an op of the whole array repeats; none for another op than a broadcast_in_dim.

    A dimension of size 1 before and behind it is not repeated: it may be split, so that one device has the element.
    """
    if op.name != "stablehlo.broadcast_in_dim":
        return ()
    taken, made = (ir.RankedTensorType(each.type) for each in (op.operands[0], op.results[0]))
    along = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
    kept = {dim for dim, size in zip(along, taken.shape, strict=True) if size == made.shape[dim]}
    return tuple(dim for dim in range(made.rank) if dim not in kept)


def is_broadcast_to(tile: Tile, dims: Dims) -> bool:
    """Returns whether what a tile repeats can be broadcast to another layout as well: no element moves."""
    if not tile.repeated or tile.partial:
        return False
    pairs = enumerate(zip(tile.dims, dims, strict=True))
    return all(before == after or dim in tile.repeated for dim, (before, after) in pairs)


@dataclass
class TilesAtHand:
    """The tiles of which a scope has the elements of a value, by value and layout.

    State: values with the same elements share an entry of `_held`; `_far` are tiles that would be kept for longer than
    without another use.

    Attributes:
      ops_written: how many so far. spare_bytes: of large tiles that may be kept for later.
    """

    ops_written: int = 0
    spare_bytes: float = 0.0
    _held: dict[ir.Value, dict[Dims, list[_Held]]] = field(default_factory=dict)
    _far: set[ir.Value] = field(default_factory=set)

    def others(self, value: ir.Value, scope: Scope) -> Iterator[Tile]:
        """Yields the tiles with the elements of a value, no partial sums, that may be used in place of its own.

        Those that are larger and were made or used long ago count as far as there are bytes to spare.
        """
        own = scope[value]
        for dims, held in self._held.get(value, {}).items():
            each = _visible(held, scope)
            if each is None or scope[each.key].partial:
                continue
            tile = scope[each.key]
            is_far = grows(own, dims) and each.since <= self.ops_written - NEAR
            if is_far:
                self._far.add(tile.value)
            if not is_far or tile_bytes(value.type, dims) <= self.spare_bytes:
                yield tile

    def keep(self, value: ir.Value, tile: Tile) -> None:
        """Notes that a tile with the elements of a value is used, which may keep it in memory for longer."""
        if tile.value in self._far:
            self.spare_bytes -= tile_bytes(value.type, tile.dims)
            self._far.remove(tile.value)

    def hold(self, value: ir.Value, key: Key, scope: Scope) -> None:
        """Notes that a tile has the elements of a value."""
        held = self._held.setdefault(value, {}).setdefault(scope[key].dims, [])
        each = _visible(held, scope)
        if each is None or scope[each.key].partial:
            held.insert(0, _Held(key, self.ops_written))
        else:
            each.since = self.ops_written

    def hold_twin(self, value: ir.Value, twin: ir.Value, scope: Scope) -> None:
        """Notes that two values have the same elements."""
        self.hold(value, value, scope)
        self._held[twin] = self._held[value]
        self.hold(twin, twin, scope)


def _visible(held: list[_Held], scope: Scope) -> _Held | None:
    return next((each for each in held if each.key in scope), None)
