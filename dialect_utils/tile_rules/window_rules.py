# SPDX-License-Identifier: Apache-2.0
"""Rules for ops with windows whose spatial dimensions stay split: devices exchange borders, and no device needs all.

`local_rules` has the rules in which such a dimension is whole. Along a dimension that is split into n tiles, let each
device have t elements and make o results. With the stride s and the dilation b of the elements, result i sees the
dilated positions from i·s - low on, and element p stands at p·b. If o·s = t·b, all devices see the same part of their
surroundings:

    borders      the last L elements of the tile before and the first R of the tile behind, each in one round
    convolution  of the tile between its borders, with a padding that gives o results
    window       also split, as in the gradient of a kernel: the results are partial sums

Outside of the array a border has what padding has: zeros in a convolution, and in a reduction the initial value, if
that changes nothing. Otherwise there are no borders: by StableHLO's specification padding has the initial value, while
XLA leaves padding out.

Groups of features, or of batches, stay split if each device has whole groups.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reshard.synthesis.planner.entry import Plan

from ..ir.ops import dense_elements, int64_attr
from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, stablehlo
from .indexed_rules import nothing
from .local_rules import Axes, Dims, Rule, Site, is_even, overlap, padding_of, shards, unsplit, without_axes
from .moved_rules import Makers, Mover, offered
from .partial_sums import begins_with_nothing
from .staged_rules import StageWriter


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension, as the attributes of an op have it.

    Attributes:
      size: of the window in elements, without dilation. stride, low: of the results, and the padding before.
      dilation: of the window. base: dilation of the elements.
    """

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    base: int = 1

    @property
    def is_one(self) -> bool:
        """Returns whether each result sees the element at its place alone."""
        return (self.size, self.stride, self.low, self.high, self.base) == (1, 1, 0, 0, 1)


@dataclass(frozen=True, slots=True)
class Border:
    """What a device needs around its tile along a dimension.

    Attributes:
      before, behind: elements of the neighbours' tiles. low, high: the padding of the tile between its borders.
    """

    before: int
    behind: int
    low: int
    high: int


