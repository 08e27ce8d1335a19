# SPDX-License-Identifier: Apache-2.0
"""States that loops carry and of which turns write parts: they stay in the layout that they have around the loop.

    %after = stablehlo.while(%cache = %before)    // whole before and behind the loop, as the program states it
      %new                                        // split over x, as all of a turn's work
      dynamic_update_slice %cache, %new

As propagation has it, `%cache` is split in the loop, since `%new` is: the whole state is gathered behind the loop. If
it stays as it is, each turn gathers what it writes, and no more: the caches of a serving step are whole on each device,
and a step writes one token of them. So it is without a loop, if layers are written out one after the other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.costing import least_costs
from reshard.synthesis.plans.request import Request

from ..analysis.propagation import propagate
from ..emission.slice_starts import SLICE
from ..ir.loop_trips import ASSUMED_TRIPS, known_trips_of
from ..ir.ops import (
    CONSTANTS,
    CONSTRAINTS,
    LOOPS,
    bits_of,
    ops_around,
    ops_in,
    owner_of_argument,
    parent_of,
    producer_of,
    terminator_of,
)
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..preparation.broadcasts import PIECE
from ..preparation.notes import KEPT, Note, note
from ..preparation.scatter_windows import window_dims
from ..preparation.serials import own_location, serial_of
from ..preparation.stacked_results import Stack, read_in_place
from ..shardings.sdy_shardings import (
    SHARDING,
    mesh_of,
    mesh_reference,
    module_meshes,
    per_value,
    sharding_from_attr,
    sharding_to_attr,
    states_nothing,
)
from ..shardings.value_layouts import layout, stated_results
from ..tile_rules.local_rules import Axes, Dims
from ..tile_rules.partial_sums import UPDATE
from ..tiles.tiles import dims_of, sharding_of, tile_bytes
from .held_parts import is_elementwise_move, layout_before
from .read_tiles import MUCH_LARGER

_MADE_ANYWHERE = CONSTANTS | {"stablehlo.iota"}
_RETURN = "func.return"
_ENDS = frozenset({_RETURN, "stablehlo.return"})
_CONSTRAINED = "sharding"  # the attribute of a constraint
_SCATTER = "stablehlo.scatter"
_SCATTERED = (0, 1, 2)  # its operands, if it has one of each kind
_WRITES = {UPDATE: 1, _SCATTER: 2}  # and the number of the operand that they write
_PASSES = 2  # over what a tile has more: it is written and read
_DEEPEST = 64  # ops and loops between a state and what is written into it


@dataclass(frozen=True, slots=True)
class _Place:
    """A result or an operand of an op, by the op's serial and the number of the value."""

    serial: int
    number: int
    is_operand: bool = False


