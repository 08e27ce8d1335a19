# SPDX-License-Identifier: Apache-2.0
"""Parts of values from outside, which loops take in another layout in each turn: the whole value is converted once.

    %weights                            // f32[layers, a, b], split over x
    stablehlo.while                     // microbatches
      stablehlo.while                   // layers, forward, and once more backward
        %layer = dynamic_slice %weights, %i
        %narrow = convert %layer        // to bf16
        reshard %narrow                 // gathered over x: as often as layers run in all microbatches

    %narrow = convert %weights
    %whole = reshard %narrow            // once
    stablehlo.while
      stablehlo.while
        dynamic_slice %whole, %i

`LayoutChanges.loop_before` does so for values that come into a loop as they are converted. Here a slice, or ops that
keep each element, such as a narrowing and a transpose, lie between. Elements are the same bit for bit: each is narrowed
and moved, and nothing is computed of several. A device holds the whole value as long as the loops run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..emission.slice_starts import MOVES, SLICE
from ..ir.loop_trips import ASSUMED_TRIPS, known_trips_of
from ..ir.ops import LOOPS, attribute_names, bits_of, is_inside, ops_around, ops_in, producer_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..shardings.sdy_shardings import SHARDING, mesh_of, module_meshes, sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import layout
from ..tiles.copied_ops import copied_attributes
from ..tiles.tiles import dims_of, tile_bytes

_RESHARD, _BARRIER = "sdy.reshard", "stablehlo.optimization_barrier"
_MADE_BEFORE = MOVES | {"stablehlo.slice"}  # what is known before a loop if the operand is
_LEAST_SAVED = 1.05  # the bytes of all turns, in parts of those that are converted once
_Axes = tuple[AxisRef, ...]
_AnyAxes = TypeVar("_AnyAxes", bound=tuple)


@dataclass(frozen=True, slots=True)
class _Part:
    """A change of layout in a loop that makes tiles larger.

    Attributes:
      op: the `sdy.reshard`. loop: the outermost loop before which the whole value is known.
      source: the value of which `cut` takes a part; without `cut` what is converted itself.
      cut: a dynamic_slice. moves: what lies between it and `op`, in their order.
      layouts: the axes of each dimension of what `cut` gives, and of what each of the moves gives, as `op` wants them.
      mesh: the mesh of these axes.
    """

    op: ir.Operation
    loop: ir.Operation
    source: ir.Value
    cut: ir.Operation | None
    moves: tuple[ir.Operation, ...]
    layouts: tuple[tuple[_Axes, ...], ...]
    mesh: Mesh

    @property
    def narrow(self) -> int:
        """Returns how many of the moves are made of the whole value as far as they are conversions of numbers: up to
        where elements have the fewest bits."""
        bits = [bits_of(self.source.type), *(bits_of(each.results[0].type) for each in self.moves)]
        return bits.index(min(bits))

    @property
    def elements(self) -> tuple[ir.Type, ...]:
        """Returns the types of numbers to which the whole value is converted, one after the other."""
        converted = [each for each in self.moves[: self.narrow] if each.name == "stablehlo.convert"]
        return tuple(ir.RankedTensorType(each.results[0].type).element_type for each in converted)

    @property
    def kind(self) -> ir.Type:
        """Returns the type of the whole value, with the elements that are converted."""
        whole = ir.RankedTensorType(self.source.type)
        return ir.RankedTensorType.get(whole.shape, (whole.element_type, *self.elements)[-1])

    @property
    def target(self) -> ir.Attribute:
        """Returns the layout of the whole value."""
        return _with_axes(self.layouts[0], self.op.attributes["sharding"])

    @property
    def turns(self) -> int:
        """Returns how often the part is converted while `loop` runs once."""
        trips = []
        for around in ops_around(self.op):
            known = known_trips_of(around)
            trips.append(ASSUMED_TRIPS if known is None else known)
            if around == self.loop:
                break
        return math.prod(trips)

    @property
    def key(self) -> tuple:
        """Returns what is equal for parts of the same whole value: it is converted once for all of them."""
        return _origin(self.source, self.loop), self.elements, self.target, self.loop.block


def hold_parts(module: ir.Operation, spare_bytes: float) -> float:
    """Converts whole values before loops, of which each turn converts parts, as far as there is memory.

    Args:
      module: a clone with explicit reshards, which is changed. spare_bytes: what a device may hold for it.
    Returns: the bytes that a device holds more.
    """
    with module.context, module.location:
        found = []
        for parts in _together(module):
            saved, held = _saved_and_held(parts)
            if saved > 0:
                found.append((saved, held, parts))
        total = 0.0
        for _, held, parts in sorted(found, key=lambda each: each[0], reverse=True):
            if total + held <= spare_bytes:
                _convert_once(parts)
                total += held
    return total


def _together(module: ir.Operation) -> Iterable[list[_Part]]:
    """Returns the parts of each whole value."""
    meshes = module_meshes(module)
    found: dict[tuple, list[_Part]] = {}
    for op in [each for each in ops_in(module) if each.name == _RESHARD]:
        if (mesh := mesh_of(op.attributes["sharding"], meshes)) is not None and (part := _part(op, mesh)) is not None:
            found.setdefault(part.key, []).append(part)
    return found.values()


# What can be converted before


def _part(op: ir.Operation, mesh: Mesh) -> _Part | None:
    cut, between = None, []
    source = op.operands[0]
    while (producer := producer_of(source)) is not None and producer.block == op.block:
        if producer.name == SLICE:
            cut, source = producer, producer.operands[0]
            break
        if producer.name == _BARRIER:  # of a layer that is computed anew; its weights need not be cut out anew
            source = producer.operands[ir.OpResult(source).result_number]
            continue
        if not is_elementwise_move(producer):
            break
        between.append(producer)
        source = producer.operands[0]
    if cut is None:
        if not between:
            return None  # the value itself comes from outside, if at all
        source, between = op.operands[0], []
    if not ir.RankedTensorType(source.type).has_static_shape:
        return None
    moves = tuple(reversed(between))
    loop, layouts = _outermost_before(op, source), _layouts(op, cut, moves, mesh)
    return None if loop is None or layouts is None else _Part(op, loop, source, cut, moves, layouts, mesh)


def is_elementwise_move(op: ir.Operation) -> bool:
    """Returns whether an op works element by element; reshapes may add and drop dimensions of size 1."""
    if op.name not in MOVES:
        return False
    taken, made = (ir.RankedTensorType(each.type) for each in (op.operands[0], op.results[0]))
    if not taken.has_static_shape:
        return False
    with contextlib.suppress(ValueError):  # elements of quantized types have no width
        return bits_of(taken) + bits_of(made) > 0 and (op.name != "stablehlo.reshape" or _long(taken) == _long(made))
    return False


def _long(kind: ir.RankedTensorType) -> list[int]:
    return [size for size in kind.shape if size != 1]


def _outermost_before(op: ir.Operation, value: ir.Value) -> ir.Operation | None:
    """Returns the outermost loop around an op before which a value can be made; None if there is none, or if a branch
    lies between: what is in it need not run."""
    found = None
    for around in ops_around(op):
        if around.name not in LOOPS or not _is_known_before(value, around):
            break
        found = around
    return found


def _is_known_before(value: ir.Value, loop: ir.Operation) -> bool:
    """Returns whether a value is made outside of a loop, or follows from such a one element by element."""
    while is_inside(value, loop):
        producer = producer_of(value)
        if producer is None or not (_keeps_layout(producer) or producer.name in _MADE_BEFORE):
            return False
        if producer.name in MOVES and not is_elementwise_move(producer):
            return False
        value = producer.operands[0]
    return True


def _layouts(
    op: ir.Operation, cut: ir.Operation | None, moves: tuple[ir.Operation, ...], mesh: Mesh
) -> tuple[tuple[_Axes, ...], ...] | None:
    """Returns the axes of the dimensions before and behind each move; None if a dimension that is cut is split, or if
    tiles are not larger behind `op`."""
    attr, value = op.attributes["sharding"], op.operands[0]
    wanted, held = sharding_from_attr(attr), layout(value)
    if held is None or wanted.replicated or wanted.unreduced or sharding_from_attr(held).unreduced:
        return None
    if _tile_bytes(value, attr, mesh) <= _tile_bytes(value, held, mesh):
        return None
    found = [wanted.dims]
    for move in reversed(moves):
        if any(axes for axes, size in zip(found[-1], ir.RankedTensorType(move.results[0].type).shape) if size == 1):
            return None
        found.append(layout_before(move, found[-1]))
    if cut is not None and not _is_whole_where_cut(cut, found[-1]):
        return None
    return tuple(reversed(found))


def layout_before(move: ir.Operation, made: tuple[_AnyAxes, ...]) -> tuple[_AnyAxes, ...]:
    """Returns the axes of the dimensions of what a move takes, from those of what it gives."""
    if move.name == "stablehlo.transpose":
        order = list(ir.DenseI64ArrayAttr(move.attributes["permutation"]))
        return tuple(made[order.index(dim)] for dim in range(len(order)))
    if move.name == "stablehlo.reshape":
        shape = ir.RankedTensorType(move.results[0].type).shape
        long = iter([axes for axes, size in zip(made, shape, strict=True) if size != 1])
        none: Any = ()
        return tuple(none if size == 1 else next(long) for size in ir.RankedTensorType(move.operands[0].type).shape)
    return made


def _is_whole_where_cut(cut: ir.Operation, wanted: tuple[_Axes, ...]) -> bool:
    """Returns whether a slice takes dimensions that are split as a whole."""
    attr, kinds = layout(cut.operands[0]), (cut.operands[0].type, cut.results[0].type)
    held = ((),) * len(wanted) if attr is None else sharding_from_attr(attr).dims
    whole, part = (ir.RankedTensorType(each).shape for each in kinds)
    return all(
        one == size or not axes and not own for one, size, axes, own in zip(whole, part, wanted, held, strict=True)
    )


def _origin(value: ir.Value, loop: ir.Operation) -> tuple:
    """Returns a value outside of a loop, and what is made of it in the loop: equal if two values are."""
    made = []
    while (op := producer_of(value)) is not None and (is_inside(value, loop) or _keeps_layout(op)):
        if not _keeps_layout(op):  # before each loop, what it captures has one that does
            stated = tuple(sorted((name, str(attr)) for name, attr in copied_attributes(op.attributes).items()))
            made.append((op.name, op.results[0].type, stated))
        value = op.operands[0]
    return value, *made


def _keeps_layout(op: ir.Operation) -> bool:
    """Returns whether an op is a change of layout that changes nothing."""
    if op.name != _RESHARD:
        return False
    before, behind = layout(op.operands[0]), layout(op.results[0])
    if before is None or behind is None:
        return False
    one, other = sharding_from_attr(before), sharding_from_attr(behind)
    return (one.dims, one.unreduced) == (other.dims, other.unreduced)


# What it saves, and what it takes


def _saved_and_held(parts: list[_Part]) -> tuple[float, float]:
    """Returns the bytes that a device need not receive while the loops run, and those that it holds meanwhile."""
    kind, target, mesh, source = parts[0].kind, parts[0].target, parts[0].mesh, parts[0].source
    held = tile_bytes(kind, dims_of(target, kind, mesh))
    before = tile_bytes(kind, dims_of(layout(source), kind, mesh))
    received = 0.0
    for each in parts:
        value = each.op.operands[0]
        more = _tile_bytes(value, each.op.attributes["sharding"], mesh) - _tile_bytes(value, layout(value), mesh)
        received += more * each.turns
    return received - _LEAST_SAVED * (held - before), held


def _tile_bytes(value: ir.Value, attr: ir.Attribute | None, mesh: Mesh) -> float:
    return tile_bytes(value.type, dims_of(attr, value.type, mesh))


# How it is written


def _convert_once(parts: list[_Part]) -> None:
    first = parts[0]
    with ir.InsertionPoint(first.loop), first.op.location:
        whole = _made_before(first.source, first.loop)
        for element in first.elements:
            kind = ir.RankedTensorType.get(ir.RankedTensorType(whole.type).shape, element)
            attributes = _stated(layout(first.source))
            whole = ir.Operation.create("stablehlo.convert", [kind], [whole], attributes).results[0]
        whole = sdy.ReshardOp(whole, first.target).result
    for part in parts:
        made = _cut_from(whole, part)
        part.op.results[0].replace_all_uses_with(made)
        for op in (part.op, *reversed(part.moves), part.cut):
            if op is not None and not any(len(list(each.uses)) for each in op.results):
                op.erase()


def _made_before(value: ir.Value, loop: ir.Operation) -> ir.Value:
    """Writes what makes a value once more, before a loop, as far as it is in it."""
    inside: list[ir.Operation] = []
    while is_inside(value, loop):
        op = present(producer_of(value))
        if not _keeps_layout(op):
            inside.append(op)
        value = op.operands[0]
    for op in reversed(inside):
        new = op.clone()
        new.operation.operands[0] = value
        value = new.operation.results[0]
    return value


def _cut_from(whole: ir.Value, part: _Part) -> ir.Value:
    """Writes the part of a turn from the whole value."""
    if part.cut is None:
        return whole
    value = whole
    with ir.InsertionPoint(part.op):
        for number, (op, axes) in enumerate(zip((part.cut, *part.moves), part.layouts, strict=True)):
            if op.name == "stablehlo.convert" and number <= part.narrow:
                continue
            made = ir.RankedTensorType(op.results[0].type)
            element = ir.RankedTensorType(value.type).element_type if number <= part.narrow else made.element_type
            kind = ir.RankedTensorType.get(made.shape, element)
            attributes = {name: op.attributes[name] for name in attribute_names(op.attributes)}
            attributes |= _stated(_with_axes(axes, part.op.attributes["sharding"]))
            operands = [value, *list(op.operands)[1:]]
            value = ir.Operation.create(op.name, [kind], operands, attributes, loc=op.location).results[0]
    return value


def _stated(attr: ir.Attribute | None) -> dict[str, ir.Attribute]:
    return {} if attr is None else {SHARDING: sdy.TensorShardingPerValueAttr.get([attr])}


def _with_axes(axes: tuple[_Axes, ...], like: ir.Attribute) -> ir.Attribute:
    """Returns the layout with such axes, closed, on the mesh of another one."""
    return sharding_to_attr(Sharding(axes), sdy.TensorShardingAttr(like).mesh_or_ref)
