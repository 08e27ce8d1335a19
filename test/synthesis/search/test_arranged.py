# SPDX-License-Identifier: Apache-2.0
"""Chains with one permute reach the target within R2; a search with a small budget used to miss them."""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import Problem, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.tile_program import copies, lower
from reshard.synthesis.search.arranged import one_permute_chains

MOST_OF_A_KIND = {"slice": 1, "permute": 1}


def problem_of(mesh: str, shape, source: str, target: str) -> Problem:
    return refine(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target), into_primes=True)


def names(problem: Problem) -> list[list[str]]:
    return [[steps.name(step) for step in chain] for chain in one_permute_chains(problem)]


@pytest.mark.draws
@pytest.mark.parametrize("pair", random_pairs(52, 150, (4, 6, 8, 12, 16, 24, 30, 36, 64)), ids=str)
def test_random_pair(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
    most = max(problem.source.tile_elements, problem.target.tile_elements)
    for chain in one_permute_chains(problem):
        layout, found = problem.source, [steps.name(step) for step in chain]
        for step in chain:
            layout = steps.apply(layout, step)
            assert layout.tile_elements <= most
        assert layout == problem.target
        assert all(found.count(name) <= most_of_it for name, most_of_it in MOST_OF_A_KIND.items())


def test_whoever_is_to_be_gathered_makes_way_for_who_is_missing():
    assert names(problem_of("x=2,y=2,z=2", (8,), '[{"x","y"}]', '[{"z"}]'))[0] == ["permute", "all_gather"]


def test_nothing_is_permuted_that_is_in_place():
    assert names(problem_of("x=2,y=2", (8, 8), '[{"x","y"}, {}]', '[{"x"}, {"y"}]')) == [["all_to_all"]]


def test_what_a_dimension_lacks_is_sliced_where_that_saves_an_all_to_all():
    """x would have to move to dimension 1; instead z is sliced there, and x is gathered later."""
    found = names(problem_of("x=2,y=2,z=2", (8, 8), '[{"y"}, {"x"}]', '[{}, {"z", "y"}]'))
    assert ["permute", "all_to_all"] in found and ["slice", "permute", "all_gather"] in found


def test_digits_that_leave_together_keep_their_order_in_memory():
    """Only the tile before the all_to_all is copied: z's digits of 2 and 3 keep their order, y's digit follows them."""
    problem = problem_of("x=2,y=2,z=6", (12, 6, 6, 8), '[{"x"}, {"z"}, {"y"}, {}]', '[{"y", "z"}, {}, {}, {"x"}]')
    copied = [
        copies(lower(problem.mesh, problem.source, chain), 32).all_relaid for chain in one_permute_chains(problem)
    ]
    assert min(copied) == 4 * 6 * 3 * 8


def test_a_gather_along_each_dimension_copies_the_smaller_tile():
    """One gather of both axes copies its result of 8 x 8; two gathers copy only the first result, of 4 x 8.

    The copy puts the gathered blocks of dimension 1 in order.
    """
    problem = problem_of("x=2,y=2", (8, 8), '[{"x"}, {"y"}]', "[{}, {}]")
    copied = {
        tuple(map(steps.name, chain)): copies(lower(problem.mesh, problem.source, chain), 32).all_relaid
        for chain in one_permute_chains(problem)
    }
    assert copied == {("all_gather",): 4 * 8 * 8, ("all_gather", "all_gather"): 4 * 4 * 8}


def test_digits_in_each_others_way_give_no_chain():
    """Each dimension has to free its digit before it can take the other dimension's digit, which has another size."""
    assert names(problem_of("x=2,y=3", (6, 6), '[{"y"}, {"x"}]', '[{"x"}, {"y"}]')) == []


@pytest.mark.parametrize(
    "mesh, shape, source, target, topology",
    [
        (
            "x=16,y=4",
            (65536,),
            '[{"x":(8)2, "y", "x":(4)2, "x":(2)2, "x":(1)2}]',
            '[{"x":(2)2, "x":(1)2, "x":(8)2}]',
            "v5p",
        ),
        (
            "x=2,y=8,z=2,w=16",
            (512, 48, 8, 32),
            '[{"y"}, {"x"}, {}, {"z", "w":(1)4}]',
            '[{}, {"w":(4)4}, {}, {"z"}]',
            "a100",
        ),
    ],
)
def test_plans_that_one_permute_beats_were_missed_by_the_search(mesh, shape, source, target, topology):
    problem, on = problem_of(mesh, shape, source, target), Topology.parse(topology)
    ends = Sharding.parse(source), Sharding.parse(target)
    found = plan(problem.mesh, shape, 32, *ends, objective="time", topology=on, with_exchange=True)
    assert [step.op for step in found.steps if step.op != "relayout"] in names(problem)


@pytest.mark.parametrize("pair", random_pairs(53, 20, (8, 16)), ids=str)
def test_where_permutes_are_of_no_use_the_chains_without_one_are_left(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
    without = [chain for chain in one_permute_chains(problem) if "permute" not in map(steps.name, chain)]
    assert one_permute_chains(problem, lambda head: False) == without
