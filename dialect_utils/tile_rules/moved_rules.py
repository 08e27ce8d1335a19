# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that move elements along dimensions that are split: no device needs the whole dimension.

`local_rules` has the rules in which such a dimension is whole. Here each device receives the elements that it lacks, in
the rounds of an exchange (`synthesis/planner/moved.py`):

    slice           a part of the operand moves to the result
    pad             the operand moves to its place in the result; elsewhere a device writes the padding value
    concatenate     each operand moves to its place in the result
    reverse         each device turns its tile round; the tiles change places

An op has the rule of `local_rules` beside these; which one moves least is for the caller to decide.

Slices that are only concatenated, as in a roll, need not be made: each part moves from the array that it is a part of
to its place in the result (`joined`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.planner.moved import End
from reshard.synthesis.programs.exchange import TooManyPieces

from ..platform.bindings import ir, stablehlo
from .local_rules import Axes, Dims, Rule, Site, overlap, tile_size
from .tile_masks import within

Box = tuple[tuple[int, ...], tuple[int, ...]]  # (start, size) of a part, in elements along each dimension


class Mover(Protocol):
    """Plans moves for one op, and writes them on tiles."""

    def end(self, shape: Sequence[int], dims: Dims, start: Sequence[int], mirrored: Sequence[int] = ()) -> End: ...

    def planned(self, kind: ir.Type, size: Sequence[int], source: End, target: End) -> Plan:
        """Returns the plan of a move of a part of an array of type `kind`. Raises: TooManyPieces."""
        ...

    def planned_together(self, kind: ir.Type, parts: Sequence[tuple[Sequence[int], End, End]]) -> Plan | None:
        """Returns the plan that moves several parts of one array; None if there is none. Raises: TooManyPieces."""
        ...


class TileMover(Protocol):
    """The writer of one op on tiles, at the current insertion point."""

    def place(self, axes: Axes) -> ir.Value:
        """Returns the number of this device's shard along the axes, a tensor<1xi32>."""
        ...

    def moved(self, number: int, tile: ir.Value) -> ir.Value:
        """Writes one of the rule's moves on a tile, and returns the tile after it."""
        ...

    def moved_into(self, number: int, tile: ir.Value, into: ir.Value) -> tuple[ir.Value, bool]:
        """Writes one of the rule's moves on a tile, and returns the tile after it and whether its other elements are
        those of the tile `into`; else they are not defined."""
        ...


Makers = Mapping[str, Callable[[Site, Mover], Iterable[Rule]]]  # what yields rules, by the name of the op


def moves_of(site: Site, mover: Mover) -> list[Rule]:
    """Returns the rules of an op in which its elements move along split dimensions; none for other ops."""
    return offered(_RULES, site, mover)


def offered(makers: Makers, site: Site, mover: Mover) -> list[Rule]:
    """Returns the rules that a table has for an op; none for empty arrays, and if a move is too large to plan."""
    make = makers.get(site.op.name)
    if make is None or any(0 in ir.RankedTensorType(each.type).shape for each in (*site.op.operands, *site.op.results)):
        return []
    try:
        return list(make(site, mover))
    except TooManyPieces:
        return []


def is_move(op: ir.Operation) -> bool:
    """Returns whether an op moves elements along dimensions."""
    return op.name in _RULES


def joined_along(op: ir.Operation) -> list[int]:
    """Returns the dimension along which a concatenation joins its operands."""
    return [ir.IntegerAttr(op.attributes["dimension"]).value]


def takes_part(op: ir.Operation) -> tuple[int, ...] | None:
    """Returns the index at which the part begins that a slice takes; None for another op, and for strides."""
    if op.name != "stablehlo.slice" or set(ir.DenseI64ArrayAttr(op.attributes["strides"])) != {1}:
        return None
    return tuple(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))


