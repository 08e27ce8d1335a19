# SPDX-License-Identifier: Apache-2.0
"""What the search for the best form of a module asks for."""

import math
from types import SimpleNamespace

import pytest

from reshard.passes.sites.oracle import ALWAYS, BETTER
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