@dataclass(frozen=True, slots=True)
class _Way:
    """How a value gets into a layout.

    Attributes:
      cost: of all runs in a step: seconds, or received bytes.
      stated: the layouts of results that are made in them, and of operands that are converted for it.
    """

    cost: float
    stated: Mapping[_Place, Dims] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Where a value is looked at: in which loops that keep a state, and how many ops behind the first of them.

    Attributes:
      kept: the layout of each state, by its loop and number.
    """

    kept: Mapping[tuple[ir.Operation, int], Dims] = field(default_factory=dict)
    depth: int = 0


_NO_WAY = _Way(math.inf)


def keep_states(module: ir.Operation, planning: Mapping[str, Any], stacks: Sequence[Stack], notes: list[Note]) -> None:
    """States the layouts of what loops carry, where it costs less if it stays in the layout that it has around them.

    Args:
      module: a clone before propagation, which is changed. planning: options of `plan`.
      stacks: those that are written in place; they are read in place, too, but where loops read other tiles.
      notes: what is done is noted there.
    """
    are_kept = any(_ends(loop, number) for loop, number in _states(module)) or any(_updates(module))
    if not stacks and not are_kept:
        return
    propagated = module.clone().operation
    propagate(propagated)
    keeping = _Keeping(module, propagated, planning)
    stated = keeping.chosen()
    notes += keeping.notes
    for each in stacks:
        if not keeping.is_read_in_small_tiles(each, stated):
            stated = keeping.of_stack(each) | stated
            read_in_place(each)
    _state(module, stated)


def _states(module: ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """Yields what the loops of a module carry and write parts of: each loop, and the number of the value."""
    for op in ops_in(module):
        if op.name in LOOPS and serial_of(op) is not None:
            for number, value in enumerate(terminator_of(op.regions[1].blocks[0]).operands):
                if _is_written_to(value):
                    yield op, number


def _is_written_to(value: ir.Value) -> bool:
    while (op := producer_of(value)) is not None and is_elementwise_move(op):
        value = op.operands[0]
    return op is not None and (op.name in _WRITES or op.name in LOOPS)


def _ends(loop: ir.Operation, number: int) -> list[ir.OpOperand]:
    """Returns the uses of a result of a loop, if all of them are constraints or the end of a function."""
    uses, others = _uses(loop.results[number])
    return [] if others else uses


def _uses(value: ir.Value) -> tuple[list[ir.OpOperand], list[ir.OpOperand]]:
    """Returns the uses of a value that are constraints or the end of a function, and the others."""
    found: tuple[list[ir.OpOperand], list[ir.OpOperand]] = [], []
    for use in value.uses:
        found[use.owner.operation.name not in CONSTRAINTS | {_RETURN}].append(use)
    return found


def _updates(module: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops that write a part of an array that is constrained or returned then, and read elsewhere."""
    for op in ops_in(module):
        if op.name in _WRITES and serial_of(op) is not None and all(_uses(op.results[0])):
            yield op


