# SPDX-License-Identifier: Apache-2.0
"""Rules for ops on one device's tiles: the layouts of operands and results with which an op may run per device.

A rule never assumes that an op means the same on tiles: it names the dimensions that may stay split. If the layouts
around the op split more, the rule asks for other layouts, and the converter changes the layouts of operands and
results. So an op always has the rule's layouts, whatever propagation found. An op without a rule is refused.

    sort along dimension 1      dimension 1 whole, all others as they are
    dot_general                 contracted dimensions may be split alike on both sides: results are then partial sums
    slice                       a dimension that it takes whole may be split; its limit is then the size of the tile

Source: the StableHLO specification, for the meaning of the ops.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.plans.plan import Plan

from ..ir.fusing import ELEMENTWISE
from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, stablehlo

Axes = tuple[Factor, ...]
Dims = tuple[Axes, ...]  # the axes that split each dimension, major to minor


class NotLocal(ValueError):
    """Raised for an op that does not run on tiles; the message gives the user the reason."""


@dataclass(frozen=True, slots=True)
class Site:
    """An op with the layouts of its operands and the layouts that its results are to have."""

    op: ir.Operation
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    def shape(self, operand: int) -> list[int]:
        return list(ir.RankedTensorType(self.op.operands[operand].type).shape)

    @property
    def result_shape(self) -> list[int]:
        return list(ir.RankedTensorType(self.op.results[0].type).shape)

    def ints(self, name: str) -> list[int]:
        """Returns a DenseI64ArrayAttr of the op; empty if it has none."""
        return list(ir.DenseI64ArrayAttr(self.op.attributes[name])) if name in self.op.attributes else []

    def int(self, name: str) -> int:
        return ir.IntegerAttr(self.op.attributes[name]).value


@dataclass(frozen=True, slots=True)
class Rule:
    """The way in which an op runs on tiles.

    Attributes:
      operands, results: the layouts of its operands and results.
      partial: the axes along which results are partial results of `reduction`.
      sizes: attributes that hold sizes of whole dimensions, with the sizes of the tile.
      filled: the dimensions along which the op combines elements of an operand, by the operand's number. Their padding
        is filled with what changes nothing in `reduction` (`tile_masks.py`).
      whole: says which dimension the op needs whole, and why; empty if it needs none.
      moves: the plans by which elements of the operands get to other devices in `write`.
      write: writes the op, given its writer and the tiles of its operands, and returns its results; None for the op
        itself on tiles.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    partial: Axes = ()
    reduction: str = "sum"
    sizes: dict[str, list[int]] = field(default_factory=dict)
    filled: Mapping[int, Sequence[int]] = field(default_factory=dict)
    whole: str = ""
    moves: tuple[Plan, ...] = ()
    write: Callable[..., Sequence[ir.Value]] | None = None


def rule_of(site: Site) -> Rule:
    """Returns the rule of the op of a site. Raises: NotLocal with the reason if the op does not run on tiles."""
    name = site.op.name
    if name in ELEMENTWISE:
        return _elementwise(site)
    if name in _RULES:
        return _RULES[name](site)
    if name in _DONE_EVERYWHERE or name == "stablehlo.custom_call" and _is_linear_algebra(site.op):
        return _everywhere(site)
    raise NotLocal("it has no rule for tiles")


def elementwise(site: Site) -> Rule:
    """Returns the rule of an op that computes each element of its results from the same element of its operands.

    Raises: NotLocal for one that, by its shapes or its regions, does something else: `chlo.broadcast_add`,
    `chlo.ragged_dot`.
    """
    values = (*site.op.operands, *site.op.results)
    shapes = {tuple(ir.RankedTensorType(value.type).shape) for value in values}
    if len(shapes) > 1 or not len(site.op.operands) or len(site.op.regions):
        raise NotLocal("it has no rule for tiles")
    return _elementwise(site)


def top_k(site: Site) -> Rule:
    """Returns the rule of `chlo.top_k`: it selects along the last dimension."""
    last = len(site.results[0]) - 1
    kept = _without(site.results[0], [last])
    return Rule((kept,), (kept,) * len(site.results), whole=f"it selects along dimension {last}")


def _elementwise(site: Site) -> Rule:
    dims = site.results[0]
    operands = tuple(dims if len(each) == len(dims) else () for each in site.operands)
    return Rule(operands, (dims,) * len(site.results))


def _barrier(site: Site) -> Rule:
    return Rule(site.results, site.results)


