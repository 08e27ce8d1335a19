# SPDX-License-Identifier: Apache-2.0
"""Small collectives in manual computations that wait for nothing of each other, written as one on one buffer.

    %2 = all_reduce(%0)      %b = concatenate(reshape(%0), reshape(%1))
    %3 = all_reduce(%1)      %r = all_reduce(%b)
                             %2 = reshape(slice(%r))
                             %3 = reshape(slice(%r))

The tiles lie one behind the other in the buffer. Of collectives that deal with parts of tiles, the parts for, or from,
each member of a group are a row of a buffer with a row for each member, so that one collective on rows does for all
of them, along whatever dimensions they work (`_Rows`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reshard.synthesis.hierarchy.device_groups import Groups
from reshard.synthesis.hierarchy.joining import Joinable, is_small, joined_sets
from reshard.synthesis.hierarchy.redistributions import REDUCING
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network import cost
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs.traffic import Collective

from ..ir.ops import attribute_names, bits_of, int64_attr, ops_in, producer_of, shape_of, short_name, terminator_of
from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, stablehlo
from ..shardings.sdy_shardings import module_meshes
from .collective_groups import groups_of
from .explicit_collectives import ROUNDING, NotPlannable, in_islands

MOST_BYTES = 1 << 20  # J3: of the tiles of one buffer, before and after its collective
_PERMUTE = "collective_permute"
_KINDS = (*REDUCING, "all_gather", "all_to_all", _PERMUTE)
OPS = frozenset(f"stablehlo.{kind}" for kind in _KINDS)
_DIMS = {  # the attributes that say along which dimensions a collective works; on a buffer it is the first one
    "all_gather": ("all_gather_dim",),
    "reduce_scatter": ("scatter_dimension",),
    "all_to_all": ("split_dimension", "concat_dimension"),
}
_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Collectives to be written as one.

    Attributes:
      ops: in program order, in one block. collectives: what each of them moves.
      alone_s, together_s: the modelled times, that of the copies included.
    """

    ops: tuple[ir.Operation, ...]
    collectives: tuple[Collective, ...]
    alone_s: float
    together_s: float


@dataclass(frozen=True, slots=True)
class Member:
    """A collective on one tile, as far as joining goes. `reduction` is None if it reduces nothing."""

    op: ir.Operation
    collective: Collective
    element: ir.Type
    reduction: str | None

    @property
    def key(self) -> tuple:
        moved = self.collective
        return moved.kind, moved.groups, moved.pairs, str(self.element), self.reduction

    @property
    def may_round(self) -> bool:
        """Returns whether its result depends on the order in which it reduces."""
        return self.reduction in ROUNDING and not isinstance(self.element, ir.IntegerType)


def joined_in(
    root: ir.Operation, topology: Topology, *, is_always: bool = False, keeps_sums: bool = False
) -> list[Joined]:
    """Returns the small collectives of a module that can be one, and are faster so on a network.

    Args:
      is_always: take them even if they are large, or no faster.
      keeps_sums: leave sums and products of floating-point numbers, which another collective may add up in another
        order.
    """
    meshes, blocks, prices = module_meshes(root), {}, Prices(topology)
    for op, mesh in in_islands(root, OPS):
        if not isinstance(mesh, NotPlannable):
            blocks.setdefault(op.block, []).append((op, mesh.devices))

    def wanted(op: ir.Operation, devices: int) -> Member | None:
        member = read(op, meshes)
        if member is None or (keeps_sums and member.may_round):
            return None
        return member if is_always or prices.is_small(member.collective, devices) else None

    found = []
    for block, inside in blocks.items():
        small = [wanted(*each) for each in inside] if len(inside) > 1 else []
        if sum(each is not None for each in small) > 1:
            sets = _joined(block, [op for op, _ in inside], small, inside[0][1], prices)
            found += [each for each in sets if is_always or each.together_s < each.alone_s]
    return found


def _joined(
    block: ir.Block, ops: Sequence[ir.Operation], small: Sequence[Member | None], devices: int, prices: Prices
) -> Iterator[Joined]:
    needs = needs_of(block, ops)
    given = [
        None if each is None else Joinable(each.key, needs[number], _bytes(each.collective))
        for number, each in enumerate(small)
    ]
    for numbers in joined_sets(given, MOST_BYTES):
        moved = tuple(each.collective for each in map(small.__getitem__, numbers) if each is not None)
        times = [prices.of(each, devices) for each in moved]
        sending_s = sum(each for _, each in times)
        together_s = times[0][0] + sending_s + sum(map(prices.copying_s, moved))
        alone_s = sum(each for each, _ in times) + sending_s
        yield Joined(tuple(ops[number] for number in numbers), moved, alone_s, together_s)


def _bytes(collective: Collective) -> int:
    return collective.bytes_before + collective.bytes_after


