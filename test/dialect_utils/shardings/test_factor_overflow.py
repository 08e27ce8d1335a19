# SPDX-License-Identifier: Apache-2.0
"""Axes are dropped from the first one that goes beyond the factors of a dimension."""

import pytest

from reshard.dialect_utils.shardings.factor_overflow import fitting_axes
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding


@pytest.mark.parametrize(
    "axes, factors, fitting",
    [
        ('"y", "x"', (6, 2, 3), '"y":(1)2'),
        ('"y", "x"', (6, 6), None),  # Shardy records one factor after the overflow
        ('"x", "y"', (6, 2, 3), None),
        ('"x", "y"', (3, 2, 2), None),
        ('"y", "x"', (2, 4, 3, 3), '"y"'),
        ('"x"', (2, 4, 3), ""),
        ("", (6, 2, 3), None),
    ],
)
def test_axes_before_the_first_that_overflows(axes, factors, fitting):
    mesh = Mesh.parse("x=3,y=4")
    found = fitting_axes(Sharding.parse(f"[{{{axes}}}]").dims[0], factors, mesh)
    assert found == (None if fitting is None else Sharding.parse(f"[{{{fitting}}}]").dims[0])
