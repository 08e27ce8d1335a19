# SPDX-License-Identifier: Apache-2.0
"""Chains: the rules give their layouts, parts and continuations keep the layouts, rewrites keep the last layout."""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import Factor, Layout, Slot
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.programs.steps import AllGather, AllToAll, RuleError, Slice
from reshard.synthesis.search.arranged import one_permute_chains
from reshard.synthesis.search.leading_axes import leading_axes_chain

X, Y = Factor("x", 1, 2), Factor("y", 1, 2)
NOWHERE = Layout((4, 4), ())
AT_0, AT_1 = Slot(0, 1, 2), Slot(1, 1, 2)
CHAIN = Chain(NOWHERE, (Slice(((X, AT_0), (Y, AT_1))), AllToAll(((X, Slot(1, 2, 4)),)), AllGather((X, Y))))


def chains():
    for pair in random_pairs(91, 120, (6, 8, 12, 16)):
        problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
        yield from (leading_axes_chain(problem), *one_permute_chains(problem))


def test_layouts_are_those_before_between_and_after_the_steps():
    assert [layout.tile_elements for layout in CHAIN.layouts] == [16, 4, 4, 16]
    assert CHAIN.target == NOWHERE and CHAIN.largest_tile == 16


def test_costs_are_sums_over_the_steps():
    assert (CHAIN.received_elements, CHAIN.collectives) == (2 + 12, 2)


def test_a_step_that_a_rule_forbids_is_refused_when_it_is_added():
    with pytest.raises(RuleError, match="T2"):
        Chain(NOWHERE).then(AllGather((X,)))


def test_a_chain_is_the_sequence_of_its_steps():
    assert len(CHAIN) == 3 and list(CHAIN) == list(CHAIN.steps) and CHAIN[-1] == CHAIN.steps[-1]
    assert not Chain(NOWHERE)


def test_parts_are_chains_that_follow_one_another():
    for chain in chains():
        for at in range(len(chain) + 1):
            before, after = chain[:at], chain[at:]
            assert before.target == after.source == chain.layouts[at]
            assert before.then(*after) == chain and before.then(*after).layouts == chain.layouts


def test_layouts_that_are_taken_over_are_those_that_the_rules_give():
    for chain in chains():
        for found in (chain[1:], chain[:1].then(*chain[1:]), chain.with_steps(0, 1, chain[0])):
            assert found.layouts == Chain(found.source, found.steps).layouts


def test_gathers_apart_lead_to_the_same_layout_and_receive_as_much():
    joint = 0
    for chain in chains():
        apart = chain.with_gathers_apart()
        assert apart.target == chain.target and not apart.has_joint_gather
        assert apart.received_elements == chain.received_elements
        joint += chain.has_joint_gather
    assert joint > 5


def test_neighbouring_moves_become_one_where_no_digit_is_in_the_way():
    moves = Chain(
        NOWHERE, (Slice(((X, AT_0), (Y, Slot(0, 2, 4)))), AllToAll(((X, AT_1),)), AllToAll(((Y, Slot(1, 2, 4)),)))
    )
    assert [steps.name(step) for step in moves.with_joint_moves()] == ["slice", "all_to_all"]
    assert moves.with_joint_moves().target == moves.target
    swap = Chain(NOWHERE, (Slice(((X, AT_0), (Y, AT_1))), AllToAll(((X, Slot(1, 2, 4)),)), AllToAll(((Y, AT_0),))))
    assert swap.with_joint_moves() == swap  # y's new digit is x's old one


def test_an_inverted_chain_leads_back():
    back = CHAIN.inverted()
    assert (back.source, back.target) == (CHAIN.target, CHAIN.source)
    assert [steps.name(step) for step in back] == ["slice", "all_to_all", "all_gather"]
    assert back.inverted().layouts == CHAIN.layouts


def test_no_step_undoes_a_sum():
    sums = Chain(Layout((4, 4), (), (X,)), (steps.AllReduce((X,)),))
    with pytest.raises(RuleError, match="undoes all_reduce"):
        sums.inverted()