class _Keeping:
    """Finds what is to be kept in a module, of which a copy is propagated."""

    def __init__(self, module: ir.Operation, propagated: ir.Operation, planning: Mapping[str, Any]):
        constraints = (op for op in ops_in(module) if op.name in CONSTRAINTS)
        self._open = {serial_of(op) for op in constraints if states_nothing(op.attributes[_CONSTRAINED])}
        self._meshes, self._planning = module_meshes(module), planning
        self._topology: Topology | None = planning["topology"] if planning.get("objective") == "time" else None
        self._mesh = Mesh(())
        self._ways: dict[tuple, _Way] = {}
        self._propagated = propagated
        self._by_serial = {serial_of(op): op for op in ops_in(propagated)}
        self._costs: dict[tuple, float] = {}
        self.notes: list[Note] = []

    def chosen(self) -> dict[_Place, ir.Attribute]:
        """Returns the layouts to be stated."""
        found: dict[_Place, ir.Attribute] = {}
        results = [(loop.results[number], _ends(loop, number)) for loop, number in _states(self._propagated)]
        results += [(op.results[0], _uses(op.results[0])[0]) for op in _updates(self._propagated)]
        for result, ends in results:
            with contextlib.suppress(MeshError):  # a value on the way is on another mesh
                self._choose(result, ends, found)
        return found

    def _choose(self, result: ir.Value, ends: Sequence[ir.OpOperand], found: dict[_Place, ir.Attribute]) -> None:
        """Adds what is to be stated so that a result of a loop, or of an op that writes a part, is in the layout in
        which it is used at the end, if that costs less."""
        attr, op = _wanted(ends), present(producer_of(result))
        mesh = None if attr is None or sharding_from_attr(attr).unreduced else mesh_of(attr, self._meshes)
        if attr is None or mesh is None:
            return
        self._mesh, self._ways = mesh, {}
        dims, number = dims_of(attr, result.type, mesh), ir.OpResult(result).result_number
        if not (around := self._converted(result, dims).cost):
            return
        if op.name in LOOPS:
            around += self._converted(op.operands[number], self._found(result)).cost
            way = self._carried(op, number, dims, _Inside())
        else:
            way = self._made(result, dims, _Inside())
        way = replace(way, cost=way.cost + self._reading(way.stated))
        stated = {each: self._attribute(held, attr) for each, held in way.stated.items()}
        if way.cost < around and all(found.get(each, held) == held for each, held in stated.items()):
            found |= stated
            self.notes.append(note(op, KEPT, self._said(result, dims)))

    def _said(self, result: ir.Value, dims: Dims) -> str:
        stays, found = (sharding_of(self._mesh, each) for each in (dims, self._found(result)))
        where = "in the loop, as around it" if present(producer_of(result)).name in LOOPS else "where it is written"
        return f"{result.type} stays {stays} {where}: only what is written moves, not all to {found}"

    def is_read_in_small_tiles(self, stack: Stack, stated: Mapping[_Place, ir.Attribute]) -> bool:
        """Returns whether a stack stays in a layout in which its tiles are much larger than those that the loop reads:
        then it is written only, and the tiles that are read are a copy."""
        loop, serial = serial_of(stack.loop), serial_of(stack.cut)
        attr = None if loop is None else stated.get(_Place(loop, stack.number))
        if attr is None or serial not in self._by_serial:
            return False
        mesh = present(mesh_of(attr, self._meshes))
        read = self._by_serial[serial].results[0]
        if (held := layout(read)) is not None and mesh_of(held, self._meshes) != mesh:
            return False
        tiles = (tile_bytes(read.type, dims_of(each, read.type, mesh)) for each in (layout(read), attr))
        return MUCH_LARGER * next(tiles) <= next(tiles)

    def of_stack(self, stack: Stack) -> dict[_Place, ir.Attribute]:
        """Returns the layout in which a stack is found, which it is to have if the loop reads it, too."""
        loop, update = serial_of(stack.loop), serial_of(stack.update)
        if loop is None or update is None or loop not in self._by_serial:
            return {}
        attr = layout(self._by_serial[loop].results[stack.number])
        return {} if attr is None else {_Place(loop, stack.number): attr, _Place(update, 0): attr}

    def _attribute(self, dims: Dims, like: ir.Attribute) -> ir.Attribute:
        return sharding_to_attr(sharding_of(self._mesh, dims), mesh_reference(like))

    # Ways

    def _in_layout(self, value: ir.Value, dims: Dims, inside: _Inside) -> _Way:
        """Returns the cheapest way of a value into a layout."""
        key = value, dims, tuple(inside.kept.items())
        if key not in self._ways:
            ways = [self._converted(value, dims)]
            if ways[0].cost and inside.depth <= _DEEPEST:
                ways.append(self._made(value, dims, replace(inside, depth=inside.depth + 1)))
            self._ways[key] = min(ways, key=lambda way: way.cost)
        return self._ways[key]

    def _converted(self, value: ir.Value, dims: Dims) -> _Way:
        """Returns the way of a value by a change of the layout that propagation found."""
        return _Way(_runs(value) * self._cost(value.type, self._found(value), dims))

    def _made(self, value: ir.Value, dims: Dims, inside: _Inside) -> _Way:
        """Returns the way in which what makes a value makes it in a layout."""
        op = producer_of(value)
        if op is None:
            return self._taken(ir.BlockArgument(value), dims, inside)
        if op.name in _MADE_ANYWHERE:
            return _Way(0.0)
        if op.name in LOOPS:
            return self._carried(op, ir.OpResult(value).result_number, dims, inside)
        serial = serial_of(op)
        asked = [(0, dims)] if op.name in CONSTRAINTS and serial in self._open else _asked(op, dims)
        if asked is None or serial is None or PIECE in op.attributes:  # pieces of one op share its serial
            return _NO_WAY
        ways, stated = [], {_Place(serial, 0): dims}
        for number, held in asked:
            ways.append(self._in_layout(op.operands[number], held, inside))
            if not ways[-1].stated and held != self._found(op.operands[number]):
                stated[_Place(serial, number, is_operand=True)] = held
        return _joined(ways, _Way(self._work(op, asked), stated))

    def _taken(self, value: ir.BlockArgument, dims: Dims, inside: _Inside) -> _Way:
        """Returns the way of what a loop carries, in its body."""
        loop, number = owner_of_argument(value), value.arg_number
        if loop.name not in LOOPS:
            return _NO_WAY
        if (loop, number) in inside.kept:
            return _Way(0.0) if inside.kept[loop, number] == dims else _NO_WAY
        return self._carried(loop, number, dims, inside)

    def _carried(self, loop: ir.Operation, number: int, dims: Dims, inside: _Inside) -> _Way:
        """Returns the way of what a loop carries, if it stays in a layout in the loop."""
        if (serial := serial_of(loop)) is None:
            return _NO_WAY
        kept = replace(inside, kept={**inside.kept, (loop, number): dims})
        ends = loop.operands[number], terminator_of(loop.regions[1].blocks[0]).operands[number]
        ways = [self._in_layout(*each) for each in zip(ends, (dims, dims), (inside, kept), strict=True)]
        return _joined(ways, _Way(0.0, {_Place(serial, number): dims}))

    # Layouts and costs

    def _found(self, value: ir.Value) -> Dims:
        return dims_of(layout(value), value.type, self._mesh)

    def _reading(self, stated: Mapping[_Place, Dims]) -> float:
        """Returns what it costs at most to bring results in stated layouts into those in which others find them."""
        serials, total = {each.serial for each in stated}, 0.0
        for place, dims in stated.items():
            if place.is_operand:
                continue
            op = self._by_serial[place.serial]
            value = op.regions[1].blocks[0].arguments[place.number] if op.name in LOOPS else op.results[place.number]
            users = dict.fromkeys(use.owner.operation for use in value.uses)
            total += sum(self._read(each, value, dims) for each in users if serial_of(each) not in serials)
        return total

    def _read(self, user: ir.Operation, value: ir.Value, dims: Dims) -> float:
        if user.name in _ENDS:
            return 0.0
        is_part = user.name == SLICE or user.name in CONSTRAINTS
        taken = user.results[0] if is_part else value  # of a slice no more is brought there than is taken
        return _runs(user.results[0]) * self._cost(taken.type, dims, self._found(taken))

    def _cost(self, kind: ir.Type, held: Dims, wanted: Dims) -> float:
        """Returns what a change of layout costs at least; infinity for a type that has no tiles."""
        if held == wanted:
            return 0.0
        key = kind, held, wanted, self._mesh
        if key not in self._costs:
            self._costs[key] = self._computed_cost(ir.RankedTensorType(kind), held, wanted)
        return self._costs[key]

    def _computed_cost(self, kind: ir.RankedTensorType, held: Dims, wanted: Dims) -> float:
        try:
            ends = (sharding_of(self._mesh, each) for each in (held, wanted))
            received, seconds = least_costs(
                Request.of(self._mesh, tuple(kind.shape), bits_of(kind), *ends, **self._planning)
            )
        except ValueError:  # no plan, or elements of a type without a width
            return math.inf
        return float(received) if self._topology is None else seconds

    def _work(self, op: ir.Operation, asked: Sequence[tuple[int, Dims]]) -> float:
        """Returns the seconds that an op takes longer if its operands are in some layouts: what it writes is read and
        written, with what it writes into if that is no state. The compilers write the other ops together with these."""
        if self._topology is None or op.name not in _WRITES:
            return 0.0
        state, part = producer_of(op.operands[0]), _WRITES[op.name]
        is_in_place = state is None or state.name in _WRITES
        counted = (part,) if is_in_place else (0, part)
        written = [(op.operands[number], dims) for number, dims in asked if number in counted]
        more = sum(tile_bytes(each.type, dims) - tile_bytes(each.type, self._found(each)) for each, dims in written)
        return _runs(op.results[0]) * _PASSES * max(0.0, more) / self._topology.memory_bandwidth_bytes_per_s