def _slice(site: Site, mover: Mover) -> Iterator[Rule]:
    starts, limits, strides = map(site.ints, ("start_indices", "limit_indices", "strides"))
    size = [limit - start for start, limit in zip(starts, limits, strict=True)]
    cut = [d for d, whole in enumerate(site.shape(0)) if size[d] != whole]
    if set(strides) != {1}:
        return
    result = kept_split(site, cut).results[0]
    for dims in _layouts(site.operands[0], result, cut):
        ends = mover.end(site.shape(0), dims, starts), mover.end(size, result, [0] * len(size))
        move = mover.planned(site.op.operands[0].type, size, *ends)
        yield Rule((dims,), (result,), moves=(move,), write=_write_one)


def _write_one(tiles: TileMover, operands: Sequence[ir.Value]) -> list[ir.Value]:
    return [tiles.moved(0, operands[0])]


def _reverse(site: Site, mover: Mover) -> Iterator[Rule]:
    along, shape = site.ints("dimensions"), site.shape(0)
    result, begin = kept_split(site, along).results[0], [0] * len(shape)
    for dims in _layouts(site.operands[0], result, along):
        ends = mover.end(shape, dims, begin, along), mover.end(shape, result, begin)
        move = mover.planned(site.op.operands[0].type, shape, *ends)
        yield Rule((dims,), (result,), moves=(move,), write=functools.partial(_write_reverse, along))


def _write_reverse(along: list[int], tiles: TileMover, operands: Sequence[ir.Value]) -> list[ir.Value]:
    return [tiles.moved(0, stablehlo.ReverseOp(operands[0], along).result)]


def _pad(site: Site, mover: Mover) -> Iterator[Rule]:
    low, high = site.ints("edge_padding_low"), site.ints("edge_padding_high")
    if any(site.ints("interior_padding")):
        return
    shape = site.shape(0)
    padded = [d for d, sides in enumerate(zip(low, high, strict=True)) if any(sides)]
    site = kept_split(site, padded)
    result = site.results[0]
    begin = [max(0, -each) for each in low]
    size = [n - a - max(0, -b) for n, a, b in zip(shape, begin, high, strict=True)]
    if min(size, default=1) <= 0:
        return
    to = [max(0, each) for each in low]
    for dims in _layouts(site.operands[0], result, padded):
        ends = mover.end(shape, dims, begin), mover.end(site.result_shape, result, to)
        move = mover.planned(site.op.operands[0].type, size, *ends)
        box = tuple(to), tuple(size)
        yield Rule((dims, ()), (result,), moves=(move,), write=functools.partial(_write_pad, site, box))


def _write_pad(site: Site, box: Box, tiles: TileMover, operands: Sequence[ir.Value]) -> list[ir.Value]:
    element = ir.RankedTensorType(operands[1].type).element_type
    tile = [tile_size(*each) for each in zip(site.result_shape, site.results[0], strict=True)]
    around = stablehlo.BroadcastInDimOp(ir.RankedTensorType.get(tile, element), operands[1], []).result
    moved, is_joined = tiles.moved_into(0, operands[0], around)
    return [moved if is_joined else _in_box(site, box, tiles, moved, around)]


def _concatenate(site: Site, mover: Mover) -> Iterator[Rule]:
    along = site.int("dimension")
    site = kept_split(site, [along])
    result = site.results[0]
    if not result[along]:
        return
    parts = [Part(value, dims, (0,) * len(dims)) for value, dims in zip(site.op.operands, site.operands, strict=True)]
    moves = joined(site, mover, parts)
    write = functools.partial(_write_some, site, len(moves))
    yield Rule(site.operands, (result,), moves=moves, write=write)


def _write_some(site: Site, count: int, tiles: TileMover, operands: Sequence[ir.Value]) -> list[ir.Value]:
    return write_joined(site, tiles, operands[:count])


