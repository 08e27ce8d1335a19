# SPDX-License-Identifier: Apache-2.0
"""Wrong results of XLA's partitioner: one table, which the passes ask before they hold a layout at an op.

Each row names an op and the layouts in which XLA was seen to be wrong. A condition covers every case that the atlas has
found, and some correct ones: an op that meets it is left as it came, which is never worse.
`benchmarks/partitioner_atlas.py` looks for differences that no row explains, and docs/miscompilations.md shows the
table with the counts of the atlas.

XLA alone may be right where it is wrong with a layout that is held, since it converts operands in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..ir.index_ranges import Ranges, lies_inside
from ..ir.ops import producer_of, terminator_of
from ..ir.whole_numbers import holds, holds_up_to
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present


@dataclass(frozen=True, slots=True)
class AtOp:
    """An op with the layouts of its operands and results; None stands for a value that is no ranked tensor.

    Attributes:
      ranges: the ranges of integers in the module around the op, if they are kept for several ops.
    """

    op: ir.Operation
    mesh: Mesh
    operands: Sequence[Sharding | None]
    results: Sequence[Sharding | None]
    ranges: Ranges = field(default_factory=Ranges)

    def shards(self, number: int, is_result: bool = False) -> tuple[int, ...]:
        """Returns into how many parts each dimension of an operand or result is split."""
        layout = (self.results if is_result else self.operands)[number]
        return () if layout is None else layout.shards(self.mesh)


@dataclass(frozen=True, slots=True)
class Miscompilation:
    """One kind of wrong result.

    Attributes:
      name: the name in reports and in the docs.
      ops: the names of the ops that may be wrong.
      condition: a text that says in which layouts. reason: the cause, or the symptom.
      versions: the versions of jaxlib in which it was seen.
      reproducer: a file with a program that shows it.
      is_met: whether an op in these layouts may be computed wrongly.
      is_of_partitioner: whether the partitioner is wrong, so that another partitioning is right.
      has_later_layouts: whether a layout into which a result is converted counts like its own.
      is_avoided: whether the op is written in another way in what is handed over, so that no site is left for it.
    """

    name: str
    ops: frozenset[str]
    condition: str
    reason: str
    versions: str
    reproducer: str
    is_met: Callable[[AtOp], bool]
    is_of_partitioner: bool = True
    has_later_layouts: bool = False
    is_avoided: bool = False


def miscompilation_of(at: AtOp) -> Miscompilation | None:
    """Returns the row of the table that an op meets in its layouts; None if it meets no row."""
    return next((row for row in _BY_OP.get(at.op.name, ()) if row.is_met(at)), None)


def has_later_layouts(op: ir.Operation) -> bool:
    """Returns whether it matters for an op into which layouts its results are converted."""
    return any(row.has_later_layouts for row in _BY_OP.get(op.name, ()))


# ---- conditions


def _is_any_split(at: AtOp) -> bool:
    every = [at.shards(number) for number in range(len(at.operands))]
    every += [at.shards(number, is_result=True) for number in range(len(at.results))]
    return any(count > 1 for counts in every for count in counts)


def _has_uneven_indices(at: AtOp) -> bool:
    """Returns whether a dimension of a scatter's indices does not divide among all axes that split it.

    Those are the axes that split it in the indices, the updates or the operand: XLA splits such a dimension alike in
    all of them, so that the axes of one meet those of another. Where scattered zeros change nothing, it does not matter
    if these axes are all that the mesh has.
    """
    count = (len(at.op.operands) - 1) // 2
    sizes = ir.RankedTensorType(at.op.operands[count].type).shape
    split = [math.prod(axis.resolve(at.mesh)[1] for axis in axes) for axes in _axes_of_indices(at, count)]
    if _replaces(at.op) or not any(size % parts for size, parts in zip(sizes, split)):
        return False
    return math.prod(split) < at.mesh.size or not _fills_with_nothing(at.op)


def _axes_of_indices(at: AtOp, count: int) -> list[set[AxisRef]]:
    """Returns for each dimension of a scatter's indices the axes that split it anywhere; `count` is the number of its
    operands."""
    numbers = stablehlo.ScatterDimensionNumbers(at.op.attributes["scatter_dimension_numbers"])
    indices = at.operands[count]
    split = [set(axes) for axes in present(indices).dims]
    own = [dim for dim in range(len(split)) if dim != numbers.index_vector_dim]
    for number in range(count + 1, len(at.operands)):
        updates = present(at.operands[number]).dims
        dims = [axes for dim, axes in enumerate(updates) if dim not in set(numbers.update_window_dims)]
        for dim, axes in zip(own, dims):
            split[dim] |= set(axes)
    batches = list(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims))
    for side in (*at.operands[:count], *at.results):
        for dim, index in batches:
            split[index] |= set(present(side).dims[dim])
    return split


def _replaces(scatter: ir.Operation) -> bool:
    """Returns whether the scattered values replace the former ones."""
    block = scatter.regions[0].blocks[0]
    return [*terminator_of(block).operands] == [*block.arguments][len(block.arguments) // 2 :]


def _fills_with_nothing(scatter: ir.Operation) -> bool:
    """Returns whether scattered zeros change nothing."""
    block = scatter.regions[0].blocks[0]
    *combining, _ = [each.operation.name for each in block.operations]
    is_one_each = len(combining) == len(block.arguments) // 2
    return is_one_each and {*combining} <= {"stablehlo.add", "stablehlo.or", "stablehlo.xor"}


def _splits_windows(at: AtOp) -> bool:
    """A dimension along which windows slide is split, in the operand, the source or the result."""
    sizes = at.op.attributes["window_dimensions"]
    windows = [dim for dim, size in enumerate(ir.DenseI64ArrayAttr(sizes)) if size > 1]
    sides = [at.shards(0), at.shards(1), at.shards(0, is_result=True)]
    return any(counts and counts[dim] > 1 for counts in sides for dim in windows)


def _splits_spread_elements(at: AtOp) -> bool:
    """A dimension between whose elements others are inserted is split, before or after."""
    name = "interior_padding" if at.op.name == "stablehlo.pad" else "base_dilations"
    if name not in at.op.attributes:
        return False
    none = 0 if at.op.name == "stablehlo.pad" else 1
    dims = [dim for dim, each in enumerate(ir.DenseI64ArrayAttr(at.op.attributes[name])) if each != none]
    sides = [at.shards(0), at.shards(0, is_result=True)]
    return any(counts[dim] > 1 for counts in sides for dim in dims)


def _splits_slices(at: AtOp) -> bool:
    """The result is split along a dimension that is sliced from a start that may lie outside."""
    whole = ir.RankedTensorType(at.op.operands[0].type).shape
    sizes = ir.RankedTensorType(at.op.results[0].type).shape
    counts = at.shards(0, is_result=True)
    return any(
        counts[dim] > 1 and a != b and not lies_inside(at.ranges.of(at.op.operands[1 + dim]), a - b)
        for dim, (a, b) in enumerate(zip(whole, sizes))
    )


def _loses_updates(at: AtOp) -> bool:
    """A dimension of which one element is updated, at a place that may lie outside, is split."""
    whole, part = (ir.RankedTensorType(value.type).shape for value in at.op.operands[:2])
    before, after = at.shards(0), at.shards(0, is_result=True)
    return any(
        max(before[dim], after[dim]) > 1
        and b == 1 < a
        and not lies_inside(at.ranges.of(at.op.operands[2 + dim]), a - 1)
        for dim, (a, b) in enumerate(zip(whole, part))
    )


def _writes_what_it_reads(at: AtOp) -> bool:
    """Returns whether several elements in a row of an array are overwritten by values computed from that array.

    The elements that are read and those that are written may then overlap.
    """
    sizes = [ir.RankedTensorType(value.type).shape for value in at.op.operands[:2]]
    if not any(1 < part < whole for whole, part in zip(*sizes)):
        return False
    source, left, seen = _whole(at.op.operands[0]), [at.op.operands[1]], set()
    while left and len(seen) < _MOST_OPS:
        value = left.pop()
        if value == source:
            return True
        op = producer_of(value)
        if op is not None and op not in seen:
            seen.add(op)
            left += op.operands
    return bool(left)


_MOST_OPS = 64  # that are looked at behind an update


def _whole(value: ir.Value) -> ir.Value:
    """Returns the value that has the elements of another one, in another shape or layout."""
    while (op := producer_of(value)) is not None and op.name in ("stablehlo.reshape", "sdy.sharding_constraint"):
        value = op.operands[0]
    return value


def _scatters_sums(at: AtOp) -> bool:
    """An axis that splits a contracted dimension splits a batch dimension of the result."""
    numbers = stablehlo.DotDimensionNumbers(at.op.attributes["dot_dimension_numbers"])
    contracted = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
    summed = {
        axis.name for side, dims in zip(at.operands, contracted) if side for dim in dims for axis in side.dims[dim]
    }
    result, batches = at.results[0], len(numbers.lhs_batching_dimensions)
    return result is not None and any(axis.name in summed for axes in result.dims[:batches] for axis in axes)


def _rounds_twice(at: AtOp) -> bool:
    """Some numbers of a part, counted from its start, or the start of a part, are not exact in the op's type.

    Their sum is rounded once more; if both are exact, it is rounded once.
    """
    dim = ir.IntegerAttr(at.op.attributes["iota_dimension"]).value
    kind = ir.RankedTensorType(at.op.results[0].type)
    parts = dict(enumerate(at.shards(0, is_result=True))).get(dim, 1)
    size, element = kind.shape[dim], kind.element_type
    tile = max(1, -(-size // parts))
    return parts > 1 and not (
        holds_up_to(element, tile - 1) and all(holds(element, start) for start in range(tile, size, tile))
    )


ROUNDED_TWICE = Miscompilation(
    "numbers rounded twice",
    frozenset({"stablehlo.iota"}),
    "the dimension that is counted is split, and the op's float type holds not all numbers of a part, counted from its "
    "start, or not all starts",
    "XLA adds the start of a part to its numbers in that type, so that they are rounded before and after",
    "0.10.2, 0.12.0.1",
    "docs/upstream/numbers-rounded-twice.md",
    _rounds_twice,
    is_avoided=True,
)

SCATTERED_SUMS = Miscompilation(
    "scattered sums",
    frozenset({"stablehlo.dot_general"}),
    "an axis splits a contracted dimension and a batch dimension of the result",
    "the op's partial sums are scattered over devices; XLA partitions some of these layouts wrongly",
    "0.10.2, 0.12.0.1",
    "docs/upstream/scattered-sums.md",
    _scatters_sums,
)

TABLE = (
    Miscompilation(
        "convolution",
        frozenset({"stablehlo.convolution"}),
        "any dimension of an operand or of the result is split",
        "XLA partitions some layouts of a convolution wrongly; it chooses among them itself",
        "0.10.2, 0.12.0.1",
        "docs/upstream/convolution.md",
        _is_any_split,
    ),
    Miscompilation(
        "uneven scatter",
        frozenset({"stablehlo.scatter"}),
        "a dimension of the indices does not divide among the axes that split it in the indices, the updates or the "
        "operand, and the combiner is none of add, or, xor and replace, or it is one of the first three and an axis "
        "splits no dimension of the indices",
        "XLA fills uneven tiles of indices and updates with zeros, which this combiner does not ignore; or it leaves "
        "what they have behind the end, where an axis splits no indices",
        "0.10.2, 0.12.0.1",
        "docs/upstream/uneven-scatter.md",
        _has_uneven_indices,
    ),
    Miscompilation(
        "windows of select_and_scatter",
        frozenset({"stablehlo.select_and_scatter"}),
        "a dimension along which the windows slide is split",
        "XLA partitions overlapping windows of a select_and_scatter wrongly",
        "0.10.2, 0.12.0.1",
        "docs/upstream/select-and-scatter.md",
        _splits_windows,
    ),
    Miscompilation(
        "elements spread apart",
        frozenset({"stablehlo.pad", "stablehlo.reduce_window"}),
        "a dimension with interior padding or a base dilation is split",
        "XLA fills the places between spread elements wrongly in some layouts",
        "0.10.2, 0.12.0.1",
        "docs/upstream/spread-elements.md",
        _splits_spread_elements,
    ),
    Miscompilation(
        "clamped starts",
        frozenset({"stablehlo.dynamic_slice"}),
        "the result is split along a sliced dimension whose start may lie outside",
        "XLA clamps the start of each device's part, not that of the whole slice",
        "0.10.2",
        "docs/upstream/clamped-starts.md",
        _splits_slices,
        has_later_layouts=True,
    ),
    Miscompilation(
        "lost updates",
        frozenset({"stablehlo.dynamic_update_slice"}),
        "a dimension of which one element is updated is split, and the start along it may lie outside",
        "XLA does not clamp such a start: no device has the place, and the update is lost",
        "0.10.2, 0.12.0.1",
        "docs/upstream/lost-updates.md",
        _loses_updates,
        has_later_layouts=True,
    ),
    Miscompilation(
        "update in place",
        frozenset({"stablehlo.dynamic_update_slice"}),
        "what is written into the array is computed from the array itself, and is longer than one element and shorter "
        "than the array",
        "XLA's CPU compiler may write it in place before all of it was read",
        "0.10.2, 0.12.0.1",
        "docs/upstream/update-in-place.md",
        _writes_what_it_reads,
        is_of_partitioner=False,
    ),
    SCATTERED_SUMS,
    ROUNDED_TWICE,
)

_BY_OP: dict[str, list[Miscompilation]] = {}
for _row in TABLE:
    for _name in _row.ops:
        _BY_OP.setdefault(_name, []).append(_row)
OPS = frozenset(_name for _row in TABLE if not _row.is_avoided for _name in _row.ops)  # of these the passes ask
