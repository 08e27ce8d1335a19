# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that look up or write places of an array whose dimension is split: no device needs all of it.

`local_rules` has the rules in which such a dimension is whole. Here each device works on the places that it has, with
indices counted from its first one:

    gather, dynamic_slice            what lies elsewhere is read as zero, so the results are partial sums
    gather of split windows          each device looks up its part of every window, and no indices are split by its axes
    scatter, dynamic_update_slice    what lies elsewhere is not written
    scatter of split updates         each device writes its own updates into zeros, so the results are partial sums

The zero of floats is -0.0: x + -0.0 is x for every x, also for -0.0. So looked-up values arrive bit for bit where a
reduction adds up its operands alone. One that begins with 0.0, as those of CPU devices may, loses the sign of -0.0;
stock XLA, which reads 0.0 for what lies elsewhere, always does.

An op may have several of these rules, and the rule of `local_rules` beside them; which one moves least is for the
caller to decide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..emission.slice_starts import clamped, wide_enough
from ..ir.fusing import may_be_fused
from ..ir.ops import producer_of
from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from .local_rules import Axes, Dims, Rule, Site, but, is_even, overlap, rule_of, tile_size, without_axes
from .partial_sums import begins_with_nothing


class TileWriter(Protocol):
    """The writer of one op on tiles, at the current insertion point."""

    def place(self, axes: Axes) -> ir.Value:
        """Returns the number of this device's shard along the axes, a tensor<1xi32>."""
        ...

    def same(self, operands: Sequence[ir.Value], sizes: dict[str, list[int]] | None = None) -> list[ir.Value]:
        """Writes the op itself on tiles, with sizes replaced, and other indices than its own; returns its results."""
        ...


def rules_of(site: Site) -> list[Rule]:
    """Returns the rules of an op: that of `local_rules`, then those in which an indexed dimension stays split.

    Raises: NotLocal with the reason if the op does not run on tiles.
    """
    make, whole = _RULES.get(site.op.name, lambda site: ()), rule_of(site)
    if site.op.name == "stablehlo.dynamic_update_slice":
        whole = replace(whole, write=_write_whole_update)
    return [whole, *make(site)]


def is_indexed(op: ir.Operation) -> bool:
    """Returns whether an op looks up or writes places of an array."""
    return op.name in _RULES


# Gather


def _gather(site: Site) -> Iterator[Rule]:
    numbers = stablehlo.GatherDimensionNumbers(site.op.attributes["dimension_numbers"])
    taken, table = site.ints("slice_sizes"), site.operands[0]
    looked_up = [d for d in numbers.start_index_map if taken[d] == 1]
    wanted, offsets, windows = site.results[0], list(numbers.offset_dims), _windows(numbers, len(table))
    batches = but(len(wanted), *offsets)
    if (parts := _with_windows(site, dict(zip(offsets, windows, strict=True)), batches)) != wanted:
        yield rule_of(replace(site, results=(parts,)))
    if not any(table[d] for d in looked_up) or not _sums(site):
        return
    own = {d: table[d] for d in looked_up if table[d]}
    batch_axes = [axis for to in batches for axis in wanted[to]]
    beside = {d: axes for d, axes in own.items() if not overlap(axes, batch_axes)}
    as_it_is = {to: table[d] for to, d in zip(offsets, windows) if taken[d] == site.shape(0)[d]}
    as_wanted = {to: wanted[to] for to, d in zip(offsets, windows) if taken[d] == site.shape(0)[d]}
    for owned, parts in ((own, as_it_is), (own, as_wanted), (beside, as_wanted)):
        if owned:
            yield _gather_rule(site, numbers, owned, parts)


def _with_windows(site: Site, windows: Mapping[int, int], batches: Collection[int]) -> Dims:
    """Returns the layout of a gather's result in which windows are split as they are in the table, and its other
    dimensions as they are wanted, as far as their axes are free.

    Args:
      windows: dimensions of the table by those of the result. batches: the other dimensions of the result.
    """
    taken, table, result = site.ints("slice_sizes"), site.operands[0], list(site.results[0])
    for to, d in windows.items():
        result[to] = table[d] if taken[d] == site.shape(0)[d] else ()
    used = [axis for to in windows for axis in result[to]]
    for to in batches:
        result[to] = without_axes(result[to], used)
    return tuple(result)