def _wanted(ends: Sequence[ir.OpOperand]) -> ir.Attribute | None:
    """Returns the layout that a value has where it is constrained or returned; None if there is none, or several."""
    found = set()
    for use in ends:
        user = use.owner.operation
        is_return = user.name == _RETURN
        found.add(stated_results(parent_of(user))[use.operand_number] if is_return else layout(user.results[0]))
    return found.pop() if len(found) == 1 else None


def _joined(ways: Sequence[_Way], own: _Way) -> _Way:
    """Returns the way of what is made of several values; none if one of them is to be in two layouts."""
    stated = dict(own.stated)
    for each, dims in (pair for way in ways for pair in way.stated.items()):
        if stated.setdefault(each, dims) != dims:
            return _NO_WAY
    return _Way(own.cost + sum(way.cost for way in ways), stated)


def _asked(op: ir.Operation, dims: Dims) -> list[tuple[int, Dims]] | None:
    """Returns the numbers of operands, and their layouts, with which an op makes its result in a layout without any
    communication; None if there are none."""
    if op.name == UPDATE:
        whole, part = (ir.RankedTensorType(each.type).shape for each in op.operands[:2])
        return [(0, dims), (1, dims)] if _are_whole(dims, whole, part) else None
    if op.name == _SCATTER:
        return _asked_by_scatter(op, dims)
    if op.name == SLICE:
        whole, part = (ir.RankedTensorType(each.type).shape for each in (op.operands[0], op.results[0]))
        return [(0, dims)] if _are_whole(dims, whole, part) else None
    if is_elementwise_move(op):
        ones = [
            axes for axes, size in zip(dims, ir.RankedTensorType(op.results[0].type).shape, strict=True) if size == 1
        ]
        return None if any(ones) else [(0, layout_before(op, dims))]
    if op.name == "stablehlo.broadcast_in_dim":
        along = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
        sizes = ir.RankedTensorType(op.operands[0].type).shape
        return [(0, tuple(() if size == 1 else dims[dim] for size, dim in zip(sizes, along, strict=True)))]
    return None