@dataclass(slots=True)
class Prices:
    """What collectives take on a network. State: `_known`, of those of one kind and groups, each found once."""

    topology: Topology
    _known: dict[tuple, tuple[float, float]] = field(default_factory=dict)

    def of(self, moved: Collective, devices: int) -> tuple[float, float]:
        """Returns the latency of a collective, and the seconds that its bytes take."""
        ways = moved.kind, moved.groups, moved.pairs
        if (devices, *ways) not in self._known:
            self._known[devices, *ways] = cost.coefficients(self.topology, devices, *ways)
        latency_s, seconds_per_byte = self._known[devices, *ways]
        return latency_s, seconds_per_byte * cost.tile_bytes(moved)

    def is_small(self, moved: Collective, devices: int) -> bool:
        return is_small(*self.of(moved, devices), self.copying_s(moved))

    def copying_s(self, moved: Collective) -> float:
        return cost.relayout_time_s(self.topology, _bytes(moved))


def read(op: ir.Operation, meshes: Mapping[str, Mesh]) -> Member | None:
    """Returns a collective as joining needs it; None for one that stays as it is."""
    kind = short_name(op)
    if len(op.operands) != 1 or len(op.results) != 1:
        return None
    before, after = op.operands[0].type, op.results[0].type
    if not all(isinstance(each, ir.RankedTensorType) and each.has_static_shape for each in (before, after)):
        return None
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    if "channel_handle" not in op.attributes:  # then devices are replicas of the whole program
        return None
    if kind == _PERMUTE:
        pairs = tuple((int(a), int(b)) for a, b in _integers(op.attributes["source_target_pairs"]))
    elif (listed := groups_of(op, meshes)) is None:
        return None
    else:
        groups = listed
    reduction = reduction_of(op) if kind in REDUCING else None
    element = ir.RankedTensorType(before).element_type
    if kind in REDUCING and not is_splittable(element, reduction):
        return None
    try:
        bits = bits_of(before)
    except ValueError:
        return None
    sizes = [math.prod(shape_of(each) or ()) for each in (before, after)]
    if not all(sizes):
        return None
    moved = Collective(kind, *(-(-size * bits // 8) for size in sizes), groups=groups, pairs=pairs)
    return Member(op, moved, element, reduction)


def _integers(attr: ir.Attribute) -> Iterable[Sequence[int]]:
    import numpy as np

    return np.array(ir.DenseIntElementsAttr(attr)).reshape(-1, 2).tolist()


def needs_of(block: ir.Block, ops: Sequence[ir.Operation]) -> list[int]:
    """Returns for each collective of a block those that it needs, as bits by their numbers."""
    number_of = {op: number for number, op in enumerate(ops)}
    reached: dict[ir.Operation, int] = {}
    found = [0] * len(ops)
    for each in block.operations:
        op, mask = each.operation, 0
        for value in used_by(op):
            if (producer := producer_of(value)) is not None:
                mask |= reached.get(producer, 0)
        if (number := number_of.get(op)) is not None:
            found[number] = mask
            mask |= 1 << number
        if mask:
            reached[op] = mask
    return found


def used_by(op: ir.Operation) -> Iterator[ir.Value]:
    """Yields the values that an op and the ops in its regions take."""
    yield from op.operands
    for inner in ops_in(op)[1:] if len(op.regions) else ():
        yield from inner.operands


# Writing


def write_joined(found: Sequence[Joined]) -> None:
    """Writes each set of collectives as one, and orders their blocks."""
    blocks = {}
    for number, each in enumerate(found):
        blocks.setdefault(each.ops[0].block, None)
        _write(each, number)
    for block in blocks:
        _order(block)


def _write(joined: Joined, number: int) -> None:
    first, last = joined.ops[0], joined.ops[-1]
    forms = [_form(op, each) for op, each in zip(joined.ops, joined.collectives, strict=True)]
    element = ir.RankedTensorType(first.operands[0].type).element_type
    with ir.InsertionPoint(last), ir.Location.name(f"reshard/joined {number}", first.location):
        parts = [form.packed(op.operands[0]) for form, op in zip(forms, joined.ops, strict=True)]
        along = forms[0].along
        whole = stablehlo.ConcatenateOp(parts, along).result
        widths = [form.width_after for form in forms]
        result = ir.RankedTensorType.get([*forms[0].rows_after, sum(widths)], element)
        moved = _collective(first, whole, result)
        start = 0
        for form, op, width in zip(forms, joined.ops, widths, strict=True):
            part = _slice(moved, along, start, start + width)
            op.results[0].replace_all_uses_with(form.unpacked(part))
            start += width
    for op in joined.ops:
        op.erase()


def _collective(like: ir.Operation, tile: ir.Value, result: ir.Type) -> ir.Value:
    """Writes a collective like another one on a buffer of rows."""
    attributes: dict[str, Any] = {name: like.attributes[name] for name in attribute_names(like.attributes)}
    attributes |= {name: int64_attr(0) for name in _DIMS.get(short_name(like), ())}
    made = ir.Operation.create(
        like.name, results=[result], operands=[tile], attributes=attributes, regions=len(like.regions)
    )
    for region, other in zip(made.regions, like.regions, strict=True):
        other.blocks[0].append_to(region)
    return made.results[0]


@dataclass(frozen=True, slots=True)
class _Flat:
    """A tile as a line of elements, before and after an all_reduce or a permute.

    Attributes:
      shape: of the tile. along: the dimension of the buffer along which tiles lie one behind the other.
      rows_after: the sizes of the buffer behind the collective, but for the last one. width_after: what the tile has of
        that.
    """

    shape: _Shape
    along = 0
    rows_after = ()

    @property
    def width_after(self) -> int:
        return math.prod(self.shape)

    def packed(self, tile: ir.Value) -> ir.Value:
        return _reshaped(tile, (math.prod(self.shape),))

    def unpacked(self, part: ir.Value) -> ir.Value:
        return _reshaped(part, self.shape)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tile as rows of elements: one for each member of a group, or a single one.

    Attributes:
      before, after: the shapes of the tile. split: the dimension of which each member gets a part; None of a gather.
      joined: the dimension along which the parts of the members are put together; None of a reduce_scatter.
      members: of a group.
    """

    before: _Shape
    after: _Shape
    members: int
    split: int | None = None
    joined: int | None = None
    along = 1

    @property
    def rows_after(self) -> tuple[int]:
        return (1 if self.joined is None else self.members,)

    @property
    def width_after(self) -> int:
        return math.prod(self.after) // self.rows_after[0]

    def packed(self, tile: ir.Value) -> ir.Value:
        if self.split is None:
            return _reshaped(tile, (1, math.prod(self.before)))
        at, sizes = self.split, list(self.before)
        sizes[at : at + 1] = [self.members, sizes[at] // self.members]
        tile = _reshaped(tile, sizes)
        tile = _transposed(tile, [at, *(dim for dim in range(len(sizes)) if dim != at)])
        return _reshaped(tile, (self.members, math.prod(self.before) // self.members))

    def unpacked(self, part: ir.Value) -> ir.Value:
        if self.joined is None:
            return _reshaped(part, self.after)
        at, sizes = self.joined, list(self.after)
        sizes[at] //= self.members
        part = _reshaped(part, (self.members, *sizes))
        return _reshaped(_transposed(part, [*range(1, at + 1), 0, *range(at + 1, len(sizes) + 1)]), self.after)


def _form(op: ir.Operation, collective: Collective) -> _Flat | _Rows:
    before, after = (tuple(shape_of(each.type) or ()) for each in (op.operands[0], op.results[0]))
    kind = collective.kind
    if kind not in _DIMS:
        return _Flat(before)
    dims = [ir.IntegerAttr(op.attributes[name]).value for name in _DIMS[kind]]
    members = len(collective.groups[0])
    match kind:
        case "all_gather":
            return _Rows(before, after, members, joined=dims[0])
        case "reduce_scatter":
            return _Rows(before, after, members, split=dims[0])
        case _:
            return _Rows(before, after, members, *dims)


def _reshaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    old = ir.RankedTensorType(value.type)
    kind = ir.RankedTensorType.get(list(shape), old.element_type)
    return value if kind == old else stablehlo.ReshapeOp(kind, value).result


def _transposed(value: ir.Value, order: list[int]) -> ir.Value:
    if order == sorted(order):
        return value
    return stablehlo.TransposeOp(value, ir.DenseI64ArrayAttr.get(order)).result


def _slice(value: ir.Value, along: int, start: int, end: int) -> ir.Value:
    """Returns a part of a buffer along its last dimension."""
    sizes = shape_of(value.type) or []
    starts, ends = [0] * len(sizes), list(sizes)
    starts[along], ends[along] = start, end
    arrays = (ir.DenseI64ArrayAttr.get(each) for each in (starts, ends, [1] * len(sizes)))
    return stablehlo.SliceOp(value, *arrays).result


def _order(block: ir.Block) -> None:
    """Orders the ops of a block so that each comes behind what it takes, else as they are."""
    terminator = terminator_of(block)
    ops = [each.operation for each in block.operations if each.operation != terminator]
    number_of = {op: number for number, op in enumerate(ops)}
    users: list[list[int]] = [[] for _ in ops]
    missing = [0] * len(ops)
    for number, op in enumerate(ops):
        made = (producer_of(value) for value in used_by(op))
        producers = {number_of[each] for each in made if each is not None and each in number_of}
        missing[number] = len(producers)
        for each in producers:
            users[each].append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        order.append(number := heapq.heappop(ready))
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    assert len(order) == len(ops), "joined collectives need each other"
    in_place = next((place for place, number in enumerate(order) if place != number), len(order))
    for number in order[in_place:]:
        ops[number].move_before(terminator)