def _gather_rule(site: Site, numbers, owned: dict[int, Axes], parts: dict[int, Axes]) -> Rule:
    """Returns the rule in which dimensions are split as `owned` says, and offset dimensions of the result as `parts`
    says, as far as their axes are free."""
    wanted, taken, rank = site.results[0], site.ints("slice_sizes"), len(site.operands[1])
    windows = _windows(numbers, len(taken))
    operand: list[Axes] = [owned.get(d, ()) for d in range(len(taken))]
    indices: list[Axes] = [()] * rank
    result: list[Axes] = [()] * len(wanted)
    used = [axis for axes in owned.values() for axis in axes]
    for to, d in zip(numbers.offset_dims, windows, strict=True):
        if d not in owned:
            operand[d] = result[to] = without_axes(parts.get(to, ()), used)
            used += result[to]
    batches = but(len(wanted), *numbers.offset_dims)
    for to, d in zip(batches, but(rank, numbers.index_vector_dim), strict=True):
        indices[d] = result[to] = without_axes(wanted[to], used)
        used += result[to]
    for d, index in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        operand[d] = indices[index]
    sizes = [size if d in owned or d not in windows else tile_size(size, operand[d]) for d, size in enumerate(taken)]
    partial = tuple(sorted(axis for axes in owned.values() for axis in axes))
    write = functools.partial(_write_gather, site, numbers, owned, batches, sizes)
    dims = tuple(operand), tuple(indices)
    return Rule(dims, (tuple(result),), partial, _reduction(site), write=write)


def _windows(numbers, rank: int) -> list[int]:
    """Returns the dimensions of a gather's operand that its result has."""
    return but(rank, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims)


def _write_gather(
    site: Site, numbers, owned: dict[int, Axes], batches: list[int], sizes: list[int], tiles: TileWriter, operands
) -> list[ir.Value]:
    table, indices = operands[0], wide_enough(operands[1])
    kind = ir.RankedTensorType(indices.type)
    along = numbers.index_vector_dim
    is_implied = along == kind.rank
    index_map = list(numbers.start_index_map)
    last = [site.shape(0)[d] - site.ints("slice_sizes")[d] for d in index_map]
    held = [ir.RankedTensorType(table.type).shape[d] - 1 if d in owned else each for d, each in zip(index_map, last)]
    firsts = [
        _first(tiles, owned[d], held[i] + 1, kind.element_type) if d in owned else None for i, d in enumerate(index_map)
    ]
    to = [] if is_implied else [along]
    first = _along(_vector(firsts, kind.element_type, is_implied), kind, to)
    past = stablehlo.AddOp(first, _along(_numbers(held, kind.element_type, is_implied), kind, to)).result
    most = _along(_numbers(last, kind.element_type, is_implied), kind, to)
    least = _along(_numbers([0] * len(last), kind.element_type, is_implied), kind, to)
    place = stablehlo.ClampOp(least, indices, most).result
    is_here = _both(_compare(place, first, "GE"), _compare(place, past, "LE"))
    if not is_implied:
        is_here = _all_along(is_here, along)
    found = tiles.same([table, stablehlo.SubtractOp(place, first).result], {"slice_sizes": sizes})[0]
    result = ir.RankedTensorType(found.type)
    mask = ir.RankedTensorType.get(result.shape, ir.IntegerType.get_signless(1))
    is_here = stablehlo.BroadcastInDimOp(mask, is_here, batches).result
    return [stablehlo.SelectOp(is_here, found, nothing(result)).result]


# Scatter


