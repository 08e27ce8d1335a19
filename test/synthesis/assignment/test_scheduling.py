# SPDX-License-Identifier: Apache-2.0
"""Orders of steps: dependences are kept, nothing gets worse, and late uses of large values come early."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.assignment.scheduling import Step, order_of, peak_of


def step(takes=(), makes=(), within: int = 0) -> Step:
    return Step(frozenset(takes), frozenset(makes), within)


def must_wait(earlier: Step, later: Step) -> bool:
    return bool(earlier.makes & (later.takes | later.makes) or earlier.takes & later.makes)


def keeps_dependences(order, steps) -> bool:
    at = {number: place for place, number in enumerate(order)}
    pairs = itertools.combinations(range(len(steps)), 2)
    return all(at[a] < at[b] for a, b in pairs if must_wait(steps[a], steps[b]))


@st.composite
def programs(draw):
    """Draws steps: each takes values that are there, and makes new ones or writes into an old one."""
    steps, values = [], 2
    for _ in range(draw(st.integers(1, 6))):
        takes = draw(st.sets(st.integers(0, values - 1), max_size=3))
        makes = {values} if draw(st.booleans()) else draw(st.sets(st.sampled_from(range(values)), max_size=1))
        values += values in makes
        steps.append(step(takes, makes, draw(st.sampled_from([0, 0, 3]))))
    sizes = {value: draw(st.integers(0, 8)) for value in range(values)}
    return steps, sizes, draw(st.sets(st.integers(0, values - 1), max_size=2))


@given(programs())
def test_an_order_keeps_all_dependences_and_its_peak_is_between_the_best_and_that_of_the_text(program):
    steps, sizes, kept = program
    order = order_of(steps, sizes, kept)
    assert sorted(order) == [*range(len(steps))] and keeps_dependences(order, steps)
    possible = (each for each in itertools.permutations(range(len(steps))) if keeps_dependences(each, steps))
    best = min(peak_of(each, steps, sizes, kept) for each in possible)
    assert best <= peak_of(order, steps, sizes, kept) <= peak_of(range(len(steps)), steps, sizes, kept)


def test_a_gradient_that_stands_at_the_end_is_made_where_its_operands_are():
    forward = [step([number], [number + 1]) for number in range(4)]
    backward = [step([10 + number, number], [9 + number]) for number in (4, 3, 2, 1)]  # of values
    weights = [step([10 + number, number], [20 + number]) for number in (4, 3, 2, 1)]  # all at the end of the text
    steps = [*forward, step([4], [14]), *backward, *weights]
    sizes = {each: 8 for each in range(20)} | {each: 1 for each in range(20, 25)}
    order = order_of(steps, sizes, {21, 22, 23, 24})
    assert peak_of(order, steps, sizes) < peak_of(range(len(steps)), steps, sizes)
    assert order.index(9) < order.index(6), "the gradient of the last weights comes before the third value's"


def test_zeros_are_made_when_they_are_needed():
    steps = [step((), [1]), step([0], [2]), step([2], [3]), step([1, 3], [4])]
    assert order_of(steps, {0: 4, 1: 100, 2: 90, 3: 1, 4: 1}, {0}) == [1, 2, 0, 3]


def test_a_value_is_written_to_only_after_it_was_read():
    steps = [step((), [0]), step([0], [1]), step([0], [0]), step([0, 1], [2])]
    assert order_of(steps, {0: 8, 1: 1, 2: 1}, {2}) == [0, 1, 2, 3]