def _bitcast_convert(site: Site) -> Rule:
    ranks = len(site.operands[0]), len(site.results[0])
    common = site.results[0][: min(ranks)]
    padded = tuple(common + ((),) * (rank - min(ranks)) for rank in ranks)
    return Rule((padded[0],), (padded[1],), whole="it takes elements apart along the last dimension")


def _broadcast_in_dim(site: Site) -> Rule:
    shape, result = site.shape(0), site.results[0]
    targets = site.ints("broadcast_dimensions")
    operand = tuple(result[d] if shape[i] == site.result_shape[d] else () for i, d in enumerate(targets))
    return Rule((operand,), (result,))


def _transpose(site: Site) -> Rule:
    operand = unsplit(len(site.results[0]))
    for to, axis in enumerate(site.ints("permutation")):
        operand[axis] = site.results[0][to]
    return Rule((tuple(operand),), (site.results[0],))


# Reshapes: a digit that an axis owns has a place in the row-major index of an element, and a reshape keeps this index.


def _reshape(site: Site) -> Rule:
    """Returns the rule of a reshape.

    A dimension that does not divide into its shards has no digits, so it stays split only if the reshape keeps it.
    """
    shapes, sides = (site.shape(0), site.result_shape), (site.operands[0], site.results[0])
    padded = [
        kept
        for kept in _kept_dimensions(*shapes)
        if not all(is_even(shape[d], dims[d]) for shape, dims, d in zip(shapes, sides, kept, strict=True))
    ]
    operand, result = (_even_part(*each, [kept[at] for kept in padded]) for at, each in enumerate(zip(shapes, sides)))
    before, after = shapes
    if _places(before, operand) == _places(after, result):
        return _beside(operand, result, padded, sides[1], at=1)
    wanted = _dims_of(before, _places(after, result))
    if wanted is not None:
        return _beside(wanted, result, padded, sides[1], at=1)
    given = _dims_of(after, _places(before, operand))
    if given is not None:
        return _beside(operand, given, padded, sides[0], at=0)
    return Rule((_whole(operand),), (_whole(result),), whole="the layouts have no digits in common")