def _asked_by_scatter(op: ir.Operation, dims: Dims) -> list[tuple[int, Dims]] | None:
    """Returns the same for a scatter, of which every device has all indices, and writes all that is written."""
    if len(op.operands) != len(_SCATTERED):
        return None
    whole, indices, part = (ir.RankedTensorType(each.type).shape for each in op.operands)
    windows = window_dims(op)
    written: list[Axes] = [()] * len(part)
    for dim, axes in enumerate(dims):
        if dim in windows and part[windows[dim]] == whole[dim]:
            written[windows[dim]] = axes
        elif axes:
            return None
    return list(zip(_SCATTERED, (dims, ((),) * len(indices), tuple(written)), strict=True))


def _are_whole(dims: Dims, whole: Sequence[int], part: Sequence[int]) -> bool:
    """Returns whether no dimension is split of which a part is taken or written."""
    return not any(axes for axes, size, taken in zip(dims, whole, part, strict=True) if taken < size)


def _runs(value: ir.Value) -> int:
    """Returns how often in a step what makes a value runs, at least once; what a loop carries is made in each turn."""
    op = producer_of(value)
    around = list(ops_around(op)) if op is not None else [(own := owner_of_argument(value)), *ops_around(own)]
    trips = (known_trips_of(each) for each in around if each.name in LOOPS)
    return math.prod(max(1, ASSUMED_TRIPS if each is None else each) for each in trips)


def _state(module: ir.Operation, stated: Mapping[_Place, ir.Attribute]) -> None:
    """States layouts of results and operands, where the program states none."""
    by_serial: dict[int | None, dict[_Place, ir.Attribute]] = {}
    for each, attr in stated.items():
        by_serial.setdefault(each.serial, {})[each] = attr
    for op in [each for each in ops_in(module) if PIECE not in each.attributes]:
        for each, attr in by_serial.get(serial_of(op), {}).items():
            if each.is_operand:
                with ir.InsertionPoint(op), own_location(op):
                    op.operands[each.number] = sdy.ShardingConstraintOp(op.operands[each.number], attr).result
            elif op.name in CONSTRAINTS:
                op.attributes[_CONSTRAINED] = attr
            else:
                _state_result(op, each.number, attr)


def _state_result(op: ir.Operation, number: int, attr: ir.Attribute) -> None:
    layouts = per_value(op) or [_open(attr, each.type) for each in op.results]
    if states_nothing(layouts[number]):
        layouts[number] = attr
        op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(layouts)


def _open(like: ir.Attribute, kind: ir.Type) -> ir.Attribute:
    """Returns a layout in which propagation may split all dimensions."""
    rank = ir.RankedTensorType(kind).rank if isinstance(kind, ir.RankedTensorType) else 0
    return sharding_to_attr(Sharding(((),) * rank, frozenset(range(rank))), mesh_reference(like))
