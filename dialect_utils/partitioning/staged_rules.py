# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that select or combine along a split dimension in two stages: on each tile, then among the results.

`local_rules` has the rules in which such a dimension is whole. Here each device does the op on its tile, all devices
exchange the small results, and each does the op again on these:

    reduce that selects, as argmax    the results of all devices along a new dimension, reduced again
    top_k                             k candidates of each device, of which the first k are taken

A reduction counts its initial value once for each device, and once more in the second stage. That changes nothing if it
selects: if each result is one of the elements. Other computations without a counterpart among collectives stay whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Protocol

from reshard.synthesis.planner.entry import Plan

from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, stablehlo
from .local_rules import Axes, Dims, Rule, Site, but, is_even, shards
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

    def same(self, operands: Sequence[ir.Value], sizes: dict[str, list[int]] | None = None) -> list[ir.Value]:
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
