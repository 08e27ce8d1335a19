# SPDX-License-Identifier: Apache-2.0
"""A `stablehlo.gather` block by block: what the dimensions of its result come from, and the same lookup in smaller
operands.

A lookup is a product of the table with rows that have a single one: its batch dimensions are those of the indices, its
offset dimensions those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.synthesis.overlap.pipelines import Lookup

from ..ir.ops import bits_of, shape_of
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from .products import Shape


class TableLookup:
    """A gather. Operand 0 is the table, operand 1 the indices; sizes that are unknown are negative."""

    word = "lookup"
    has_price = False  # to compilers it takes no time; so they would start all of them at once

    def __init__(self, op: ir.Operation):
        self.op = op
        self.numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        self.taken = tuple(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        self.shapes: tuple[Shape, Shape] = tuple(tuple(present(shape_of(each.type))) for each in op.operands)  # type: ignore[assignment]

    def origins(self, dim: int) -> tuple[tuple[int, int], ...]:
        """Returns the (operand, dimension) that a dimension of the result comes from: two of one that table and indices
        share. None for a dimension of the table of which the rows have only a part."""
        offsets = list(self.numbers.offset_dims)
        if dim in offsets:
            of_table = self._windows[offsets.index(dim)]
            return ((0, of_table),) if self.taken[of_table] == self.shapes[0][of_table] else ()
        of_indices = self._batches[dim - sum(offset < dim for offset in offsets)]
        shared = dict(zip(self.numbers.start_indices_batching_dims, self.numbers.operand_batching_dims))
        return ((1, of_indices), *([(0, shared[of_indices])] if of_indices in shared else []))

    def write(self, operands: Sequence[ir.Value]) -> ir.Value:
        """Inserts the lookup in operands of other sizes."""
        table, indices = (tuple(present(shape_of(each.type))) for each in operands)
        taken = self._taken_of(table)
        batches, windows = [indices[dim] for dim in self._batches], [taken[dim] for dim in self._windows]
        offsets = set(self.numbers.offset_dims)
        shape = [(windows if dim in offsets else batches).pop(0) for dim in range(len(batches) + len(windows))]
        attributes = {name: self.op.attributes[name] for name in _KEPT if name in self.op.attributes}
        attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(taken)
        kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(operands[0].type).element_type)
        return ir.Operation.create(self.op.name, [kind], list(operands), attributes).results[0]

    def sized(self, table: Shape, indices: Shape) -> Lookup:
        """Returns the sizes of the lookup in operands of other sizes; a part of the table is cut out first."""
        bits, index_bits = (bits_of(each.type) for each in self.op.operands)
        copied = 0 if table == self.shapes[0] else math.prod(table) * bits // 8
        rows = math.prod(indices[dim] for dim in self._batches)
        row_bytes = math.prod(self._taken_of(table)) * bits // 8
        return Lookup(rows, row_bytes, math.prod(indices) * index_bits // 8, copied)

    def _taken_of(self, table: Shape) -> list[int]:
        """Returns the sizes of a row in a table of other sizes: what is taken whole still is."""
        return [table[dim] if size == self.shapes[0][dim] else size for dim, size in enumerate(self.taken)]

    @property
    def _windows(self) -> list[int]:
        """Returns the dimensions of the table that the result has, too."""
        left_out = {*self.numbers.collapsed_slice_dims, *self.numbers.operand_batching_dims}
        return [dim for dim in range(len(self.shapes[0])) if dim not in left_out]

    @property
    def _batches(self) -> list[int]:
        """Returns the dimensions of the indices that the result has, too."""
        return [dim for dim in range(len(self.shapes[1])) if dim != self.numbers.index_vector_dim]


_KEPT = ("dimension_numbers", "slice_sizes", "indices_are_sorted")