def border(window: Window, tile: int, results: int, per_device: int | None = None) -> Border | None:
    """Returns what a device needs around a tile; None if devices need different things, or more than a neighbour has.

    Args:
      tile, results: the elements that a device has, and the results that it makes.
      per_device: of the window, the elements that a device has, if the window is split; then all make all results.

    Example: a window of three, centred, on tiles of four; with stride 2; and a split window of eight.
      >>> border(Window(3, low=1, high=1), 4, 4), border(Window(3, stride=2, low=0, high=1), 4, 2)
      (Border(before=1, behind=1, low=0, high=0), Border(before=0, behind=1, low=0, high=0))
      >>> border(Window(8, low=1, high=1), 4, 3, per_device=4)
      Border(before=1, behind=1, low=0, high=0)
    """
    size = window.size if per_device is None else per_device
    step = results * window.stride if per_device is None else per_device * window.dilation
    if step != tile * window.base:
        return None
    extent = (size - 1) * window.dilation + 1
    last = (results - 1) * window.stride - window.low + extent - 1
    before, behind = max(0, window.low // window.base), max(0, last // window.base - (tile - 1))
    if before > tile or behind > tile:
        return None
    low = window.low - before * window.base
    dilated = (tile + before + behind - 1) * window.base + 1
    return Border(before, behind, low, (results - 1) * window.stride + extent - low - dilated)


class WindowWriter(StageWriter, Protocol):
    """The writer of one op on tiles, at the current insertion point."""


@dataclass(frozen=True, slots=True)
class _Halo:
    """The borders along one dimension of an operand, and the numbers of the moves that bring them."""

    dim: int
    axes: Axes
    border: Border
    before: int | None
    behind: int | None


def windows_of(site: Site, mover: Mover) -> list[Rule]:
    """Returns the rules of an op with windows in which windowed dimensions, or groups, stay split; none for others."""
    return offered(_RULES, site, mover)


def has_window(op: ir.Operation) -> bool:
    """Returns whether an op has rules here."""
    return op.name in _RULES


def _halos(
    site: Site, mover: Mover, operand: int, dims: Dims, borders: dict[int, Border], moves: list[Plan]
) -> list[_Halo]:
    """Returns the borders of an operand, and adds their moves. Borders along a later dimension have the corners."""
    shape, found = site.shape(operand), []
    kind = site.op.operands[operand].type
    for dim, each in borders.items():
        numbers: list[int | None] = []
        for width, is_before in ((each.before, True), (each.behind, False)):
            numbers.append(len(moves) if width else None)
            if width:
                moves.append(_shift(mover, kind, shape, dims, dim, width, is_before))
        found.append(_Halo(dim, dims[dim], each, *numbers))
        shape[dim] += (each.before + each.behind) * shards(dims[dim])
    return found


def _shift(
    mover: Mover, kind: ir.Type, shape: Sequence[int], dims: Dims, dim: int, width: int, is_before: bool
) -> Plan:
    """Returns the plan by which each device gets `width` elements of the device before it, or behind it."""
    count = shards(dims[dim])
    lines = [count * width if d == dim else size for d, size in enumerate(shape)]
    size = [(count - 1) * width if d == dim else each for d, each in enumerate(lines)]
    zero, one = ([0] * len(shape), [width if d == dim else 0 for d in range(len(shape))])
    source, target = (zero, one) if is_before else (one, zero)
    return mover.planned(kind, size, mover.end(lines, dims, source), mover.end(lines, dims, target))


def _with_borders(tiles: WindowWriter, tile: ir.Value, halos: Sequence[_Halo], around: ir.Value) -> ir.Value:
    """Returns a tile between its borders, which are `around`, a scalar, outside of the array."""
    for each in halos:
        size = _shape(tile)[each.dim]
        parts = [tile]
        if each.before is not None:
            last = _cut(tile, each.dim, size - each.border.before, size)
            parts.insert(0, _inside(tiles, each, tiles.moved(each.before, last), around, is_before=True))
        if each.behind is not None:
            first = _cut(tile, each.dim, 0, each.border.behind)
            parts.append(_inside(tiles, each, tiles.moved(each.behind, first), around, is_before=False))
        tile = stablehlo.ConcatenateOp(parts, each.dim).result if len(parts) > 1 else tile
    return tile


def _inside(tiles: WindowWriter, halo: _Halo, piece: ir.Value, around: ir.Value, is_before: bool) -> ir.Value:
    """Returns a border; on the first device, or the last one, what is outside of the array."""
    number = 0 if is_before else shards(halo.axes) - 1
    edge = stablehlo.ConstantOp(dense_elements(np.array([number], np.int32))).result
    is_edge = stablehlo.CompareOp(tiles.place(halo.axes), edge, stablehlo.ComparisonDirectionAttr.get("EQ")).result
    truth = ir.IntegerType.get_signless(1)
    is_edge = stablehlo.ReshapeOp(ir.RankedTensorType.get([], truth), is_edge).result
    return stablehlo.SelectOp(is_edge, stablehlo.BroadcastInDimOp(piece.type, around, []).result, piece).result


def _cut(tile: ir.Value, dim: int, start: int, stop: int) -> ir.Value:
    shape = _shape(tile)
    starts = [start if d == dim else 0 for d in range(len(shape))]
    stops = [stop if d == dim else size for d, size in enumerate(shape)]
    return stablehlo.SliceOp(tile, starts, stops, [1] * len(shape)).result


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _padding_attr(amounts: Sequence[tuple[int, int]]) -> ir.Attribute:
    return dense_elements(np.array(amounts, np.int64).reshape(-1, 2))


# Convolutions


def _convolution(site: Site, mover: Mover) -> Iterator[Rule]:
    """Yields rules with the layouts of the result, and with those of the operands, as far as these fit together."""
    seen: list[tuple] = []
    for is_by_result in (True, False):
        rule = _Convolution(site, mover, is_by_result).rule()
        if rule is not None and (rule.operands, rule.results) not in seen:
            seen.append((rule.operands, rule.results))
            yield rule


class _Convolution:
    """The rule of one convolution. State: the layouts of its operands and its result, as far as they are chosen."""

    def __init__(self, site: Site, mover: Mover, is_by_result: bool):
        self.site, self.mover, self.is_by_result = site, mover, is_by_result
        self.numbers = stablehlo.ConvDimensionNumbers(site.op.attributes["dimension_numbers"])
        self.groups = site.int("feature_group_count"), site.int("batch_group_count")
        self.lhs, self.rhs = map(unsplit, map(len, site.operands))
        self.result = unsplit(len(site.results[0]))
        self.used: list = []
        self.partial: list = []
        self.borders: dict[int, Border] = {}
        self.sizes: dict[str, Sequence[int] | ir.Attribute] = {}
        self.windows = self._windows()
        self.amounts = [(each.low, each.high) for each in self.windows]

    def rule(self) -> Rule | None:
        """Returns the rule; None if nothing is split in it that `local_rules` has whole."""
        numbers = self.numbers
        features = self._features()
        if self.groups[1] == 1:
            wanted = self._chosen(numbers.output_batch_dimension, numbers.input_batch_dimension)
            batch = self._free(wanted, self.site.result_shape[numbers.output_batch_dimension])
            self.lhs[numbers.input_batch_dimension] = self.result[numbers.output_batch_dimension] = batch
        is_spatial = [self._spatial(number) for number in range(len(self.windows))]
        if self.groups[0] == 1:
            self._summed()
        if not any(is_spatial) and not (max(self.groups) > 1 and (features or self.used)):
            return None
        lhs = tuple(self.lhs)
        moves: list[Plan] = []
        halos = _halos(self.site, self.mover, 0, lhs, self.borders, moves)
        self.sizes["padding"] = _padding_attr(self.amounts)
        write = functools.partial(_write_convolution, halos, self.sizes)
        filled = {0: [numbers.input_feature_dimension], 1: [numbers.kernel_input_feature_dimension]}
        return Rule(
            (lhs, tuple(self.rhs)),
            (tuple(self.result),),
            tuple(sorted(self.partial)),
            filled=filled if self.partial else {},
            moves=tuple(moves),
            write=write,
        )

    def _windows(self) -> list[Window]:
        op, rank = self.site.op, len(self.numbers.input_spatial_dimensions)
        kernel = self.site.shape(1)
        sizes = [kernel[d] for d in self.numbers.kernel_spatial_dimensions]
        strides, bases, dilations = (
            self.site.ints(name) or [1] * rank for name in ("window_strides", "lhs_dilation", "rhs_dilation")
        )
        return [
            Window(size, stride, low, high, dilation, base)
            for size, stride, (low, high), dilation, base in zip(
                sizes, strides, padding_of(op, rank), dilations, bases, strict=True
            )
        ]

    def _chosen(self, of_result: int, of_lhs: int) -> Axes:
        return self.site.results[0][of_result] if self.is_by_result else self.site.operands[0][of_lhs]

    def _free(self, axes: Axes, *sizes: int) -> Axes:
        """Returns the leading axes that are not in use and divide all sizes; they are in use then."""
        axes = without_axes(axes, self.used)
        while axes and not all(is_even(size, axes) for size in sizes):
            axes = axes[:-1]
        self.used += axes
        return axes

    def _features(self) -> Axes:
        """Chooses the axes of the result's features: with groups, those that leave whole groups on each device."""
        numbers, groups = self.numbers, max(self.groups)
        out = numbers.output_feature_dimension
        size = self.site.result_shape[out]
        if groups == 1:
            axes = self._free(self.site.results[0][out], size)
        else:
            at = numbers.input_feature_dimension if self.groups[0] > 1 else numbers.input_batch_dimension
            axes = self._free(self._chosen(out, at), groups)
            self.lhs[at] = axes
            name = "feature_group_count" if self.groups[0] > 1 else "batch_group_count"
            self.sizes[name] = int64_attr(groups // shards(axes))
        self.rhs[numbers.kernel_output_feature_dimension] = self.result[out] = axes
        return axes

    def _spatial(self, number: int) -> bool:
        """Chooses the axes of one spatial dimension; returns whether it stays split."""
        lhs, rhs = self.numbers.input_spatial_dimensions[number], self.numbers.kernel_spatial_dimensions[number]
        out = self.numbers.output_spatial_dimensions[number]
        window, operands = self.windows[number], self.site.operands
        sizes = self.site.shape(0)[lhs], self.site.shape(1)[rhs], self.site.result_shape[out]
        if operands[1][rhs] and operands[1][rhs] == operands[0][lhs]:
            return self._split_window(number, lhs, rhs, sizes)
        axes = self._chosen(out, lhs)
        if not axes or overlap(axes, self.used) or not all(is_even(size, axes) for size in (sizes[0], sizes[2])):
            return False
        found = border(window, sizes[0] // shards(axes), sizes[2] // shards(axes))
        if found is None:
            return False
        self.used += axes
        self.lhs[lhs] = self.result[out] = axes
        self._need(number, lhs, found)
        return True

    def _split_window(self, number: int, lhs: int, rhs: int, sizes: tuple[int, int, int]) -> bool:
        """Leaves a window and the elements under it split: the results are partial sums."""
        axes, window = self.site.operands[1][rhs], self.windows[number]
        element = ir.RankedTensorType(self.site.op.results[0].type).element_type
        if overlap(axes, self.used) or not all(is_even(size, axes) for size in sizes[:2]):
            return False
        if self._is_reversed(number) or not is_splittable(element, "sum"):
            return False
        count = shards(axes)
        found = border(window, sizes[0] // count, sizes[2], per_device=sizes[1] // count)
        if found is None:
            return False
        self.used += axes
        self.partial += axes
        self.lhs[lhs] = self.rhs[rhs] = axes
        self._need(number, lhs, found)
        return True

    def _need(self, number: int, dim: int, found: Border) -> None:
        self.amounts[number] = found.low, found.high
        if found.before or found.behind:
            self.borders[dim] = found

    def _is_reversed(self, number: int) -> bool:
        attributes = self.site.op.attributes
        if "window_reversal" not in attributes:
            return False
        return bool(list(ir.DenseBoolArrayAttr(attributes["window_reversal"]))[number])

    def _summed(self) -> None:
        """Leaves the features that are summed up split, if they are split alike on both sides."""
        lhs, rhs = self.numbers.input_feature_dimension, self.numbers.kernel_input_feature_dimension
        axes = self.site.operands[0][lhs]
        element = ir.RankedTensorType(self.site.op.results[0].type).element_type
        if axes != self.site.operands[1][rhs] or overlap(axes, self.used) or not is_splittable(element, "sum"):
            return
        self.lhs[lhs] = self.rhs[rhs] = axes
        self.used += axes
        self.partial += axes


def _write_convolution(
    halos: Sequence[_Halo],
    sizes: dict[str, Sequence[int] | ir.Attribute],
    tiles: WindowWriter,
    operands: Sequence[ir.Value],
) -> list[ir.Value]:
    lhs, rhs = operands
    zero = nothing(ir.RankedTensorType.get([], ir.RankedTensorType(lhs.type).element_type))
    return tiles.same([_with_borders(tiles, lhs, halos, zero), rhs], sizes)


# Reductions over windows


def _reduce_window(site: Site, mover: Mover) -> Iterator[Rule]:
    count, windows = len(site.results), _windows_of_all(site)
    seen: list[Dims] = []
    for wanted in (site.results[0], site.operands[0]):
        dims, borders, amounts = _split_windows(site, windows, wanted)
        if not any(dims[d] for d, each in enumerate(windows) if not each.is_one) or dims in seen:
            continue
        seen.append(dims)
        if borders and not _pads_with_nothing(site):
            continue
        moves: list[Plan] = []
        halos = [_halos(site, mover, number, dims, borders, moves) for number in range(count)]
        write = functools.partial(_write_reduce_window, halos, amounts)
        yield Rule((dims,) * count + ((),) * count, (dims,) * count, moves=tuple(moves), write=write)


def _pads_with_nothing(site: Site) -> bool:
    """Returns whether the initial value of a reduction of one operand changes nothing in it."""
    reduction = reduction_of(site.op) if len(site.results) == 1 else None
    return reduction is not None and begins_with_nothing(site.op.operands[1], reduction)


def _split_windows(
    site: Site, windows: Sequence[Window], wanted: Dims
) -> tuple[Dims, dict[int, Border], list[tuple[int, int]]]:
    """Returns a layout in which windowed dimensions stay split as far as that is possible, their borders, and the
    padding of a tile between them."""
    dims, borders = list(wanted), {}
    amounts = [(each.low, each.high) for each in windows]
    for d, window in enumerate(windows):
        if window.is_one or not dims[d]:
            continue
        sizes, count = (site.shape(0)[d], site.result_shape[d]), shards(dims[d])
        is_divided = all(is_even(size, dims[d]) for size in sizes)
        found = border(window, sizes[0] // count, sizes[1] // count) if is_divided else None
        if found is None or found.low < 0 or found.high < 0:
            dims[d] = ()
            continue
        amounts[d] = found.low, found.high
        if found.before or found.behind:
            borders[d] = found
    return tuple(dims), borders, amounts


def _windows_of_all(site: Site) -> list[Window]:
    rank = len(site.results[0])
    sizes, strides, bases, dilations = (
        site.ints(name) or [1] * rank
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    )
    padding = padding_of(site.op, rank)
    return [Window(sizes[d], strides[d], *padding[d], dilations[d], bases[d]) for d in range(rank)]


def _write_reduce_window(
    halos: Sequence[Sequence[_Halo]],
    amounts: Sequence[tuple[int, int]],
    tiles: WindowWriter,
    operands: Sequence[ir.Value],
) -> list[ir.Value]:
    count = len(operands) // 2
    inits = operands[count:]
    wide = [_with_borders(tiles, *each) for each in zip(operands, halos, inits)]
    return tiles.same([*wide, *inits], {"padding": _padding_attr(amounts)})


def _select_and_scatter(site: Site, _: Mover) -> Iterator[Rule]:
    """Yields the rules in which dimensions stay split along which windows lie side by side, each on one device."""
    windows = _windows_of_all(site)
    for wanted in dict.fromkeys((site.results[0], site.operands[0])):
        dims = list(wanted)
        for d, window in enumerate(windows):
            is_beside = window.size == window.stride and (window.low, window.high) == (0, 0)
            sizes, count = (site.shape(0)[d], site.shape(1)[d]), shards(dims[d])
            is_whole = is_beside and all(size % count == 0 for size in sizes) and sizes[0] == sizes[1] * window.stride
            if not window.is_one and not is_whole:
                dims[d] = ()
        if any(dims[d] for d, window in enumerate(windows) if not window.is_one):
            yield Rule((tuple(dims), tuple(dims), ()), (tuple(dims),))


_RULES: Makers = {
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
