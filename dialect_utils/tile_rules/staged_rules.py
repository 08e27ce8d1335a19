# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that select or combine along a split dimension in two stages: on each tile, then among the results.

`local_rules` has the rules in which such a dimension is whole. Here each device does the op on its tile, all devices
exchange the small results, and each does the op again on these:

    reduce that selects, as argmax    the results of all devices along a new dimension, reduced again
    top_k                             k candidates of each device, of which the first k are taken
    reduce_window over all before     the results of all tiles before, combined with those on the tile, as in a cumsum

A reduction counts its initial value once for each device, and once more in the second stage. That changes nothing if it
selects: if each result is one of the elements. Other computations without a counterpart among collectives stay whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from reshard.synthesis.planner.entry import Plan

from ..ir.ops import dense_elements
from ..ir.reductions import (
    is_splittable,
    neutral_element,
    reducing_op,
    reduction_of,
    write_reducer,
)
from ..platform.bindings import ir, stablehlo
from .local_rules import Axes, Dims, Rule, Site, but, is_even, padding_of, shards
from .partial_sums import begins_with_nothing
from .tile_masks import filled


class Converter(Protocol):
    """Plans the changes of layout of what the first stage makes."""

    def converted(self, site: Site, kind: ir.Type, before: Dims, after: Dims) -> Plan: ...


class StageWriter(Protocol):
    """The writer of one op on tiles, at the current insertion point."""

    def place(self, axes: Axes) -> ir.Value:
        """Returns the number of this device's shard along the axes, a tensor<1xi32>."""
        ...

    def moved(self, number: int, tile: ir.Value) -> ir.Value:
        """Writes one of the rule's changes of layout on a tile, and returns the tile after it."""
        ...

    def same(
        self, operands: Sequence[ir.Value], sizes: Mapping[str, Sequence[int] | ir.Attribute] | None = None
    ) -> list[ir.Value]:
        """Writes the op itself on tiles, with attributes replaced, and returns its results."""
        ...


def reduced_in_stages(site: Site, converter: Converter) -> Iterator[Rule]:
    """Yields the rule of a reduction along one split dimension that selects among elements."""
    if site.op.name != "stablehlo.reduce" or len(site.ints("dimensions")) > 1 or not _selects(site.op):
        return
    count, reduced, operand = len(site.operands) // 2, site.ints("dimensions"), site.operands[0]
    element = ir.RankedTensorType(site.op.results[0].type).element_type
    if count == 1 and is_splittable(element, reduction_of(site.op)):
        return
    axes = tuple(axis for d in reduced for axis in operand[d])
    if not axes:
        return
    result = tuple(operand[d] for d in but(len(operand), *reduced))
    shape = [shards(axes), *site.result_shape]
    kinds = [_tensor(shape, value) for value in site.op.results]
    plans = [converter.converted(site, kind, (axes, *result), ((), *result)) for kind in kinds]
    operands = (operand,) * count + ((),) * count
    write = functools.partial(_write_reduce, site, reduced)
    yield Rule(operands, (result,) * count, moves=tuple(plans), write=write)


def _selects(reduce: ir.Operation) -> bool:
    """Returns whether a reduction compares and selects only, so that each result is one of the elements."""
    *body, _ = [each.operation for each in reduce.regions[0].blocks[0].operations]
    return all(each.name in _SELECTING for each in body)


_SELECTING = frozenset(f"stablehlo.{each}" for each in ("and", "compare", "maximum", "minimum", "not", "or", "select"))


def _write_reduce(
    site: Site, reduced: Sequence[int], tiles: StageWriter, operands: Sequence[ir.Value]
) -> list[ir.Value]:
    count, dims = len(operands) // 2, site.operands[0]
    inits = operands[count:]
    held = [filled(tiles.place, tile, site.shape(0), dims, reduced, init) for tile, init in zip(operands, inits)]
    parts = [_reshaped(each, [1, *_shape(each)]) for each in tiles.same([*held, *inits])]
    every = [tiles.moved(number, part) for number, part in enumerate(parts)]
    return tiles.same([*every, *inits], {"dimensions": [0]})


def top_k_in_stages(site: Site, converter: Converter) -> Iterator[Rule]:
    """Yields the rule of `chlo.top_k` along a split dimension, if each tile has enough candidates."""
    operand, k = site.operands[0], site.result_shape[-1]
    axes, last = operand[-1], len(operand) - 1
    size = site.shape(0)[last]
    if not axes or not is_even(size, axes) or size // shards(axes) < k or not k:
        return
    shape = [*site.result_shape[:-1], k * shards(axes)]
    result = (*operand[:-1], ())
    plans = [converter.converted(site, _tensor(shape, value), operand, result) for value in site.op.results]
    write = functools.partial(_write_top_k, axes)
    yield Rule((operand,), (result, result), moves=tuple(plans), write=write)