def _scatter(site: Site) -> Iterator[Rule]:
    numbers = stablehlo.ScatterDimensionNumbers(site.op.attributes["scatter_dimension_numbers"])
    count, wanted = len(site.results), site.results[0]
    written = [d for d in numbers.scattered_dims_to_operand_dims if d in numbers.inserted_window_dims]
    owned = {d: wanted[d] for d in written if wanted[d]}
    updates, sizes = site.operands[count + 1], site.shape(count + 1)
    places, batching = _places(site, numbers), list(numbers.scatter_indices_batching_dims)
    split = {at: updates[at] for at, index in places.items() if updates[at] and index not in batching}
    split = {at: axes for at, axes in split.items() if is_even(sizes[at], axes)}  # updates of padding would be written
    choices: list[tuple[dict[int, Axes], dict[int, Axes]]] = [(owned, {})] if owned else []
    if split and _adds_to_nothing(site):
        choices += [(owned, split), ({}, split)] if owned else [({}, split)]
    for own, apart in choices:
        yield _scatter_rule(site, numbers, own, apart)


def _adds_to_nothing(site: Site) -> bool:
    """Returns whether a scatter combines updates with an array of neutral elements, so that parts of the updates can
    be scattered alone."""
    reduction = reduction_of(site.op) if len(site.results) == 1 else None
    if reduction is None or not is_splittable(ir.RankedTensorType(site.op.results[0].type).element_type, reduction):
        return False
    return begins_with_nothing(site.op.operands[0], reduction)


def _scatter_rule(site: Site, numbers, owned: dict[int, Axes], apart: dict[int, Axes]) -> Rule:
    """Returns the rule in which dimensions of the result are split as `owned` says, and those of the updates that are
    no windows as `apart` says, as far as their axes are free."""
    count, wanted = len(site.results), site.results[0]
    shape, update_shape = site.shape(0), site.shape(count + 1)
    indices: list[Axes] = [()] * len(site.operands[count])
    updates: list[Axes] = [()] * len(update_shape)
    result: list[Axes] = [owned.get(d, ()) for d in range(len(shape))]
    used = [axis for axes in owned.values() for axis in axes]
    index_of = _places(site, numbers)
    place_of = {index: at for at, index in index_of.items()}
    for at, axes in apart.items():
        updates[at] = indices[index_of[at]] = without_axes(axes, used)
        used += updates[at]
    partial = tuple(sorted(axis for axes in updates for axis in axes))
    batching = list(numbers.input_batching_dims)
    for d, index in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        result[d] = indices[index] = updates[place_of[index]] = without_axes(wanted[d], used)
        used += result[d]
    windows = but(len(shape), *numbers.inserted_window_dims, *batching)
    for at, d in zip(numbers.update_window_dims, windows, strict=True):
        if update_shape[at] == shape[d]:
            result[d] = updates[at] = without_axes(wanted[d], used)
            used += result[d]
    dims = ((tuple(result),) * count, (tuple(indices),), (tuple(updates),) * count)
    reduction = (reduction_of(site.op) if partial else None) or "sum"
    write = functools.partial(_write_scatter, numbers, owned, count) if owned else None
    return Rule(sum(dims, ()), (tuple(result),) * count, partial, reduction, write=write)


def _places(site: Site, numbers) -> dict[int, int]:
    """Returns the dimensions of a scatter's updates that are no windows, each with its dimension of the indices."""
    count = len(site.results)
    of_updates = but(len(site.operands[count + 1]), *numbers.update_window_dims)
    of_indices = but(len(site.operands[count]), numbers.index_vector_dim)
    return dict(zip(of_updates, of_indices, strict=True))


def _write_scatter(numbers, owned: dict[int, Axes], count: int, tiles: TileWriter, operands) -> list[ir.Value]:
    """Writes the scatter with indices counted from the tile's first place. What lies outside is not written."""
    indices = wide_enough(operands[count])
    kind = ir.RankedTensorType(indices.type)
    held = ir.RankedTensorType(operands[0].type).shape
    is_implied = numbers.index_vector_dim == kind.rank
    firsts = [
        _first(tiles, owned[d], held[d], kind.element_type) if d in owned else None
        for d in numbers.scattered_dims_to_operand_dims
    ]
    first = _along(
        _vector(firsts, kind.element_type, is_implied), kind, [] if is_implied else [numbers.index_vector_dim]
    )
    shifted = stablehlo.SubtractOp(indices, first).result
    return tiles.same([*operands[:count], shifted, *operands[count + 1 :]])


