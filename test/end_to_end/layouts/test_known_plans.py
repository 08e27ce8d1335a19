# SPDX-License-Identifier: Apache-2.0
"""Plans with names: by hand they compute what the plain program does, with the collectives of the textbooks."""

import jax
import numpy as np
import pytest

from benchmarks.programs.manual.known_plans import PLANS
from benchmarks.whole_modules import known_plans
from benchmarks.whole_modules.known_plans import Moved, Row, measured
from reshard.passes.sites.network import SiteNetwork

BY_NAME = {plan.name: plan for plan in PLANS}
TEXTBOOK = {  # collectives of a layer, forward and backward, and outside of the layers
    "data parallel": ("–", "7 all_reduce", "1 all_reduce"),
    "ZeRO-3": ("7 all_gather", "7 all_gather, 7 reduce_scatter", "1 all_reduce"),
    "Megatron": ("2 all_reduce", "2 all_reduce", "–"),
    "Megatron, sequence parallel": ("2 all_gather, 2 reduce_scatter",) * 2 + ("1 all_reduce",),
    "expert parallel": ("2 all_to_all", "2 all_to_all", "1 all_reduce"),
    "vocabulary parallel loss": ("–", "–", "3 all_reduce"),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("plan", PLANS, ids=BY_NAME)
def test_by_hand_a_plan_computes_what_the_plain_program_does(plan):
    arguments = plan.arguments("small")
    (by_hand, shapes), (plain, same) = plan.by_hand("small"), plan.plain("small")
    assert shapes == same
    for one, other in zip(*(jax.tree.leaves(step(*arguments)) for step in (by_hand, plain)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", TEXTBOOK)
def test_by_hand_a_plan_has_the_collectives_of_the_textbook(name, monkeypatch):
    monkeypatch.setattr(known_plans, "WAYS", ())
    (row,) = measured(BY_NAME[name], "small", SiteNetwork("h100:1x8"))  # TPUs scatter whole tiles only
    assert tuple(place.text for place in row.places) == TEXTBOOK[name]
    assert row.received == sum(place.received * (1 if at == 2 else 2) for at, place in enumerate(row.places))


@pytest.mark.slow
def test_the_loss_from_nothing_is_as_good_as_by_hand():
    by_hand, *others = measured(BY_NAME["vocabulary parallel loss"], "demo", SiteNetwork("v5e:2x4"))
    assert [each.program for each in others] == ["its tactics", "from nothing"]
    assert all(known_plans.is_as_good(each, by_hand) for each in others)
    assert all(each.received < 0.6 * by_hand.received for each in others)


def test_a_row_that_receives_more_or_takes_longer_is_worse():
    by_hand = Row("plan", "by hand", (Moved({"all_reduce": 1}, 100.0),) * 3, 10.0, received=100.0)
    as_good = Row("plan", "from nothing", (), 10.05, received=100.5)
    longer, more = Row("plan", "from nothing", (), 11.0, received=90.0), Row("plan", "x", (), 9.0, received=110.0)
    assert [known_plans.is_as_good(each, by_hand) for each in (as_good, longer, more)] == [True, False, False]
