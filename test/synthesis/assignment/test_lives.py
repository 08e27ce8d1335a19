# SPDX-License-Identifier: Apache-2.0
"""What is in memory when: fused ops, views, results written into operands, loops and branches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.assignment.factored_program import FactoredOp, Tensor
from reshard.synthesis.assignment.lives import Region, _Lives, schedule_of

DIMS = ((0,),)


def op(name: str, takes, makes, flops: int = 0) -> FactoredOp:
    takes, makes = ([each] if isinstance(each, int) else each for each in (takes, makes))
    return FactoredOp(name, tuple(takes), tuple(makes), (DIMS,) * len(takes), (DIMS,) * len(makes), (8,), flops=flops)


def dot(takes, makes) -> FactoredOp:
    return op("dot_general", takes, makes, flops=1)


def lives(sizes, ops, body=None, arguments=(0,), donated=(), results=()):
    tensors = [Tensor((size,), 8) for size in sizes]
    items = body or Region(tuple(range(len(ops))))
    found = schedule_of(tensors, ops, items, arguments, donated, results).lives
    return {each.tensor: (each.first, each.last) for each in found}


def test_an_elementwise_result_for_one_op_is_never_in_memory_and_its_operands_live_until_that_op():
    ops = [dot(0, 1), op("tanh", 1, 2), op("add", [2, 0], 3), op("reduce", 3, 4)]
    assert lives([8, 8, 8, 8, 1], ops, results=[4]) == {0: (0, 3), 1: (1, 1), 4: (2, 3)}


def test_what_a_matrix_product_reads_is_in_memory():
    ops = [op("tanh", 0, 1), dot(1, 2)]
    assert lives([8, 8, 8], ops, results=[2]) == {0: (0, 3), 1: (1, 2), 2: (2, 3)}


def test_what_is_cheap_to_make_again_is_not_kept_for_the_backward_pass():
    ops = [dot(0, 1), op("tanh", 1, 2), dot(2, 3), op("multiply", [3, 2], 4), dot(4, 5)]
    assert 2 in lives([8] * 6, ops, results=[5]), "a matrix product reads it"
    ops = [dot(0, 1), op("tanh", 1, 2), op("exp", 2, 3), dot(3, 4), op("multiply", [4, 2], 5), dot(5, 6)]
    found = lives([8] * 7, ops, results=[6])
    assert 2 not in found and found[1][1] >= found[4][0], "tanh is made again of what is alive anyway"


def test_what_is_made_of_several_tensors_is_kept_for_several_ops():
    ops = [dot(0, 1), dot(0, 2), op("add", [1, 2], 3), op("exp", 3, 4), dot(4, 5), op("multiply", [5, 3], 6), dot(6, 7)]
    found = lives([8] * 8, ops, results=[7])
    assert 3 in found and found[1][1] < found[3][1]


def test_views_and_updates_in_place_are_the_same_memory():
    ops = [dot(0, 1), op("reshape", 1, 2), op("dynamic_update_slice", [2, 0], 3), op("transpose", 3, 4), dot(4, 5)]
    assert lives([8] * 6, ops, results=[5]).keys() == {0, 1, 5}


def test_an_update_copies_an_argument_that_is_not_donated_and_what_is_read_later():
    ops = [op("dynamic_update_slice", [0, 1], 2), dot(2, 3)]
    sizes = [8, 1, 8, 1]
    assert 2 in lives(sizes, ops, arguments=(0, 1), results=[3])
    assert 2 not in lives(sizes, ops, arguments=(0, 1), donated=(0,), results=[3])
    read_later = [dot(1, 0), op("dynamic_update_slice", [0, 1], 2), dot([2, 0], 3)]
    assert 2 in lives(sizes, read_later, arguments=(1,), results=[3])


def test_a_donated_argument_ends_with_its_last_use():
    ops = [dot(0, 1), dot(1, 2), dot(2, 3)]
    assert lives([8] * 4, ops, donated=(0,), results=[3])[0] == (0, 1)
    assert lives([8] * 4, ops, results=[3])[0] == (0, 4)


def test_a_loop_keeps_what_it_carries_and_captures_until_its_last_iteration_ends():
    # carry 2, from zeros, is updated in place with 3, which is made of 1 in each iteration; both are used after it
    ops = [dot(0, 1), dot(1, 3), op("dynamic_update_slice", [2, 3], 4), op("copy", 4, 2), dot(2, 5)]
    body = Region((0, Region((1, 2, 3), is_loop=True, carries=frozenset({2})), 4))
    found = lives([8, 8, 32, 8, 32, 8], ops, body, results=[5])
    assert 4 not in found, "the update is in place"
    (_, carried), (start, captured), (first, last) = found[2], found[1], found[3]
    assert start < first <= last < captured and carried > captured


def test_the_part_of_a_loop_that_is_fullest_counts_where_the_loop_stands():
    # the loop needs 64 inside; the product of 6 before it, which is needed after it, is made after it
    ops = [dot(0, 6), dot(0, 1), dot(1, 2), op("copy", 2, 1), dot([1, 6], 5)]
    body = Region((0, 1, Region((2, 3), is_loop=True, carries=frozenset({1})), 4))
    found = lives([8, 8, 64, 8, 8, 8, 32], ops, body, results=[5])
    assert found[6][0] > found[2][1]


def test_the_results_of_branches_are_made_in_each_of_them():
    ops = [op("exponential", 0, 1), op("copy", 1, 3), dot(0, 2), op("copy", 2, 3), dot(3, 4)]
    body = Region((Region((0, 1)), Region((2, 3)), 4))
    found = lives([8] * 5, ops, body, results=[4])
    assert 1 not in found and found[3][0] < found[3][1] < found[4][1]


def test_what_an_update_writes_into_is_in_memory_if_it_is_made_of_others():
    ops = [op("exponential", 0, 1), op("dynamic_update_slice", [1, 7], 2), dot(0, 3), dot(3, 4), op("add", [4, 2], 5)]
    found = lives([8] * 8, [*ops, dot(5, 6)], arguments=(0, 7), results=[6])
    assert found[2][1] >= found[4][0], "the addition reads it"


def test_an_update_copies_what_is_needed_later_in_any_form():
    both = [dot(0, 1), op("scatter", [1, 0], 2)]
    assert {1, 2} <= lives([8] * 3, both, results=[1, 2]).keys(), "the value and the update are results"
    view = [dot(0, 1), op("reshape", 1, 2), op("scatter", [2, 0], 3), dot([3, 1], 4)]
    assert {1, 3} <= lives([8] * 5, view, results=[4]).keys(), "it is read behind a view of it that was updated"
    fused = [dot(0, 1), op("exponential", 1, 2), op("scatter", [1, 0], 3), op("add", [3, 2], 4), dot(4, 5)]
    assert {1, 3} <= lives([8] * 6, fused, results=[5]).keys(), "what is made of it is made after the update"
    captured = [dot(0, 1), op("scatter", [1, 0], 2), dot(2, 3)]
    body = Region((0, Region((1, 2), is_loop=True)))
    assert {1, 2} <= lives([8] * 4, captured, body, results=[3]).keys(), "the next iteration updates it again"


@st.composite
def programs(draw):
    """Draws ops in a line: each reads values that are there, and makes a new one."""
    names = st.sampled_from(["exponential", "reshape", "scatter", "dynamic_update_slice", "dot", "reduce", "add"])
    ops = []
    for number in range(2, 2 + draw(st.integers(1, 8))):
        name, one = draw(names), draw(st.integers(0, number - 1))
        takes = [one] if name in ("exponential", "reshape", "reduce") else [one, draw(st.integers(0, number - 1))]
        ops.append(op(name, takes, number, flops=name == "dot"))
    values = st.integers(0, 1 + len(ops))
    return ops, draw(st.sets(st.integers(0, 1))), draw(st.sets(values, min_size=1, max_size=3))


@given(programs())
def test_no_op_reads_what_was_overwritten_and_results_are_there_at_the_end(program):
    ops, donated, results = program
    tensors = [Tensor((8,), 8)] * (2 + len(ops))
    found = _Lives(tensors, ops, Region((*range(len(ops)),)), *map(frozenset, ([0, 1], donated, results, [])))
    maker = {each.results[0]: number for number, each in enumerate(ops)}

    def sources(tensor):
        """Yields the values in memory that a value is, or is made of."""
        number = maker.get(tensor)
        if number is None or not (found.is_view[number] or found.is_fused[number]):
            yield tensor
        else:
            yield from (each for operand in ops[number].operands for each in sources(operand))

    holds = {0: 0, 1: 1}  # piece of memory -> the value that is in it
    touched = Counter(each for n in found._makers() for each in found._step(n).takes | found._step(n).makes)
    for number, _ in found._ordered(found.body, touched).parts:
        for operand in ops[number].operands:
            assert all(holds[found._same[each]] == each for each in sources(operand))
        (made,) = ops[number].results
        holds[found._same[made]] = made
    for result in results:
        assert all(holds[found._same[each]] == each for each in sources(result))
