# SPDX-License-Identifier: Apache-2.0
"""One placement of the axes of a mesh on the levels of a topology, as P²'s parallelism matrix and as device ids.

A row of the matrix is a mesh axis, a column is a level of the network or a dimension of a torus, and an entry is the
factor of the axis that spans the column. The product of a row is the size of the axis, that of a column the size of the
column. For example, on 2 nodes of 4 GPUs, with mesh data=4, model=2:

    axis   node  gpu
    -----  ----  ---
    data      2    2
    model     1    2

**Three numbers of a device.** They are easily mixed up:

- its *mesh position* m, row-major over the axes of the mesh;
- its *network position* q, row-major over the columns, outer to inner (`topology.py`);
- its *device id*: `topology.device_order[q]`, or q itself if that is None. `Topology.positions()` is the inverse.

A placement says where each mesh position lies: `positions()[m] = q`. So `device_ids[m] = device_order[positions()[m]]`,
and this is what `Mesh.device_ids` and sdy's `device_ids` list, and what `jax.sharding.Mesh` takes if the devices in
this order are reshaped to the sizes of the axes. The groups of `layout.groups` on `Placement.mesh` are ids, and
`cost.coefficients` turns ids back into network positions; the topology is the same before and after.

`Topology.device_order` is something else: it belongs to the network and stays. One may instead keep a row-major mesh
and rename the devices of the network; then the order is the inverse permutation, `argsort(positions())`.

Source: P², "Synthesizing Optimal Parallelism Placement and Reduction Strategies on Hierarchical Systems"
(arXiv 2110.10548), section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..common.text_table import table
from ..layouts.layout import Factor
from ..layouts.mesh import Mesh
from ..network.topology import Topology
from .columns import Column, columns, strides


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement of the axes of a mesh.

    Attributes:
      topology: the network, without open levels.
      axes: (name, size) pairs of the mesh, major to minor.
      digits: for each column the factors on it, major to minor; the product of their sizes is the size of the column.
        All digits together are each axis once. On a line the minor-most digit has neighbours next to each other.
    """

    topology: Topology
    axes: tuple[tuple[str, int], ...]
    digits: tuple[tuple[Factor, ...], ...]

    def __post_init__(self):
        spans = tuple(math.prod(factor.size for factor in digits) for digits in self.digits)
        if spans != tuple(column.size for column in self.columns):
            raise ValueError(f"digits span {spans} units of {self.topology.shape_text}")

    @property
    def columns(self) -> tuple[Column, ...]:
        """Returns the columns of the matrix, outer to inner."""
        return columns(self.topology)

    @property
    def matrix(self) -> np.ndarray:
        """Returns the parallelism matrix, int64 of shape (axes, columns)."""
        rows = {name: row for row, (name, _) in enumerate(self.axes)}
        found = np.ones((len(rows), len(self.digits)), np.int64)
        for at, digits in enumerate(self.digits):
            for factor in digits:
                found[rows[factor.axis], at] *= factor.size
        return found

    def positions(self) -> np.ndarray:
        """Returns the network position at each mesh position, a permutation, int64 of shape (devices,).

        Example:
          >>> topology, x, y = Topology.parse("h100:2x2"), Factor("x", 1, 2), Factor("y", 1, 2)
          >>> Placement(topology, (("x", 2), ("y", 2)), ((y,), (x,))).positions().tolist()
          [0, 2, 1, 3]
        """
        sizes = [size for _, size in self.axes]
        names = [name for name, _ in self.axes]
        along = np.unravel_index(np.arange(self.topology.size), sizes) if sizes else ()
        factors = [factor for digits in self.digits for factor in digits]
        found = np.zeros(self.topology.size, np.int64)
        for factor, stride in zip(factors, strides([factor.size for factor in factors])):
            at = names.index(factor.axis)
            found += along[at] // (sizes[at] // factor.end) % factor.size * stride
        return found

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Returns the device id at each mesh position; see the module's docstring."""
        order, positions = self.topology.device_order, self.positions()
        return tuple((positions if order is None else np.asarray(order)[positions]).tolist())

    @property
    def mesh(self) -> Mesh:
        """Returns the mesh with its devices in this order.

        Example:
          >>> topology, x, y = Topology.parse("h100:2x2"), Factor("x", 1, 2), Factor("y", 1, 2)
          >>> print(Placement(topology, (("x", 2), ("y", 2)), ((y,), (x,))).mesh)
          <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>
        """
        return Mesh(self.axes, self.device_ids if self.axes else None)

    @property
    def text(self) -> str:
        """Returns the placement in one line, such as `data: node 4 x gpu 2; model: gpu 4`.

        On a line `at stride 4` says that neighbours along the factor are 4 units apart; nothing says that they are next
        to each other. An axis of size 1 is nowhere.
        """
        return "; ".join(f"{name}: {self._row_text(name) or 'nowhere'}" for name, _ in self.axes)

    def _row_text(self, axis: str) -> str:
        parts = []
        for column, digits in zip(self.columns, self.digits):
            apart = strides([factor.size for factor in digits])
            for factor, stride in zip(digits, apart):
                if factor.axis == axis:
                    where = f" at stride {stride}" if column.is_line and stride > 1 else ""
                    parts.append((factor.pre, f"{column.text} {factor.size}{where}"))
        return " x ".join(text for _, text in sorted(parts))

    @property
    def table(self) -> str:
        """Returns the parallelism matrix as a table, with the axes as rows and the columns as columns."""
        rows = [(name, *map(str, row)) for (name, _), row in zip(self.axes, self.matrix.tolist())]
        return table(("axis", *(column.text for column in self.columns)), rows, "l" + "r" * len(self.columns))

    def __str__(self) -> str:
        return self.text