def _kept_dimensions(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the dimensions, larger than 1, that a reshape keeps: each with its number before and after."""
    numbers = {(math.prod(before[:d]), size): d for d, size in enumerate(before) if size > 1}
    ends = ((math.prod(after[:d]), size) for d, size in enumerate(after))
    return [(numbers[end], to) for to, end in enumerate(ends) if end in numbers and end[1] > 1]


def _even_part(shape: Sequence[int], dims: Dims, but_for: Sequence[int]) -> Dims:
    """Returns a layout without the axes that do not divide their dimension, and without those of some dimensions."""
    return tuple(
        () if d in but_for else dividing(size, axes) for d, (size, axes) in enumerate(zip(shape, dims, strict=True))
    )


def _beside(operand: Dims, result: Dims, kept: Sequence[tuple[int, int]], side: Dims, at: int) -> Rule:
    """Returns a reshape's rule in which the dimensions that it keeps are split as on one side, its `at`-th one."""
    both = [list(operand), list(result)]
    for pair in kept:
        for dims, d in zip(both, pair, strict=True):
            dims[d] = side[pair[at]]
    return Rule((tuple(both[0]),), (tuple(both[1]),))


def _places(shape: Sequence[int], dims: Dims) -> dict[Factor, int]:
    """Returns for each prime piece of an axis the place value of its digit in the row-major index of an element."""
    places, behind = {}, math.prod(shape)
    for size, axes in zip(shape, dims, strict=True):
        place = behind
        behind = behind // size if size else 0
        for piece in (piece for axis in axes for piece in axis.primes()):
            place //= piece.size
            places[piece] = place
    return places


def _dims_of(shape: Sequence[int], places: dict[Factor, int]) -> Dims | None:
    """Returns the layout of an array of `shape` whose axes have these places; None if there is no such layout."""
    if not math.prod(shape):
        return None if places else ((),) * len(shape)
    at_top = {place * piece.size: piece for piece, place in places.items()}
    dims, behind = [], math.prod(shape)
    for size in shape:
        top, behind, axes = behind, behind // size, []
        while top in at_top and places[at_top[top]] % behind == 0:  # what is left of the dimension is whole
            axes.append(at_top.pop(top))
            top = places[axes[-1]]
        dims.append(joined(axes))
    return None if at_top else tuple(dims)


def joined(axes: Sequence[Factor]) -> Axes:
    """Returns the axes with neighbouring pieces of one axis as one."""
    found: list[Factor] = []
    for axis in axes:
        whole = axis.joined(found[-1]) if found else None
        found[-1:] = [whole] if whole else [*found[-1:], axis]
    return tuple(found)


# Reductions


def _reduce(site: Site) -> Rule:
    count = len(site.operands) // 2
    reduced = site.ints("dimensions")
    operand = site.operands[0]
    why = ""
    if any(operand[d] for d in reduced) and (count > 1 or not _is_splittable(site.op, reduction_of(site.op))):
        why = "it reduces along dimensions in a way that has no counterpart between devices"
        operand = _without(operand, reduced)
    partial = tuple(sorted(axis for d in reduced for axis in operand[d]))
    result = tuple(axes for d, axes in enumerate(operand) if d not in reduced)
    reduction = reduction_of(site.op) or "sum"
    along = {number: reduced for number in range(count)} if partial else {}
    return Rule((operand,) * count + ((),) * count, (result,) * count, partial, reduction, filled=along, whole=why)


def _is_splittable(op: ir.Operation, reduction: str | None) -> bool:
    """Returns whether devices can reduce their parts alone and then combine the results by `reduction`."""
    return is_splittable(ir.RankedTensorType(op.results[0].type).element_type, reduction)


def _dot_general(site: Site) -> Rule:
    numbers = stablehlo.DotDimensionNumbers(site.op.attributes["dot_dimension_numbers"])
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    contracted = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    return _product(site, batch, contracted)


def _dot(site: Site) -> Rule:
    return _product(site, ([], []), ([len(site.operands[0]) - 1], [0]))


def _product(site: Site, batch, contracted) -> Rule:
    """Returns the rule of a product of two operands.

    Batch and contracted dimensions are split alike on both sides, and each axis is used once.
    """
    sides = [list(dims) for dims in site.operands]
    for lhs, rhs in zip(*batch, strict=True):
        sides[1][rhs] = sides[0][lhs]
    for lhs, rhs in zip(*contracted, strict=True):
        if sides[0][lhs] != sides[1][rhs] or not _is_splittable(site.op, "sum"):
            sides[0][lhs] = sides[1][rhs] = ()
    partial = tuple(axis for d in contracted[0] for axis in sides[0][d])
    free = [[d for d in range(len(side)) if d not in batch[i] + contracted[i]] for i, side in enumerate(sides)]
    used = [axis for axes in sides[0] for axis in axes]
    for d in free[1]:
        if overlap(sides[1][d], used):
            sides[1][d] = ()
        used += sides[1][d]
    result = (*(sides[0][d] for d in batch[0]), *(sides[0][d] for d in free[0]), *(sides[1][d] for d in free[1]))
    return Rule(tuple(map(tuple, sides)), (tuple(result),), tuple(sorted(partial)), filled=dict(enumerate(contracted)))


def _convolution(site: Site) -> Rule:
    numbers = stablehlo.ConvDimensionNumbers(site.op.attributes["dimension_numbers"])
    lhs, rhs, result = (unsplit(len(dims)) for dims in (*site.operands, site.results[0]))
    is_grouped = site.int("feature_group_count") > 1 or site.int("batch_group_count") > 1
    partial: Axes = ()
    if not is_grouped:
        wanted = site.results[0]
        batch, features = wanted[numbers.output_batch_dimension], wanted[numbers.output_feature_dimension]
        lhs[numbers.input_batch_dimension] = result[numbers.output_batch_dimension] = batch
        rhs[numbers.kernel_output_feature_dimension] = result[numbers.output_feature_dimension] = features
        summed = site.operands[0][numbers.input_feature_dimension]
        is_alike = summed == site.operands[1][numbers.kernel_input_feature_dimension]
        if is_alike and not overlap(summed, batch + features) and _is_splittable(site.op, "sum"):
            lhs[numbers.input_feature_dimension] = rhs[numbers.kernel_input_feature_dimension] = partial = summed
    why = "groups of features or batches lie across devices" if is_grouped else "its window runs along dimensions"
    features = {0: [numbers.input_feature_dimension], 1: [numbers.kernel_input_feature_dimension]}
    return Rule((tuple(lhs), tuple(rhs)), (tuple(result),), tuple(sorted(partial)), filled=features, whole=why)


def is_along_dimensions(op: ir.Operation) -> bool:
    """Returns whether an op needs some dimensions whole, and is as cheap in any layout of the others."""
    return op.name in _ALONG_DIMENSIONS


_ALONG_DIMENSIONS = frozenset(f"stablehlo.{name}" for name in ("cholesky", "fft", "sort", "triangular_solve"))


def split_elsewhere(site: Site) -> Iterator[Site]:
    """Yields the site with results in which what splits dimensions that the op needs whole splits another one."""
    wanted, shape = site.results[0], site.result_shape
    kept = rule_of(site).results[0]
    freed = tuple(axis for before, after in zip(wanted, kept, strict=True) if before != after for axis in before)
    for dim, axes in enumerate(kept):
        split = tuple(joined(axes + freed) if each == dim else other for each, other in enumerate(kept))
        found = replace(site, results=(split,) * len(site.results))
        if freed and wanted[dim] == axes and is_even(shape[dim], split[dim]) and rule_of(found).results[0] == split:
            yield found


def unsplit(rank: int) -> list[Axes]:
    """Returns a layout without split dimensions as a list, to be filled in."""
    return [()] * rank


def overlap(axes: Sequence[Factor], others: Sequence[Factor]) -> bool:
    """Returns whether a piece of `axes` and a piece of `others` have a part of one axis in common."""
    return any(a.axis == b.axis and a.pre < b.pre * b.size and b.pre < a.pre * a.size for a in axes for b in others)


# Parts of arrays


def _slice(site: Site) -> Rule:
    shape, starts, limits, strides = (site.shape(0), *map(site.ints, ("start_indices", "limit_indices", "strides")))
    cut = [d for d, size in enumerate(shape) if (starts[d], limits[d], strides[d]) != (0, size, 1)]
    dims = _without(site.results[0], cut)
    limits = [limit if d in cut else tile_size(limit, dims[d]) for d, limit in enumerate(limits)]
    return Rule((dims,), (dims,), sizes={"limit_indices": limits}, whole=f"it takes a part of {named(cut)}")


def _pad(site: Site) -> Rule:
    amounts = [site.ints(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")]
    padded = [d for d, sides in enumerate(zip(*amounts, strict=True)) if any(sides)]
    dims = _without(site.results[0], padded)
    return Rule((dims, ()), (dims,), whole=f"it pads {named(padded)}")


def _concatenate(site: Site) -> Rule:
    along = site.int("dimension")
    dims = _without(site.results[0], [along])
    return Rule((dims,) * len(site.operands), (dims,), whole=f"it joins arrays along dimension {along}")


def _reverse(site: Site) -> Rule:
    along = site.ints("dimensions")
    dims = _without(site.results[0], along)
    return Rule((dims,), (dims,), whole=f"it turns {named(along)} round")


def _dynamic_slice(site: Site) -> Rule:
    shape, taken = site.shape(0), site.ints("slice_sizes")
    cut = [d for d, size in enumerate(shape) if taken[d] != size]
    dims = _without(site.results[0], cut)
    sizes = [tile_size(size, dims[d]) for d, size in enumerate(taken)]
    indices = ((),) * (len(site.operands) - 1)
    return Rule((dims, *indices), (dims,), sizes={"slice_sizes": sizes}, whole=f"it takes a part of {named(cut)}")


def _dynamic_update_slice(site: Site) -> Rule:
    shape, update = site.shape(0), site.shape(1)
    cut = [d for d, size in enumerate(shape) if update[d] != size]
    dims = _without(site.results[0], cut)
    indices = ((),) * (len(site.operands) - 2)
    return Rule((dims, dims, *indices), (dims,), whole=f"it writes a part of {named(cut)}")


def _gather(site: Site) -> Rule:
    """Returns the rule of a gather: offset dimensions that are taken whole, and batch dimensions, may stay split."""
    numbers = stablehlo.GatherDimensionNumbers(site.op.attributes["dimension_numbers"])
    shape, taken = site.shape(0), site.ints("slice_sizes")
    batching, index_batching = list(numbers.operand_batching_dims), list(numbers.start_indices_batching_dims)
    windows = [d for d in range(len(shape)) if d not in (*numbers.collapsed_slice_dims, *batching)]
    offsets = list(numbers.offset_dims)
    result, operand, indices = list(site.results[0]), unsplit(len(shape)), unsplit(len(site.operands[1]))
    for to, d in zip(offsets, windows, strict=True):
        if taken[d] == shape[d]:
            operand[d] = result[to]
        else:
            result[to] = ()
    batches = [d for d in range(len(result)) if d not in offsets]
    for to, d in zip(batches, but(len(indices), numbers.index_vector_dim), strict=True):
        indices[d] = result[to]
    for d, index in zip(batching, index_batching, strict=True):
        operand[d] = indices[index]
    sizes = [tile_size(size, operand[d]) if d in windows else size for d, size in enumerate(taken)]
    dims = tuple(operand), tuple(indices)
    return Rule(dims, (tuple(result),), sizes={"slice_sizes": sizes}, whole="its indices point anywhere in the operand")


def _scatter(site: Site) -> Rule:
    """Returns the rule of a scatter: window dimensions that are written whole, and batching ones, may stay split."""
    numbers = stablehlo.ScatterDimensionNumbers(site.op.attributes["scatter_dimension_numbers"])
    count = len(site.results)
    shape, update_shape = site.shape(0), site.shape(count + 1)
    batching, index_batching = list(numbers.input_batching_dims), list(numbers.scatter_indices_batching_dims)
    windows = [d for d in range(len(shape)) if d not in (*numbers.inserted_window_dims, *batching)]
    window_updates = list(numbers.update_window_dims)
    wanted = site.results[0]
    result, updates, indices = map(unsplit, (len(shape), len(update_shape), len(site.operands[count])))
    for at, d in zip(window_updates, windows, strict=True):
        if update_shape[at] == shape[d]:
            result[d] = updates[at] = wanted[d]
    update_of = dict(zip(but(len(indices), numbers.index_vector_dim), but(len(updates), *window_updates), strict=True))
    for d, index in zip(batching, index_batching, strict=True):
        result[d] = indices[index] = updates[update_of[index]] = wanted[d]
    operands = ((tuple(result),) * count, (tuple(indices),), (tuple(updates),) * count)
    return Rule(sum(operands, ()), (tuple(result),) * count, whole="its indices point anywhere in the result")


def but(rank: int, *without: int) -> list[int]:
    """Returns the dimensions of an array but some."""
    return [d for d in range(rank) if d not in without]


# Ops along dimensions


def _sort(site: Site) -> Rule:
    along = site.int("dimension")
    dims = _without(site.results[0], [along])
    return Rule((dims,) * len(site.operands), (dims,) * len(site.results), whole=f"it sorts along dimension {along}")


def _fft(site: Site) -> Rule:
    rank = len(site.results[0])
    along = list(range(rank - len(site.ints("fft_length")), rank))
    dims = _without(site.results[0], along)
    return Rule((dims,), (dims,), whole=f"it transforms {named(along)}")


def _matrices(site: Site) -> Rule:
    rank = len(site.results[0])
    dims = _without(site.results[0], [rank - 2, rank - 1])
    return Rule((dims,) * len(site.operands), (dims,), whole="it works on whole matrices")


def _triangular_solve(site: Site) -> Rule:
    """Returns the rule of a solve: each column of the right side by itself, or each row if the matrix is behind it."""
    rank = len(site.results[0])
    is_before = ir.BoolAttr(site.op.attributes["left_side"]).value
    sides = _without(site.results[0], [rank - 2 if is_before else rank - 1])
    matrices = _without(sides, [rank - 2, rank - 1])
    return Rule((matrices, sides), (sides,), whole="it works on whole matrices")


def _reduce_window(site: Site) -> Rule:
    count = len(site.results)
    dims = _without(site.results[0], _windowed(site))
    return Rule(
        (dims,) * count + ((),) * count, (dims,) * count, whole=f"its window runs along {named(_windowed(site))}"
    )


def _select_and_scatter(site: Site) -> Rule:
    dims = _without(site.results[0], _windowed(site))
    return Rule((dims, dims, ()), (dims,), whole=f"its window runs along {named(_windowed(site))}")


def _windowed(site: Site) -> list[int]:
    """Returns the dimensions along which a window has other elements than the one at its place."""
    rank = len(site.results[0])
    one = [site.ints(name) or [1] * rank for name in _WINDOW_SIZES]
    padding = padding_of(site.op, rank)
    return [d for d in range(rank) if any(padding[d]) or any(sizes[d] != 1 for sizes in one)]


def padding_of(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    """Returns the padding of an op with a window, before and behind each of its `rank` windowed dimensions."""
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    amounts = [int(each) for each in ir.DenseIntElementsAttr(op.attributes["padding"])]
    return list(zip(amounts[::2], amounts[1::2], strict=True))


_WINDOW_SIZES = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")


def _everywhere(site: Site) -> Rule:
    """Returns the rule of a computation that every device does in full, with the same result."""
    return Rule(
        tuple(map(_whole, site.operands)),
        tuple(map(_whole, site.results)),
        whole="every device has to compute all of it",
    )


_READ_A_PART = frozenset(f"stablehlo.{name}" for name in ("dynamic_slice", "gather", "slice"))  # of operand 0
_DONE_EVERYWHERE = frozenset(f"stablehlo.batch_norm_{each}" for each in ("training", "inference", "grad"))
_LINEAR_ALGEBRA = re.compile(
    r"(lapack|cusolver|cublas|hipsolver|hipblas)_\w+|Eigh|Qr|LuDecomposition|ProductOfElementaryHouseholderReflectors"
)


def _is_linear_algebra(call: ir.Operation) -> bool:
    """Returns whether a custom call computes its results from its operands alone, the same on every device.

    These are the calls of jax's linear algebra. Others may mean something by the layouts of their operands, or call
    back into Python.
    """
    has_effect = "has_side_effect" in call.attributes and ir.BoolAttr(call.attributes["has_side_effect"]).value
    name = ir.StringAttr(call.attributes["call_target_name"]).value
    return not has_effect and _LINEAR_ALGEBRA.fullmatch(name) is not None


def flops_of(site: Site, rule: Rule) -> int:
    """Returns the floating-point operations of a product or a convolution on one device's tiles; 0 for other ops."""
    if site.op.name not in ("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"):
        return 0
    tiles = [
        [tile_size(*each) for each in zip(site.shape(number), dims, strict=True)]
        for number, dims in enumerate(rule.operands)
    ]
    result = math.prod(tile_size(*each) for each in zip(site.result_shape, rule.results[0], strict=True))
    if site.op.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(site.op.attributes["dimension_numbers"])
        return 2 * result * math.prod(tiles[1]) // max(1, tiles[1][numbers.kernel_output_feature_dimension])
    contracted = [len(tiles[0]) - 1]
    if site.op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(site.op.attributes["dot_dimension_numbers"])
        contracted = list(numbers.lhs_contracting_dimensions)
    return 2 * result * math.prod(tiles[0][d] for d in contracted)


def bits_held(site: Site, rule: Rule, bits_of: Callable[[ir.Type], int]) -> int:
    """Returns the bits of the tiles that an op reads and writes on one device; of those of which it reads, or writes, a
    part alone, as many as there are of that part."""
    values = *zip(site.op.operands, rule.operands), *zip(site.op.results, rule.results)
    sizes = [
        bits_of(value.type) * math.prod(tile_size(*each) for each in zip(ir.RankedTensorType(value.type).shape, dims))
        for value, dims in values
    ]
    if site.op.name in _READ_A_PART:
        sizes[0] = min(sizes[0], sizes[-1])
    elif site.op.name == "stablehlo.dynamic_update_slice":
        sizes[0] = sizes[-1] = sizes[1]
    return sum(sizes)


def shards(axes: Axes) -> int:
    """Returns the number of parts into which the axes split a dimension."""
    return math.prod(axis.size for axis in axes)


def tile_size(size: int, axes: Axes) -> int:
    """Returns the size of a tile along a dimension; one that does not divide into its shards is padded at its end."""
    return -(-size // shards(axes))


def dividing(size: int, axes: Axes) -> Axes:
    """Returns the longest list of leading axes that divides a dimension."""
    count = next((count for count in range(len(axes), 0, -1) if is_even(size, axes[:count])), 0)
    return axes[:count]


def is_even(size: int, axes: Axes) -> bool:
    """Returns whether a dimension divides into its shards."""
    return size % shards(axes) == 0


def without_axes(axes: Axes, used: Sequence[Factor]) -> Axes:
    """Returns the axes before the first one of which a part is in use."""
    return tuple(itertools.takewhile(lambda axis: not overlap((axis,), used), axes))


def _without(dims: Dims, which: Sequence[int]) -> Dims:
    return tuple(() if d in which else axes for d, axes in enumerate(dims))


def _whole(dims: Dims) -> Dims:
    return ((),) * len(dims)


def named(dims: Sequence[int]) -> str:
    return f"dimension{'s' * (len(dims) > 1)} {', '.join(map(str, dims))}"


_RULES: dict[str, Callable[[Site], Rule]] = {
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.cholesky": _matrices,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convolution": _convolution,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.optimization_barrier": _barrier,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.rng_bit_generator": _everywhere,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
    "stablehlo.triangular_solve": _triangular_solve,
}