# Dynamic slices


def _dynamic_slice(site: Site) -> Iterator[Rule]:
    shape, taken, before, wanted = site.shape(0), site.ints("slice_sizes"), site.operands[0], site.results[0]
    cut = [d for d, size in enumerate(shape) if taken[d] != size]
    owned = {d: before[d] for d in cut if before[d]}
    if not owned or not all(taken) or not _sums(site):
        return
    used = [axis for axes in owned.values() for axis in axes]
    result = tuple(() if d in cut else without_axes(axes, used) for d, axes in enumerate(wanted))
    operand = tuple(owned.get(d, axes) for d, axes in enumerate(result))
    sizes = [size if d in cut else tile_size(size, result[d]) for d, size in enumerate(taken)]
    write = functools.partial(_write_dynamic_slice, site, owned, sizes)
    indices = ((),) * (len(site.operands) - 1)
    yield Rule((operand, *indices), (result,), tuple(sorted(used)), _reduction(site), write=write)


def _write_dynamic_slice(
    site: Site, owned: dict[int, Axes], sizes: list[int], tiles: TileWriter, operands
) -> Sequence[ir.Value]:
    tile, starts = operands[0], [wide_enough(each) for each in operands[1:]]
    kind = ir.RankedTensorType(tile.type)
    around = {d: sizes[d] for d in owned if sizes[d] > 1}
    is_here = None
    for d, axes in owned.items():
        number = ir.RankedTensorType(starts[d].type).element_type
        first = _scalar(_first(tiles, axes, kind.shape[d], number))
        place = clamped(starts[d], site.shape(0)[d] - sizes[d])
        if d in around:
            first = stablehlo.SubtractOp(first, _number(sizes[d], number)).result
        else:
            within = _within(place, first, kind.shape[d])
            is_here = within if is_here is None else _both(is_here, within)
        starts[d] = stablehlo.SubtractOp(place, first).result
    if around:
        low = [around.get(d, 0) for d in range(kind.rank)]
        zero = nothing(ir.RankedTensorType.get([], kind.element_type))
        tile = stablehlo.PadOp(tile, zero, low, low, [0] * kind.rank).result
    found = stablehlo.DynamicSliceOp(tile, starts, sizes).result
    if is_here is None:
        return [found]
    result = ir.RankedTensorType(found.type)
    mask = ir.RankedTensorType.get(result.shape, ir.IntegerType.get_signless(1))
    return [stablehlo.SelectOp(stablehlo.BroadcastInDimOp(mask, is_here, []).result, found, nothing(result)).result]


def _dynamic_update_slice(site: Site) -> Iterator[Rule]:
    shape, update, wanted = site.shape(0), site.shape(1), site.results[0]
    cut = [d for d, size in enumerate(shape) if update[d] != size]
    owned = {d: wanted[d] for d in cut if wanted[d]}
    if not owned or not all(update) or len(owned) > 1 and any(update[d] > 1 for d in owned):
        return
    part = tuple(() if d in cut else axes for d, axes in enumerate(wanted))
    result = tuple(axes if d in owned or d not in cut else () for d, axes in enumerate(wanted))
    write = functools.partial(_write_dynamic_update_slice, site, owned)
    indices = ((),) * (len(site.operands) - 2)
    yield Rule((result, part, *indices), (result,), write=write)


def _write_dynamic_update_slice(site: Site, owned: dict[int, Axes], tiles: TileWriter, operands) -> Sequence[ir.Value]:
    """Writes what the update has for this device's places; elsewhere the tile's own elements are written again."""
    tile, update, starts = operands[0], operands[1], [wide_enough(each) for each in operands[2:]]
    own = update
    kind, sizes = ir.RankedTensorType(tile.type), list(ir.RankedTensorType(update.type).shape)
    is_here = None
    for d, axes in owned.items():
        number = ir.RankedTensorType(starts[d].type).element_type
        size, held = site.shape(1)[d], kind.shape[d]
        first = _scalar(_first(tiles, axes, held, number))
        place = clamped(starts[d], site.shape(0)[d] - size)
        if size == 1:
            within = _within(place, first, held)
            is_here = within if is_here is None else _both(is_here, within)
            starts[d] = stablehlo.SubtractOp(place, first).result
        else:
            update, is_here = _spread(update, d, held, first, place)
            starts[d], sizes[d] = _number(0, number), held
    found = stablehlo.DynamicSliceOp(tile, starts, sizes).result
    mask = ir.RankedTensorType.get(sizes, ir.IntegerType.get_signless(1))
    to = [d for d in owned if site.shape(1)[d] > 1]
    written = stablehlo.SelectOp(stablehlo.BroadcastInDimOp(mask, present(is_here), to).result, update, found).result
    return [_updated(tile, written, starts, own)]