def _write_top_k(axes: Axes, tiles: StageWriter, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Writes both stages. Equal values keep the order of their indices: candidates are in the order of the devices."""
    held = _shape(operands[0])[-1]
    values, indices = tiles.same(operands)
    kind = ir.RankedTensorType(indices.type)
    first = stablehlo.MulOp(tiles.place(axes), _constant([1], held)).result
    first = stablehlo.BroadcastInDimOp(kind, _reshaped(first, []), []).result
    indices = stablehlo.AddOp(indices, first).result
    values, indices = (tiles.moved(number, each) for number, each in enumerate((values, indices)))
    chosen, places = tiles.same([values])
    return [chosen, _taken_along_last(indices, places)]


def _taken_along_last(values: ir.Value, places: ir.Value) -> ir.Value:
    """Returns the values at places of their last dimension; the other dimensions are those of the places."""
    rank = len(_shape(values))
    batch = list(range(rank - 1))
    numbers = stablehlo.GatherDimensionNumbers.get([], [rank - 1], batch, batch, [rank - 1], rank)
    return stablehlo.GatherOp(values, places, numbers, [1] * rank).result


def running_in_stages(site: Site, converter: Converter) -> Iterator[Rule]:
    """Yields the rule of a reduce_window whose windows reach from the beginning of a split dimension, or to its end."""
    along = _running_along(site)
    if along is None or not site.operands[0][along]:
        return
    dims = site.operands[0]
    shape = [shards(dims[d]) if d == along else size for d, size in enumerate(site.shape(0))]
    whole = tuple(() if d == along else axes for d, axes in enumerate(dims))
    totals = converter.converted(site, _tensor(shape, site.op.results[0]), dims, whole)
    yield Rule((dims, ()), (dims,), moves=(totals,), write=functools.partial(_write_running, site, along))


def _running_along(site: Site) -> int | None:
    """Returns the dimension along which a reduce_window reduces all elements before each one, or all behind it, with
    the element itself; None for another op."""
    if site.op.name != "stablehlo.reduce_window" or len(site.op.results) != 1:
        return None
    reduction, rank = reduction_of(site.op), len(site.results[0])
    element = ir.RankedTensorType(site.op.results[0].type).element_type
    if (
        reduction is None
        or not is_splittable(element, reduction)
        or not begins_with_nothing(site.op.operands[1], reduction)
    ):
        return None
    if any(set(site.ints(name) or [1]) != {1} for name in ("window_strides", "base_dilations", "window_dilations")):
        return None
    windows, padding = site.ints("window_dimensions"), padding_of(site.op, rank)
    along = [d for d in range(rank) if windows[d] != 1 or padding[d] != (0, 0)]
    if len(along) != 1 or site.shape(0)[along[0]] != windows[along[0]]:
        return None
    most = windows[along[0]] - 1
    return along[0] if padding[along[0]] in ((most, 0), (0, most)) else None


def _write_running(site: Site, along: int, tiles: StageWriter, operands: Sequence[ir.Value]) -> list[ir.Value]:
    (tile, init), dims = operands, site.operands[0]
    reduction, is_forward = reduction_of(site.op) or "sum", padding_of(site.op, len(dims))[along][0] > 0
    tile = filled(tiles.place, tile, site.shape(0), dims, [along], reduction)
    (own,) = tiles.same([tile, init], _window_of_tile(_shape(tile), along, is_forward))
    total = _slice_at(own, along, _shape(own)[along] - 1 if is_forward else 0)
    every = tiles.moved(0, total)
    others = _others_only(every, tiles.place(dims[along]), along, reduction, is_forward)
    combined = stablehlo.BroadcastInDimOp(own.type, others, but(len(dims), along)).result
    pair = [combined, own] if is_forward else [own, combined]
    return [ir.Operation.create(reducing_op(reduction), [own.type], pair).results[0]]


def _window_of_tile(shape: Sequence[int], along: int, is_forward: bool) -> dict[str, Sequence[int] | ir.Attribute]:
    """Returns the window and the padding of a running reduction on a tile of some shape."""
    reach = shape[along] - 1
    sides = [[0, 0] for _ in shape]
    sides[along] = [reach, 0] if is_forward else [0, reach]
    padding = dense_elements(np.array(sides, np.int64))
    return {"window_dimensions": [reach + 1 if d == along else 1 for d in range(len(shape))], "padding": padding}


def _slice_at(value: ir.Value, along: int, index: int) -> ir.Value:
    shape = _shape(value)
    starts = [index if d == along else 0 for d in range(len(shape))]
    limits = [index + 1 if d == along else size for d, size in enumerate(shape)]
    return stablehlo.SliceOp(value, starts, limits, [1] * len(shape)).result


def _others_only(every: ir.Value, place: ir.Value, along: int, reduction: str, is_forward: bool) -> ir.Value:
    """Returns what is combined of the results of all tiles before this device's one, or of all behind it.

    Args:
      every: the result of each tile, at its number along a dimension.
      place: the number of this device's tile, a tensor<1xi32>.
    """
    kind = ir.RankedTensorType(every.type)
    line = ir.RankedTensorType.get([kind.shape[along]], ir.IntegerType.get_signless(32))
    own = stablehlo.BroadcastInDimOp(line, place, [0]).result if kind.shape[along] > 1 else place
    direction = stablehlo.ComparisonDirectionAttr.get("LT" if is_forward else "GT")
    is_other = stablehlo.CompareOp(stablehlo.IotaOp(line, 0).result, own, direction).result
    mask = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(1))
    is_other = stablehlo.BroadcastInDimOp(mask, is_other, [along]).result
    held = stablehlo.SelectOp(is_other, every, neutral_element(kind, reduction)).result
    scalar = ir.RankedTensorType.get([], kind.element_type)
    result = _tensor([size for d, size in enumerate(kind.shape) if d != along], every)
    reduce = stablehlo.ReduceOp([result], [held], [neutral_element(scalar, reduction)], [along]).operation
    write_reducer(reduce, kind.element_type, reduction)
    return reduce.results[0]


def _tensor(shape: Sequence[int], like: ir.Value) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(like.type).element_type)


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _reshaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return stablehlo.ReshapeOp(_tensor(shape, value), value).result


def _constant(shape: Sequence[int], value: int) -> ir.Value:
    number = ir.IntegerType.get_signless(32)
    splat = ir.DenseElementsAttr.get_splat(
        ir.RankedTensorType.get(list(shape), number), ir.IntegerAttr.get(number, value)
    )
    return stablehlo.ConstantOp(splat).result
