# SPDX-License-Identifier: Apache-2.0
"""More rules for matrix products: what splits a contracted dimension, on which side, and what else it may split.

For operands in given layouts, with `k` the contracted dimensions:

    [m, k{x}] @ [k, n]      partial sums along x: the right operand is cut alike
                            k whole: the left operand is gathered
                            m or n split by x instead of k: an all_to_all, and no sum
    [m{x}, k] @ [k, n{x}]   n whole, or m: one of the operands is gathered

`local_rules` has the first one only if both operands are split alike, and of the last two that with m split. Which one
costs least depends on what the operands and the result are converted from and to, and on the work on a tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ..platform.bindings import ir, stablehlo
from .local_rules import Axes, Dims, Rule, Site, but, is_even, joined, overlap, rule_of, without_axes

PRODUCT = "stablehlo.dot_general"
Taker = tuple[ir.Operation, frozenset[int]]  # a product, and the dimensions of one of its operands that it sums up


def is_product(op: ir.Operation) -> bool:
    return op.name == PRODUCT


def takers(value: ir.Value) -> list[Taker]:
    """Returns the products that take a value."""
    uses = [(use.owner.operation, use.operand_number) for use in value.uses if is_product(use.owner.operation)]
    return [(op, _contracted_of(op, number)) for op, number in uses]


def sharing(among: Sequence[Taker], number: int, op: ir.Operation, changed: Collection[int]) -> int:
    """Returns how many of the takers of a product's operand, with this product, use some dimensions of it alike: each
    summed up, or not.

    They share a change of its layout along these. Where one of two products keeps a dimension that the other one sums
    up, they hardly want it in one layout.
    """
    own = _contracted_of(op, number).intersection(changed)
    return len({op, *(taker for taker, contracted in among if contracted.intersection(changed) == own)})


def _contracted_of(op: ir.Operation, number: int) -> frozenset[int]:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return frozenset((numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[number])


def products_of(sites: Sequence[Site]) -> list[Rule]:
    """Returns the rules of a matrix product; the first one is that of the first site.

    Args:
      sites: the product with its operands in several layouts.
    """
    found: dict[tuple, Rule] = {}
    for site in sites:
        for way in (site, *_ways(site)):
            for each in (way, *_with_right_side(way)):
                rule = rule_of(each)
                found.setdefault((rule.operands, rule.results, rule.partial), rule)
    return list(found.values())


def _ways(site: Site) -> Iterator[Site]:
    """Yields the site with the contracted dimensions as either side has them, and whole; then with what splits them in
    one of the other dimensions."""
    numbers = stablehlo.DotDimensionNumbers(site.op.attributes["dot_dimension_numbers"])
    contracted = [*numbers.lhs_contracting_dimensions], [*numbers.rhs_contracting_dimensions]
    able = [
        but(len(site.operands[0]), *contracted[0]),
        but(len(site.operands[1]), *contracted[1], *numbers.rhs_batching_dimensions),
    ]
    splits = dict.fromkeys(tuple(dims[d] for d in along) for dims, along in zip(site.operands, contracted, strict=True))
    nothing = ((),) * len(contracted[0])
    for split in dict.fromkeys((*splits, nothing)):
        yield replace(site, operands=tuple(map(_with, site.operands, contracted, [split] * 2)))
    whole = tuple(map(_with, site.operands, contracted, [nothing] * 2))
    for split in splits:
        freed = tuple(axis for axes in split for axis in axes)
        for side, dims in enumerate(whole):
            if not freed or overlap(freed, [axis for axes in dims for axis in axes]):
                continue
            for d in able[side]:
                moved = tuple(joined(axes + freed) if each == d else axes for each, axes in enumerate(dims))
                if is_even(site.shape(side)[d], moved[d]):
                    yield replace(site, operands=(moved, whole[1]) if side == 0 else (whole[0], moved))


def _with_right_side(site: Site) -> Iterator[Site]:
    """Yields the site without what splits the left operand and a free dimension of the right one, if there is such."""
    numbers = stablehlo.DotDimensionNumbers(site.op.attributes["dot_dimension_numbers"])
    kept = {*numbers.rhs_batching_dimensions, *numbers.rhs_contracting_dimensions}
    left, right = site.operands
    wanted = [axis for d, axes in enumerate(right) if d not in kept for axis in axes]
    bound = {*numbers.lhs_batching_dimensions, *numbers.lhs_contracting_dimensions}
    freed = tuple(axes if d in bound else without_axes(axes, wanted) for d, axes in enumerate(left))
    if freed != left:
        yield replace(site, operands=(freed, right))


def _with(dims: Dims, along: Sequence[int], split: Sequence[Axes]) -> Dims:
    """Returns a layout with some dimensions split in a given way, and the others by what axes are left."""
    used = [axis for axes in split for axis in axes]
    given = dict(zip(along, split, strict=True))
    return tuple(given[d] if d in given else without_axes(axes, used) for d, axes in enumerate(dims))
