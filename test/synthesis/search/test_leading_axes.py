# SPDX-License-Identifier: Apache-2.0
"""The chains of Theorem 5 reach the target within R2 and pass only blocked layouts."""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import Layout
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs import steps
from reshard.synthesis.search.leading_axes import leading_axes_chain


def is_blocked(layout: Layout) -> bool:
    ends = [1] * len(layout.shape)
    for _, slot in layout.owners:
        if slot.start != ends[slot.dim]:
            return False
        ends[slot.dim] = slot.end
    return True


def check(mesh: Mesh, shape, source: Sharding, target: Sharding) -> list[str]:
    problem = refine(mesh, shape, source, target, into_primes=True)
    layout, most = problem.source, max(problem.source.tile_elements, problem.target.tile_elements)
    chain = leading_axes_chain(problem)
    for step in chain:
        layout = steps.apply(layout, step)
        assert is_blocked(layout) and layout.tile_elements <= most
    assert layout == problem.target
    return [steps.name(step) for step in chain]


@pytest.mark.draws
@pytest.mark.parametrize("pair", random_pairs(51, 150, (4, 6, 8, 12, 16, 24, 30, 36, 64)), ids=str)
def test_random_pair(pair):
    check(pair.mesh, pair.shape, pair.source, pair.target)


def test_a_run_is_permuted_where_another_prime_has_to_leave_first():
    ends = Sharding.parse('[{"a","b"},{"c"}]'), Sharding.parse('[{"c","b"},{"a"}]')
    assert "permute" in check(Mesh.parse("a=2,b=3,c=5"), (30, 10), *ends)


def test_slices_come_first_and_gathers_last():
    ends = Sharding.parse('[{"x"}, {"z"}, {}]'), Sharding.parse('[{"y"}, {}, {"x"}]')
    names = check(Mesh.parse("x=2,y=3,z=5"), (30, 30, 30), *ends)
    assert names[0] == "slice" and names.index("all_gather") > names.index("all_to_all")