def _write_whole_update(_: TileWriter, operands: Sequence[ir.Value]) -> Sequence[ir.Value]:
    tile, update, *starts = operands
    return [_updated(tile, update, starts, update)]


def _updated(tile: ir.Value, written: ir.Value, starts: Sequence[ir.Value], update: ir.Value) -> ir.Value:
    """Returns a tile with `written` at the starts, which is made of the program's `update`.

    If the update reads the tile, XLA for CPU devices may write in place of what it still has to read, through an
    optimization_barrier, too (jaxlib 0.10.2). So such an update is written into nothing, and selected where it is.
    """
    if not _reads(update, tile):
        return stablehlo.DynamicUpdateSliceOp(tile, written, starts).result
    truth, kind = ir.IntegerType.get_signless(1), ir.RankedTensorType(tile.type)
    nowhere, everywhere = (
        stablehlo.ConstantOp(
            ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get(shape, truth), ir.IntegerAttr.get(truth, number))
        ).result
        for shape, number in ((kind.shape, 0), (ir.RankedTensorType(written.type).shape, 1))
    )
    is_written = stablehlo.DynamicUpdateSliceOp(nowhere, everywhere, starts).result
    apart = stablehlo.DynamicUpdateSliceOp(nothing(kind), written, starts).result
    return stablehlo.SelectOp(is_written, apart, tile).result


def _reads(value: ir.Value, source: ir.Value) -> bool:
    """Returns whether a value is computed from another one by ops alone that XLA may fuse with its use."""
    waiting, seen = [value], {value}
    while waiting:
        op = producer_of(waiting.pop())
        if op is None or not may_be_fused(op):
            continue
        if source in list(op.operands):
            return True
        waiting += [each for each in op.operands if each not in seen]
        seen.update(op.operands)
    return False


