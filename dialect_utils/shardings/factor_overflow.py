# SPDX-License-Identifier: Apache-2.0
"""Shardings that end between the factors of a dimension, which Shardy's explicit reshards cannot process.

A sharding rule takes a dimension apart into factors: a reshape of 36 to 6x2x3 has the factors 6, 2 and 3 in the
dimension of size 36. Axes are assigned to them, major to minor. If the next axis shares no divisor with the rest of a
factor, this axis and all after it *overflow*, and Shardy records one more factor of the dimension and no other. Its
explicit reshards, which drop the overflow, may read the missing factors: a read beyond a hash table, which crashes now
and then. Of `{"y", "x"}` with y=4 one half of y fits into the 6, the other half does not divide the 3 that is left, and
the factor 3 is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..platform.bindings import ir, sdy
from .sdy_shardings import mesh_of, mesh_reference, sharding_from_attr, sharding_to_attr


def fitting_axes(axes: Sequence[AxisRef], factors: Sequence[int], mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """Returns those axes of a dimension that are dealt out before the first that overflows; None if Shardy knows all
    factors.

    Args:
      axes: major to minor. factors: the sizes of the dimension's factors, major to minor.

    Example:
      >>> mesh = Mesh.parse("x=3,y=4")
      >>> y, x = AxisRef("y"), AxisRef("x")
      >>> [str(axis) for axis in fitting_axes((y, x), (6, 2, 3), mesh)]
      ['"y":(1)2']
      >>> fitting_axes((y, x), (6, 6), mesh)  # one factor behind the overflow is written down
      >>> fitting_axes((x, y), (6, 2, 3), mesh)
    """
    fitting: list[tuple[str, int, int]] = []
    left = [(axis.name, *axis.resolve(mesh)) for axis in axes]
    for factor in factors[:-2]:
        while left:
            name, pre, size = left[0]
            taken = math.gcd(factor, size)
            if taken == 1 and size > 1:
                break
            if fitting and fitting[-1][0] == name and fitting[-1][1] * fitting[-1][2] == pre:
                fitting[-1] = (name, fitting[-1][1], fitting[-1][2] * taken)  # pieces of one axis side by side are one
            else:
                fitting.append((name, pre, taken))
            factor //= taken
            left[:1] = [(name, pre * taken, size // taken)] if taken < size else []
        if factor > 1 and left:
            sizes = dict(mesh.axes)
            return tuple(
                AxisRef(name) if size == sizes[name] else AxisRef(name, pre, size) for name, pre, size in fitting
            )
    return None


def may_overflow(rule: sdy.OpShardingRuleAttr) -> bool:
    """Returns whether a dimension of a value has as many factors as it takes for some sharding to overflow, which is
    three."""
    mappings = (*rule.operand_mappings, *rule.result_mappings)
    dims = (dim for mapping in mappings for dim in sdy.TensorMappingAttr(mapping).dim_mappings)
    return any(len(sdy.DimMappingAttr(dim).factor_indices) >= 3 for dim in dims)


def fitting_sharding(attr: ir.Attribute | None, mapping: ir.Attribute, sizes: Sequence[int], meshes: dict[str, Mesh]):
    """Returns the `#sdy.sharding` of only the axes that fit; None if Shardy knows all factors of `attr`.

    Args:
      mapping: dimensions -> factors of the value that has `attr`, from a rule whose factors have `sizes`.
    """
    factors = [
        [sizes[index] for index in sdy.DimMappingAttr(dim).factor_indices]
        for dim in sdy.TensorMappingAttr(mapping).dim_mappings
    ]
    if attr is None or max(map(len, factors), default=0) < 3 or (mesh := mesh_of(attr, meshes)) is None:
        return None
    sharding = sharding_from_attr(attr)
    fitting = [fitting_axes(axes, each, mesh) for axes, each in zip(sharding.dims, factors, strict=True)]
    if all(axes is None for axes in fitting):
        return None
    dims = tuple(axes if fits is None else fits for axes, fits in zip(sharding.dims, fitting, strict=True))
    return sharding_to_attr(Sharding(dims, unreduced=sharding.unreduced), mesh_reference(attr))
