# SPDX-License-Identifier: Apache-2.0
"""What the search for the best form of a module asks for."""

import math
from types import SimpleNamespace

import pytest

from reshard.passes.sites.oracle import ALWAYS, BETTER
from reshard.passes.whole_module.finalists import Finalists
from reshard.passes.whole_module.joint_choice import Outcome
from reshard.passes.whole_module.search import Search
from reshard.passes.whole_module.site_groups import Group


def search(*, known=True, policy=BETTER, target=None) -> Search:
    groups = [Group((0,), 1.0, 1.0, True, True, True, False), Group((1,), 0.0, 0.0, known, False, False, False)]
    forms = SimpleNamespace(
        criterion=SimpleNamespace(policy=policy), target=target, stock=SimpleNamespace(is_ok=True), groups=groups
    )
    return Search(forms, [], Outcome("", 10.0), [], [], 8, 1, 0.0, 10.0)


def test_the_goal_of_sets_is_what_a_form_per_device_is_not_clearly_faster_than():
    assert search()._goal_s([Outcome("", 9.5), Outcome("", 4.5), Outcome("too much memory", 1.0)]) == pytest.approx(5.0)


@pytest.mark.parametrize("told", [{"known": False}, {"policy": ALWAYS}, {"target": "tpu:v5e:2x4"}])
def test_without_known_gains_or_with_another_judge_there_is_no_goal(told):
    assert math.isinf(search(**told)._goal_s([Outcome("", 4.5)]))


def test_without_a_better_form_per_device_there_is_no_goal():
    assert math.isinf(search()._goal_s([Outcome("", 11.0), Outcome("too much memory", 1.0)]))


@pytest.mark.parametrize(
    ("stock_s", "whole_s", "is_beaten"),
    [(10.0, 7.0, True), (10.0, 8.0, False), (4.0, 2.8, False), (4.0, 1.0, True)],
    ids=("clearly faster", "not by a tenth", "promises may be off as far", "faster all the same"),
)
def test_sets_of_sites_are_beaten_if_even_an_error_like_stocks_leaves_them_slower(stock_s, whole_s, is_beaten):
    """As XLA partitions them for CPU devices, the module takes 10 s as it came, and 8 s with the best set."""
    before, none, whole = Outcome("", 10.0), Outcome("", stock_s), Outcome("", whole_s)
    islands, wholes = (Finalists([Outcome("", each)], before, none, 3) for each in (8.0, 5.0))
    wholes.outcomes[0] = whole
    asking = search(target="tpu:v5e:2x4")
    asking.none, asking.wholes = none, [SimpleNamespace()]
    asking.forms.estimated_whole = lambda form, outcome, best: outcome
    assert asking._is_beaten(islands, wholes) == is_beaten