def _spread(update: ir.Value, dim: int, held: int, first: ir.Value, place: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns an update with its elements at the places of the tile, and which of these places it covers.

    Args:
      held: the size of the tile along `dim`. first: its first place. place: that of the update.
    """
    kind = ir.RankedTensorType(update.type)
    number = ir.RankedTensorType(place.type).element_type
    around = [held if each == dim else 0 for each in range(kind.rank)]
    zero = nothing(ir.RankedTensorType.get([], kind.element_type))
    padded = stablehlo.PadOp(update, zero, around, around, [0] * kind.rank).result
    ahead = stablehlo.SubtractOp(stablehlo.AddOp(first, _number(held, number)).result, place).result
    starts = [ahead if each == dim else _number(0, number) for each in range(kind.rank)]
    sizes = [held if each == dim else size for each, size in enumerate(kind.shape)]
    line = ir.RankedTensorType.get([held], number)
    places = stablehlo.AddOp(stablehlo.IotaOp(line, 0).result, _along(first, line, [])).result
    end = _along(stablehlo.AddOp(place, _number(kind.shape[dim] - 1, number)).result, line, [])
    covered = _both(_compare(places, _along(place, line, []), "GE"), _compare(places, end, "LE"))
    return stablehlo.DynamicSliceOp(padded, starts, sizes).result, covered


# Values


def nothing(kind: ir.RankedTensorType) -> ir.Value:
    """Inserts an array whose elements change nothing in a sum: -0.0, 0, or false for truth values in an `or`."""
    element = kind.element_type
    if isinstance(element, ir.ComplexType):
        part = nothing(ir.RankedTensorType.get(kind.shape, ir.ComplexType(element).element_type))
        return stablehlo.ComplexOp(part, part).result
    is_integer = isinstance(element, ir.IntegerType)
    zero = ir.IntegerAttr.get(element, 0) if is_integer else ir.FloatAttr.get(element, -0.0)
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, zero)).result


def _reduction(site: Site) -> str:
    element = ir.RankedTensorType(site.op.results[0].type).element_type
    return "or" if isinstance(element, ir.IntegerType) and ir.IntegerType(element).width == 1 else "sum"


def _sums(site: Site) -> bool:
    """Returns whether devices can add up parts of the results."""
    element = ir.RankedTensorType(site.op.results[0].type).element_type
    has_zero = "E8M0" not in str(element)
    return has_zero and is_splittable(element, _reduction(site))


def _first(tiles: TileWriter, axes: Axes, held: int, number: ir.Type) -> ir.Value:
    """Returns the first place that this device has of a dimension, a tensor of one number."""
    place = tiles.place(axes)
    if ir.RankedTensorType(place.type).element_type != number:
        place = stablehlo.ConvertOp(ir.RankedTensorType.get([1], number), place).result
    return stablehlo.MulOp(place, _numbers([held], number)).result


def _scalar(line: ir.Value) -> ir.Value:
    kind = ir.RankedTensorType(line.type)
    return stablehlo.ReshapeOp(ir.RankedTensorType.get([], kind.element_type), line).result


def _vector(parts: Sequence[ir.Value | None], number: ir.Type, is_scalar: bool) -> ir.Value:
    """Returns the parts, each of one number, in one line; None is 0. A scalar if it is to be one."""
    line = [_numbers([0], number) if each is None else each for each in parts]
    if is_scalar:
        return _scalar(line[0])
    return line[0] if len(line) == 1 else stablehlo.ConcatenateOp(line, 0).result


def _numbers(values: Sequence[int], number: ir.Type, is_scalar: bool = False) -> ir.Value:
    """Inserts a line of numbers of a type; a scalar if it is to be one."""
    elements = [ir.IntegerAttr.get(number, value) for value in values]
    kind = ir.RankedTensorType.get([] if is_scalar else [len(values)], number)
    if len(set(values)) == 1:
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, elements[0])).result
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get(elements, kind)).result


def _number(value: int, number: ir.Type) -> ir.Value:
    return _numbers([value], number, is_scalar=True)


def _along(value: ir.Value, like: ir.RankedTensorType, dims: Sequence[int]) -> ir.Value:
    """Returns a value repeated to the shape of `like`; `dims` are its dimensions there."""
    element = ir.RankedTensorType(value.type).element_type
    return stablehlo.BroadcastInDimOp(ir.RankedTensorType.get(like.shape, element), value, list(dims)).result


def _within(place: ir.Value, first: ir.Value, held: int) -> ir.Value:
    """Returns whether a place is among the `held` ones from `first` on."""
    number = ir.RankedTensorType(place.type).element_type
    last = stablehlo.AddOp(first, _number(held - 1, number)).result
    return _both(_compare(place, first, "GE"), _compare(place, last, "LE"))


def _compare(one: ir.Value, other: ir.Value, direction: str) -> ir.Value:
    return stablehlo.CompareOp(one, other, stablehlo.ComparisonDirectionAttr.get(direction)).result


def _both(one: ir.Value, other: ir.Value) -> ir.Value:
    return stablehlo.AndOp(one, other).result


def _all_along(value: ir.Value, dim: int) -> ir.Value:
    """Returns whether all elements along a dimension are true."""
    kind = ir.RankedTensorType(value.type)
    scalar = ir.RankedTensorType.get([], kind.element_type)
    start = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(kind.element_type, 1)))
    shape = [size for d, size in enumerate(kind.shape) if d != dim]
    result = ir.RankedTensorType.get(shape, kind.element_type)
    op = stablehlo.ReduceOp([result], [value], [start.result], [dim]).operation
    block = op.regions[0].blocks.append(scalar, scalar, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AndOp(*block.arguments).result])
    return op.results[0]


_RULES: dict[str, Callable[[Site], Iterable[Rule]]] = {
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
