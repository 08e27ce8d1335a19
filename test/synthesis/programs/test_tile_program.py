# SPDX-License-Identifier: Apache-2.0
"""The lowering: each step becomes the expected operations, with as few copies as possible."""

import itertools

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import Factor, Layout, Slot, blocked
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
    ToUnreduced,
    apply,
)
from reshard.synthesis.programs.tile_program import (
    Copies,
    Gather,
    KeepFirst,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Send,
    Swap,
    TakeOwn,
    Transpose,
    bytes_moved,
    changes_hands,
    collectives,
    copied_elements,
    copies,
    lower,
    permute_pairs,
)
from reshard.synthesis.search.greedy_chain import greedy_chain

MESH = Mesh.parse("x=2,y=2")
X, Y = Factor("x", 1, 2), Factor("y", 1, 2)


def operations(source: Layout, *steps):
    return lower(MESH, source, steps).operations


def test_no_step_is_no_operation():
    program = lower(MESH, blocked((8, 4), ((X,), ())), ())
    assert (program.operations, program.in_shape, program.out_shape) == ((), (4, 4), (4, 4))


def test_slice_of_a_leading_digit_takes_an_index_of_a_view():
    assert operations(blocked((8, 4), ((X,), ())), Slice(((Y, Slot(0, 2, 4)),))) == (
        Reshape((2, 2, 4)),
        TakeOwn(((0, Y),)),
    )


def test_slices_of_two_factors_are_one_operation():
    found = operations(blocked((8, 4), ((), ())), Slice(((X, Slot(0, 1, 2)), (Y, Slot(1, 1, 2)))))
    assert found == (
        Reshape((2, 4, 2, 2)),
        TakeOwn(((0, X), (2, Y))),
    )


def test_gather_along_dimension_0_is_one_operation():
    assert operations(blocked((8, 4), ((X, Y), ())), AllGather((X, Y))) == (Gather((X, Y)),)


def test_gather_along_another_dimension_ends_in_one_copy():
    assert operations(blocked((8, 4), ((), (X,))), AllGather((X,))) == (
        Gather((X,)),
        Reshape((2, 8, 2)),
        Transpose((1, 0, 2)),
        Reshape((8, 4)),
    )


def test_gathers_of_two_dimensions_copy_the_smaller_tile_and_end_in_place():
    found = plan(MESH, (8, 4), 32, Sharding.parse('[{"x"}, {"y"}]'), Sharding.parse("[{}, {}]"))
    assert [type(operation) for operation in found.tile_program.operations] == [
        Gather,
        Reshape,
        Transpose,
        Reshape,
        Gather,
    ]
    assert found.tile_program.operations[-1] == Gather((X,))


def test_swap_puts_the_destination_digit_in_front():
    assert operations(blocked((8, 4), ((X,), ())), AllToAll(((X, Slot(1, 1, 2)),))) == (
        Reshape((4, 2, 2)),
        Transpose((1, 0, 2)),
        Swap((X,)),
        Reshape((8, 2)),
    )


def test_swap_whose_digit_lies_in_front_copies_nothing_before():
    found = operations(blocked((8, 4), ((), (X,))), AllToAll(((X, Slot(0, 1, 2)),)))
    assert found == (Reshape((2, 4, 2)), Swap((X,)), Transpose((1, 0, 2)), Reshape((4, 4)))


def test_permute_is_one_operation_and_leaves_tiles_that_are_in_place():
    before, after = blocked((8, 4), ((X, Y), ())), blocked((8, 4), ((Y, X), ()))
    assert operations(before, Permute(after)) == (Send(((0, 0), (1, 2), (2, 1), (3, 3))),)


def test_permute_keeps_replicas_that_have_their_block():
    mesh = Mesh.parse("x=2,y=2,z=2")
    before, after = blocked((8,), ((X,),)), blocked((8,), ((Y,),))
    pairs = permute_pairs(mesh, before, after)
    assert sum(a == b for a, b in pairs) == 4
    assert sorted(b for _, b in pairs) == sorted(a for a, _ in pairs) == list(range(8))


def test_permute_pairs_are_device_ids_not_positions():
    mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>')
    assert permute_pairs(mesh, blocked((4,), ((X, Y),)), blocked((4,), ((Y, X),))) == ((0, 0), (1, 2), (2, 1), (3, 3))


