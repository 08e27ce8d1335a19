# SPDX-License-Identifier: Apache-2.0
"""The laws of joined sets, on random programs whose paths are searched one by one."""

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.hierarchy.joining import Joinable, joined_sets

MOST = 64


@st.composite
def blocks(draw) -> tuple[list[Joinable | None], list[set[int]]]:
    """Returns the collectives of a block, and what each takes directly: earlier ones."""
    count = draw(st.integers(2, 14))
    takes = [set() if number == 0 else draw(st.sets(st.integers(0, number - 1), max_size=2)) for number in range(count)]
    found: list[Joinable | None] = []
    for number in range(count):
        key, num_bytes = draw(st.sampled_from("aab")), draw(st.sampled_from((1, 8, 40)))
        needs = sum(1 << each for each in _reached([number], takes) - {number})
        found.append(None if draw(st.integers(0, 5)) == 0 else Joinable(key, needs, num_bytes))
    return found, takes


def _reached(starts, takes) -> set[int]:
    found, left = set(), list(starts)
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += takes[at]
    return found


@given(blocks())
def test_a_program_with_its_sets_joined_has_no_cycle(block):
    collectives, takes = block
    sets = joined_sets(collectives, MOST)
    node = {number: ("set", place) for place, numbers in enumerate(sets) for number in numbers}
    edges: dict[object, set] = {}
    for number, taken in enumerate(takes):
        edges.setdefault(node.get(number, number), set()).update(node.get(each, each) for each in taken)
    done: set = set()
    while ready := [each for each in edges if each not in done and edges[each] <= done]:
        done.update(ready)
    assert done == set(edges)


@given(blocks())
def test_sets_are_of_one_key_within_the_limit_and_do_not_touch(block):
    collectives, _ = block
    sets = joined_sets(collectives, MOST)
    members = [number for numbers in sets for number in numbers]
    assert len(members) == len(set(members))
    for numbers in sets:
        found = [collectives[number] for number in numbers]
        assert len(found) >= 2 and all(found)
        assert len({each.key for each in found}) == 1
        assert sum(each.num_bytes for each in found) <= MOST


@given(blocks())
def test_no_two_that_are_left_alone_could_be_joined(block):
    collectives, takes = block
    sets = joined_sets(collectives, MOST)
    assert sets or not any(
        one and other and one.key == other.key and one.num_bytes + other.num_bytes <= MOST
        and i not in _reached([j], takes)
        for i, one in enumerate(collectives)
        for j, other in enumerate(collectives[i + 1 :], i + 1)
    )  # fmt: skip


def test_what_joined_sets_need_is_needed_by_all_that_need_a_member():
    """1 needs 0, and 3 needs 2: with 1 and 2 joined, 3 needs 0."""
    a, b = Joinable("a", 0, 1), Joinable("b", 0, 1)
    block = [a, Joinable("b", 0b0001, 1), b, Joinable("a", 0b0100, 1)]
    assert joined_sets(block, MOST) == [(1, 2)]


def test_sets_that_do_not_fit_into_one_buffer_are_several():
    block = [Joinable("a", 0, 30) for _ in range(5)]
    assert joined_sets(block, MOST) == [(0, 1), (2, 3)]