@dataclass(frozen=True, slots=True)
class Part:
    """An operand of a concatenation: the part of a value, in a layout, that begins at an index.

    Attributes:
      is_as_it_is: whether it is a part of the value itself, and not of what elementwise ops make of that.
    """

    value: ir.Value
    dims: Dims
    start: tuple[int, ...]
    is_as_it_is: bool = True


def joined(site: Site, mover: Mover, parts: Sequence[Part]) -> tuple[Plan, ...]:
    """Returns the moves that make the result of a concatenation of parts: one if all are of one value, else one for
    each part. Raises: TooManyPieces."""
    moves = [
        (
            operand.type,
            size,
            mover.end(ir.RankedTensorType(part.value.type).shape, part.dims, part.start),
            mover.end(site.result_shape, site.results[0], to),
        )
        for operand, part, (to, size) in zip(site.op.operands, parts, _boxes(site), strict=True)
    ]
    is_of_one = len({part.value for part in parts}) == 1 and all(part.is_as_it_is for part in parts)
    if is_of_one and (together := mover.planned_together(moves[0][0], [each[1:] for each in moves])) is not None:
        return (together,)
    return tuple(mover.planned(*each) for each in moves)


def write_joined(site: Site, tiles: TileMover, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Writes a concatenation of the parts that move from the tiles `operands`; returns its result.

    Args:
      operands: a tile for each of the rule's moves.
    """
    found = tiles.moved(0, operands[0])
    for number, (operand, box) in enumerate(zip(operands, _boxes(site))):
        if number:
            moved, is_joined = tiles.moved_into(number, operand, found)
            found = moved if is_joined else _in_box(site, box, tiles, moved, found)
    return [found]


def _boxes(site: Site) -> list[Box]:
    """Returns the place of each operand in the result of a concatenation."""
    along, found, at = site.int("dimension"), [], 0
    for number in range(len(site.operands)):
        shape = site.shape(number)
        found.append((tuple(at if d == along else 0 for d in range(len(shape))), tuple(shape)))
        at += shape[along]
    return found


def kept_split(site: Site, moved: Sequence[int]) -> Site:
    """Returns the site with a result that is split along the dimensions along which elements move, if that is possible.

    If the result is wanted whole there, it is gathered behind the move: an exchange alone would take as many rounds as
    there are devices.
    """
    operand, result = site.operands[0], list(site.results[0])
    for d in moved:
        used = [axis for axes in result for axis in axes]
        if not result[d]:
            result[d] = _free(operand[d], used)
    return replace(site, results=(tuple(result),))


def _layouts(operand: Dims, result: Dims, cut: Sequence[int]) -> Iterator[Dims]:
    """Yields the layouts in which an operand may be moved: its own one, and the result's in dimensions that are whole.

    None if the result is whole in a dimension along which elements move between devices.
    """
    if not any(result[d] for d in cut) or any(operand[d] and not result[d] for d in cut):
        return
    yield operand
    used = [axis for d in cut for axis in operand[d]]
    mixed = tuple(operand[d] if d in cut else _free(axes, used) for d, axes in enumerate(result))
    if mixed != operand:
        yield mixed


def _free(axes: Axes, used: Sequence) -> Axes:
    return () if overlap(axes, used) else axes


def _in_box(site: Site, box: Box, tiles: TileMover, inside: ir.Value, outside: ir.Value) -> ir.Value:
    """Returns a tile of the result with the elements of one tile inside a box of the array, of another one outside."""
    shape, bounds = site.result_shape, {}
    for d, (start, size) in enumerate(zip(*box, strict=True)):
        bounds[d] = start or None, start + size if start + size < shape[d] else None
    is_inside = within(tiles.place, ir.RankedTensorType(inside.type).shape, site.results[0], bounds)
    return inside if is_inside is None else stablehlo.SelectOp(is_inside, inside, outside).result


_RULES: Makers = {
    "stablehlo.concatenate": _concatenate,
    "stablehlo.pad": _pad,
    "stablehlo.reverse": _reverse,
    "stablehlo.slice": _slice,
}