def test_copies_are_filed_under_relayouts():
    program = lower(MESH, blocked((8, 4), ((X,), ())), (AllToAll(((X, Slot(1, 1, 2)),)),))
    assert [type(step) for step, _ in program.steps] == [Relayout, AllToAll]
    assert program.steps[0][0].text == "4x2x2 by [1, 0, 2]"


def test_relayouts_are_not_for_planners():
    with pytest.raises(ValueError, match="relayouts are the lowering's"):
        lower(MESH, blocked((8,), ((X,),)), (Relayout("by hand"),))


def test_splitting_a_second_digit_keeps_the_first_apart():
    """Random pairs found it: a transpose for the second digit joined the first digit with its neighbour again."""
    mesh = Mesh.parse("x=2,y=3,z=2")
    source, target = Sharding.parse('[{"y", "z"}, {}, {"x"}, {}]'), Sharding.parse('[{}, {"z"}, {"y"}, {}]')
    found = plan(mesh, (12, 6, 24, 3), 32, source, target)
    semantics.check(found.tile_program, found.shape, source, target)


def test_no_transpose_in_a_chain_of_slices_and_permutes():
    found = plan(MESH, (8,), 32, Sharding.parse('[{"x"}]'), Sharding.parse('[{"y", "x"}]'))
    assert not any(isinstance(operation, Transpose) for operation in found.tile_program.operations)


def test_what_moves_is_what_is_counted_collective_by_collective():
    kinds = set()
    for pair, bits in itertools.product(random_pairs(71, 60, (6, 8, 16)), (4, 32)):
        try:
            program = plan(pair.mesh, pair.shape, bits, pair.source, pair.target, with_exchange=True).tile_program
        except NoPlanError:
            continue
        counted = collectives(program, bits)
        devices = pair.mesh.size
        expected = traffic.bytes_received(counted, devices), traffic.bytes_sent(counted, devices)
        assert bytes_moved(program, bits, devices) == expected, pair
        kinds.add(tuple(each.kind for each in counted))
    assert {
        ("collective_permute",),
        ("all_to_all",),
        ("collective_permute", "all_gather"),
        ("collective_permute",) * 3,
    } <= kinds, kinds


# -- partial sums --

SUMS = Layout((8, 4), ((X, Slot(0, 1, 2)),), (Y,))


def test_reduce_scatter_puts_its_digit_in_front_and_leaves_an_axis_of_one():
    assert operations(SUMS, ReduceScatter(((Y, Slot(1, 1, 2)),))) == (
        Reshape((4, 2, 2)),
        Transpose((1, 0, 2)),
        ReduceOwn((Y,)),
        Reshape((4, 2)),
    )


def test_all_reduce_is_one_operation():
    assert operations(SUMS, AllReduce((Y,))) == (Reduce((Y,)),)
    assert operations(Layout((), (), (X, Y)), AllReduce((X, Y))) == (Reduce((X, Y)),)


def test_owned_digits_become_unreduced_in_front_and_replicas_by_zeros():
    assert operations(blocked((8, 4), ((), (X,))), ToUnreduced((X, Y))) == (
        KeepFirst((Y,)),
        PutOwn((X,)),
        Transpose((1, 0, 2)),
        Reshape((8, 4)),
    )


def test_permute_pairs_tell_partial_sums_of_a_block_apart():
    before, after = Layout((8,), (), (X,)), Layout((8,), (), (Y,))
    assert permute_pairs(MESH, before, after) == ((0, 0), (1, 2), (2, 1), (3, 3))
    assert permute_pairs(MESH, before, before) == ((0, 0), (1, 1), (2, 2), (3, 3))


def test_traffic_of_reductions():
    program = lower(MESH, SUMS, (ReduceScatter(((Y, Slot(1, 1, 2)),)),))
    (found,) = collectives(program, 32)
    assert (found.kind, found.bytes_before, found.bytes_after, found.groups) == (
        "reduce_scatter",
        64,
        32,
        ((0, 1), (2, 3)),
    )
    (found,) = collectives(lower(MESH, SUMS, (AllReduce((Y,)),)), 32)
    assert (found.kind, found.bytes_before, found.bytes_after) == ("all_reduce", 64, 64)


