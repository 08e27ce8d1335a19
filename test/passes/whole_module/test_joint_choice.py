# SPDX-License-Identifier: Apache-2.0
"""The joint choice is never worse than what it has measured, and finds what bisection can find."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from reshard.passes.whole_module.joint_choice import JointChoice, Outcome
from reshard.passes.whole_module.module_cost import is_better


class Module:
    """A made-up module: the time of a set is 100 less the gains of its groups, with surprises for some pairs."""

    def __init__(self, gains, pairs=None, forbidden=frozenset()):
        self.gains, self.pairs, self.forbidden = gains, pairs or {}, forbidden
        self.asked, self.foreseen, self.foreseen_at = [], [], []

    def outcome(self, groups):
        seconds = 100.0 - sum(self.gains[each] for each in groups)
        seconds -= sum(more for pair, more in self.pairs.items() if pair <= groups)
        return Outcome("forbidden" if groups & self.forbidden else "", seconds, (len(groups),))

    def measure(self, groups):
        self.asked.append(groups)
        self.foreseen_at.append(self.foreseen)
        return self.outcome(groups)

    def foresee(self, sets):
        self.foreseen = sets

    def choice(self, promised, budget=64, least_gain_s=0.0, goal_s=math.inf):
        none = self.outcome(frozenset())
        return JointChoice(promised, self.measure, none, is_better, budget, least_gain_s, self.foresee, goal_s)


def test_what_keeps_its_promise_is_measured_once():
    module = Module([5, 3, 2])
    assert module.choice([5, 3, 2]).run([{0, 1, 2}]) == {0, 1, 2}
    assert module.asked == [frozenset({0, 1, 2})]


def test_the_group_that_disappoints_is_found_by_halves():
    module = Module([5, 5, 5, -9, 5, 5, 5, 5])
    choice = module.choice([5] * 8)
    assert choice.run([range(8)]) == {0, 1, 2, 4, 5, 6, 7}
    assert [(set(flip.block), flip.is_removal) for flip in choice.flips] == [({2, 3}, True), ({2}, False)]


def test_a_group_that_is_worse_alone_is_put_in_where_all_together_are_better():
    """Two groups that pay only together: all of them surprise, and the bisection keeps those that matter."""
    gains = [4, -6, -1, -1, -6]
    module = Module(gains, {frozenset({2, 3}): 5})
    assert module.choice(gains).run([{0}, range(5)]) == {0, 2, 3}


def test_only_what_may_reach_the_goal_is_measured():
    """The starts fall short of what they promised by less than is missing to the goal; then none else is tried."""
    gains = [4, 3, -2, -1, 1]
    module = Module([2, 3, -2, -1, 1])
    choice = module.choice(gains, goal_s=90.0)
    assert choice.run([{0, 1, 4}, range(5)]) == {0, 1, 4}
    assert len(module.asked) == 2
    unaware = Module([2, 3, -2, -1, 1])
    assert unaware.choice(gains).run([{0, 1, 4}, range(5)]) == {0, 1, 4} and len(unaware.asked) > 2


def test_a_surprise_may_reach_the_goal():
    gains = [4, -6, -1, -1, -6]
    module = Module(gains, {frozenset({2, 3}): 9})
    assert module.choice(gains, goal_s=88.0).run([{0}, range(5), {1}]) == {0, 2, 3}


def test_a_set_that_cannot_be_used_may_hide_what_reaches_the_goal():
    module = Module([1, 1, 1, 9], {}, frozenset({1}))
    assert module.choice([1, 1, 1, 0], goal_s=90.0).run([{0}, range(4)]) == {0, 2, 3}


def test_another_outcome_of_the_best_set_lets_the_next_best_one_be_chosen():
    module = Module([5, 3])
    choice = module.choice([5, 3])
    choice.run([{0}, {1}, {0, 1}])
    choice.revise(frozenset({0, 1}), Outcome("too long", 92.0))
    assert choice.best == {0}
    choice.revise(frozenset({0}), Outcome("", 98.0))
    assert choice.best == {1}


def test_the_group_that_may_not_be_used_is_left_out():
    module = Module([5, 5, 5, 5], forbidden=frozenset({2}))
    assert module.choice([5, 5, 5, 5]).run([range(4)]) == {0, 1, 3}


def test_a_group_that_promised_a_loss_is_taken_out_of_a_block_that_was_put_in():
    module = Module([-1, -1, -1, 2])
    assert module.choice([-1, -1, -1, 2]).run([range(4)]) == {3}


def test_a_small_disappointment_is_not_worth_a_measurement():
    module = Module([10, 9, 8])
    assert module.choice([10, 10, 9], least_gain_s=3.0).run([{0, 1, 2}]) == {0, 1, 2}
    assert len(module.asked) == 1


def test_without_room_the_best_of_the_starts_is_taken():
    module = Module([5, -3])
    choice = module.choice([5, 5], budget=1)
    assert choice.run([{0, 1}, {0}]) == {0, 1}
    assert len(module.asked) == 1


gains = st.lists(st.integers(-5, 5), min_size=1, max_size=7)


@given(gains, gains, st.dictionaries(st.frozensets(st.integers(0, 6), min_size=2, max_size=2), st.integers(-6, 6)),
       st.integers(0, 30), st.lists(st.sets(st.integers(0, 6)), max_size=3))  # fmt: skip
def test_never_worse_than_anything_measured_and_within_the_budget(true, promised, pairs, budget, starts):
    promised = (promised + [0] * len(true))[: len(true)]
    module = Module(true, pairs)
    choice = module.choice(promised, budget)
    starts = [frozenset(each for each in start if each < len(true)) for start in starts]
    best = choice.run(starts)
    assert len(module.asked) <= budget and len(set(module.asked)) == len(module.asked)
    for groups in (frozenset(), *module.asked):
        assert not is_better(module.outcome(groups), module.outcome(best))
    assert choice.outcome == module.outcome(best)
    assert all(groups in starts or groups in foreseen for groups, foreseen in zip(module.asked, module.foreseen_at))


@given(gains, gains, st.dictionaries(st.frozensets(st.integers(0, 6), min_size=2, max_size=2), st.integers(-6, 6)))
def test_the_second_set_that_is_foreseen_is_next_if_the_first_is_no_better_and_no_surprise(true, promised, pairs):
    promised = (promised + [0] * len(true))[: len(true)]
    module = Module(true, pairs)
    module.choice(promised).run([range(len(true))])
    best = module.outcome(frozenset())
    for (groups, following), foreseen in zip(itertools.pairwise(module.asked), module.foreseen_at):
        was_better = is_better(module.outcome(groups), best)
        best = module.outcome(groups) if was_better else best
        gained = module.outcome(frozenset()).seconds - module.outcome(groups).seconds
        is_surprise = gained > sum(promised[each] for each in groups)
        if len(foreseen) == 2 and foreseen[0] == groups and not was_better and not is_surprise:
            assert following == foreseen[1]


@given(st.lists(st.integers(-5, 5).filter(bool), min_size=1, max_size=6))
def test_independent_groups_with_right_promises_give_the_best_of_all_sets(true):
    module = Module(true)
    proposed = [number for number, gain in enumerate(true) if gain > 0]
    best = module.choice(true).run([proposed, range(len(true))])
    every = (
        frozenset(each) for count in range(len(true) + 1) for each in itertools.combinations(range(len(true)), count)
    )
    assert module.outcome(best).seconds == min(module.outcome(each).seconds for each in every)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5)), min_size=1, max_size=7), st.integers(0, 4))
def test_no_group_stays_that_costs_more_than_the_least_gain_if_none_gains_more_than_promised(rows, least):
    true, promised = [gain for gain, _ in rows], [gain + more for gain, more in rows]
    module = Module(true)
    best = module.choice(promised, budget=1000, least_gain_s=least).run([range(len(true))])
    assert all(true[each] >= -least for each in best)


@given(gains, gains, st.integers(60, 110))
def test_a_goal_hides_no_set_that_reaches_it(true, promised, goal):
    """If no group gains more than it promised, what reaches the goal is found where it is found without one."""
    promised = (promised + [0] * len(true))[: len(true)]
    module = Module([min(each) for each in zip(true, promised, strict=True)])
    free, bound = (module.choice(promised, goal_s=goal_s).run([range(len(true))]) for goal_s in (math.inf, goal))
    least_s = module.outcome(free).seconds
    assert module.outcome(bound).seconds == least_s or least_s > goal
