# SPDX-License-Identifier: Apache-2.0
"""The paper's chains as a peer: they reach the target within R2, on blocked layouts, in normal form, and cheaply."""

import doctest
import itertools

import pytest

from benchmarks.conversions import normal_form as module
from benchmarks.conversions.normal_form import normal_form
from benchmarks.conversions.pairs import Pair, random_pairs
from reshard.synthesis.layouts.layout import Layout
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import NoPlanError, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.programs.steps import apply, name, received_elements
from reshard.synthesis.search.leading_axes import leading_axes_chain


def chain(mesh: str, shape, source: str, target: str) -> list[str]:
    return [
        name(step) for step in normal_form(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target))[1]
    ]


def received(source: Layout, steps) -> int:
    return sum(map(received_elements, itertools.accumulate(steps, apply, initial=source), steps))


def is_blocked(layout: Layout) -> bool:
    ends = [1] * len(layout.shape)
    for _, slot in layout.owners:
        if slot.start != ends[slot.dim]:
            return False
        ends[slot.dim] = slot.end
    return True


@pytest.mark.draws
@pytest.mark.parametrize("pair", random_pairs(52, 120, (4, 6, 8, 12, 16, 24, 30, 36, 64)), ids=str)
def test_random_pair(pair: Pair):
    source, steps = normal_form(pair.mesh, pair.shape, pair.source, pair.target)
    *_, last = layouts = list(itertools.accumulate(steps, apply, initial=source))
    tiles = [each.tile_elements for each in layouts]
    assert max(tiles) <= max(tiles[0], tiles[-1]) and all(map(is_blocked, layouts))
    goals = [refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=cut).target for cut in (False, True)]
    assert last in goals
    assert received(source, steps) >= received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target)
    kinds = [name(step) for step in steps if name(step) != "permute"]
    assert kinds == sorted(kinds, key=["slice", "all_to_all", "all_gather"].index)
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
    assert received(source, steps) <= received(problem.source, leading_axes_chain(problem))


def test_an_axis_moves_whole_where_that_will_do():
    assert chain("x=8", (64, 64), '[{"x"}, {}]', '[{}, {"x"}]') == ["all_to_all"]


def test_the_permute_comes_before_the_gather_and_behind_the_slice():
    assert chain("x=2,y=3", (6,), '[{"x"}]', '[{"y"}]') == ["slice", "permute", "all_gather"]


def test_a_digit_from_the_middle_costs_a_permute():
    assert chain("x=2,y=2,z=2", (16, 4), '[{}, {"x"}]', '[{"x","y","z"}, {}]') == ["slice", "all_to_all", "permute"]


def test_what_does_not_divide_has_none():
    with pytest.raises(NoPlanError, match="does not divide"):
        chain("x=4", (6,), '[{"x"}]', "[{}]")


def test_examples():
    assert doctest.testmod(module).failed == 0