def test_tiles_change_hands_exactly_where_pairs_are_of_two_devices():
    mesh, pieces = Mesh.parse("x=4,y=2"), (Factor("x", 1, 2), Factor("x", 2, 2), Factor("y", 1, 2))
    layouts = [blocked((8, 8), (order, ())) for order in itertools.permutations(pieces)]
    layouts += [
        blocked((8, 8), ((Factor("x", 1, 4), pieces[2]), ())),
        blocked((8, 8), ((pieces[2], Factor("x", 1, 4)), ())),
    ]
    for before, after in itertools.product(layouts, repeat=2):
        assert changes_hands(mesh, before, after) == any(a != b for a, b in permute_pairs(mesh, before, after))


def test_layouts_that_are_known_lead_to_the_same_program():
    layout, steps = SUMS, (ReduceScatter(((Y, Slot(1, 1, 2)),)),)
    assert lower(MESH, layout, steps, layouts=[layout, apply(layout, steps[0])]) == lower(MESH, layout, steps)


# ---- copies


def test_neighbouring_digits_are_one_number_whatever_radices_they_came_in():
    """The gathered blocks of 3 and 2 are adjacent: their first half is a slice, and only this slice is transposed."""
    a, b, s = Factor("a", 1, 3), Factor("b", 1, 2), Factor("s", 1, 2)
    mesh = Mesh.parse("a=3,b=2,s=2")
    source = Layout((4, 12), ((a, Slot(1, 1, 3)), (b, Slot(1, 3, 6))))
    program = lower(mesh, source, (AllGather((a, b)), Slice(((s, Slot(1, 1, 2)),))))
    kinds = [type(step) for step, _ in program.steps]
    assert kinds == [AllGather, Slice, Relayout]
    assert copies(program, 8).all_relaid == 4 * 6
    semantics.check(program, (4, 12), Sharding.parse('[{}, {"a", "b"}]'), Sharding.parse('[{}, {"s"}]'))


def test_a_slice_behind_a_transpose_is_written_in_the_same_loop():
    """A half of 3 blocks is not a slice of the gathered tile, so a transpose orders the tile first."""
    a, s = Factor("a", 1, 3), Factor("s", 1, 2)
    program = lower(
        Mesh.parse("a=3,s=2"), Layout((4, 12), ((a, Slot(1, 1, 3)),)), (AllGather((a,)), Slice(((s, Slot(1, 1, 2)),)))
    )
    assert [type(step) for step, _ in program.steps] == [AllGather, Relayout, Slice]
    assert copied_elements(program) == [0, 24, 0] and copies(program, 8).all_relaid == 24


def test_transposes_in_a_row_are_one_loop():
    """Gathered halves are ordered so that thirds can move: the step has two transposes, which count as one copy."""
    y, z = Factor("y", 1, 2), Factor("z", 1, 3)
    source = Layout((8, 12, 12), ((y, Slot(1, 1, 2)), (z, Slot(2, 1, 3))))
    program = lower(Mesh.parse("y=2,z=3"), source, (AllGather((y,)), AllToAll(((z, Slot(1, 1, 3)),))))
    transposes = [sum(isinstance(each, Transpose) for each in done) for _, done in program.steps]
    assert transposes[1] == 2 and copied_elements(program)[1] == 8 * 12 * 4


def test_a_copy_before_the_last_all_to_all_takes_the_place_of_one_behind_it():
    """The gathered digit of dimension 1 comes in front; the all_to_all may find the tile in order, or leave it so."""
    mesh = Mesh.parse("x=4,y=2")
    chain = greedy_chain(mesh, (2, 4, 4), Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"y"}, {}]'))
    move, gather = sorted(chain, key=lambda step: isinstance(step, AllGather))
    program = lower(mesh, chain.source, (gather, move))
    kinds = [[type(each).__name__ for each in operations] for _, operations in program.steps]
    assert "Transpose" in kinds[1] and "Transpose" not in kinds[-1]
    assert copies(program, 8) == Copies(relaid_before=16)
    assert copies(lower(mesh, chain.source, (move, gather)), 8) == Copies(relaid=16)
