# SPDX-License-Identifier: Apache-2.0
"""Rule R1: each typing rule accepts the steps that it describes, and refuses all others."""

import pytest

from reshard.synthesis.layouts.layout import Factor, Layout, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    Relayout,
    RuleError,
    Slice,
    ToUnreduced,
    apply,
    received_elements,
)

X, Y, Z = Factor("x", 1, 2), Factor("y", 1, 2), Factor("z", 1, 3)
ROWS = Layout((8, 8), ((X, Slot(0, 1, 2)),))  # [x*4, 8]
BOTH = Layout((8, 8), ((X, Slot(0, 1, 2)), (Y, Slot(0, 2, 4))))  # [x*y*2, 8]
NONE = Layout((8, 8), ())


def test_t1_slice_takes_a_local_digit_even_a_middle_one():
    after = apply(ROWS, Slice(((Y, Slot(0, 4, 8)),)))
    assert after.owners == ((X, Slot(0, 1, 2)), (Y, Slot(0, 4, 8)))
    assert received_elements(ROWS, Slice(((Y, Slot(0, 4, 8)),))) == 0


@pytest.mark.parametrize(
    "moves",
    [((X, Slot(1, 1, 2)),), ((Y, Slot(0, 1, 2)),), ((Y, Slot(1, 1, 4)),), ((Y, Slot(1, 1, 2)), (Z, Slot(1, 1, 3)))],
)
def test_t1_slice_refuses_an_owner_a_taken_digit_a_wrong_size_and_a_clash(moves):
    with pytest.raises(RuleError):
        apply(ROWS, Slice(moves))


def test_t2_all_gather_frees_digits():
    assert apply(BOTH, AllGather((X,))).owners == ((Y, Slot(0, 2, 4)),)
    assert received_elements(BOTH, AllGather((X, Y))) == 16 * 3


def test_t2_all_gather_refuses_a_replicated_factor():
    with pytest.raises(RuleError, match="T2"):
        apply(ROWS, AllGather((Y,)))


def test_t3_all_to_all_moves_several_factors_at_once():
    step = AllToAll(((X, Slot(1, 1, 2)), (Y, Slot(1, 2, 4))))
    assert apply(BOTH, step).owned_runs == (Slot(1, 1, 4),)
    assert received_elements(BOTH, step) == 16 * 3 // 4


def test_t3_all_to_all_refuses_a_digit_that_another_mover_leaves_in_the_same_step():
    with pytest.raises(RuleError, match="T3"):
        apply(BOTH, AllToAll(((X, Slot(0, 2, 4)), (Y, Slot(1, 1, 2)))))


def test_t3_all_to_all_refuses_its_own_digit():
    with pytest.raises(RuleError, match="T3"):
        apply(ROWS, AllToAll(((X, Slot(0, 1, 2)),)))


@pytest.mark.parametrize("moves", [((Y, Slot(1, 1, 2)),), ((X, Slot(1, 3, 6)),)])
def test_t3_all_to_all_refuses_replicated_factors_and_digits_that_are_none(moves):
    with pytest.raises(RuleError):
        apply(ROWS, AllToAll(moves))


def test_t4_permute_keeps_runs_and_changes_owners():
    after = Layout((8, 8), ((Y, Slot(0, 1, 2)), (X, Slot(0, 2, 4))))
    assert apply(BOTH, Permute(after)) == after
    assert received_elements(BOTH, Permute(after)) == 16
    assert received_elements(BOTH, Permute(BOTH)) == 0


def test_t4_permute_may_use_another_radix_order_and_another_factor():
    before = Layout((6,), ((X, Slot(0, 1, 2)), (Z, Slot(0, 2, 6))))
    after = Layout((6,), ((Z, Slot(0, 1, 3)), (Y, Slot(0, 3, 6))))
    assert apply(before, Permute(after)) == after


@pytest.mark.parametrize(
    "after",
    [
        NONE,
        Layout((8, 8), ((X, Slot(0, 2, 4)),)),
        Layout((8, 8), ((X, Slot(1, 1, 2)),)),
        Layout((8,), ((X, Slot(0, 1, 2)),)),
    ],
)
def test_t4_permute_refuses_other_runs(after):
    with pytest.raises(RuleError, match="T4"):
        apply(ROWS, Permute(after))


def test_t5_relayout_changes_nothing():
    assert apply(ROWS, Relayout("by [1, 0]")) == ROWS
    assert received_elements(ROWS, Relayout("by [1, 0]")) == 0


def test_t5_something_that_is_no_step_is_refused():
    with pytest.raises(RuleError, match="no rule"):
        apply(ROWS, "teleport")


def test_names_are_those_of_the_reports():
    kinds = [
        Slice(()),
        AllGather(()),
        AllToAll(()),
        Permute(NONE),
        Relayout(""),
        ReduceScatter(()),
        AllReduce(()),
        ToUnreduced(()),
    ]
    names = ["slice", "all_gather", "all_to_all", "permute", "relayout", "reduce_scatter", "all_reduce", "to_unreduced"]
    assert [steps.name(kind) for kind in kinds] == names
    assert [steps.collectives(kind) for kind in kinds] == [False, True, True, True, False, True, True, False]


# -- partial sums --

SUMS = Layout((8, 8), ((X, Slot(0, 1, 2)),), (Y, Z))  # [x*4, 8] unreduced y, z


def test_t1_to_t3_act_on_partial_sums_as_on_arrays():
    assert apply(SUMS, AllGather((X,))) == Layout((8, 8), (), (Y, Z))
    assert apply(SUMS, AllToAll(((X, Slot(1, 1, 2)),))) == Layout((8, 8), ((X, Slot(1, 1, 2)),), (Y, Z))
    assert apply(Layout((8, 8), (), (Y,)), Slice(((X, Slot(0, 1, 2)),))) == Layout((8, 8), ((X, Slot(0, 1, 2)),), (Y,))


@pytest.mark.parametrize("step", [Slice(((Y, Slot(1, 1, 2)),)), AllGather((Y,)), AllToAll(((Y, Slot(1, 1, 2)),))])
def test_t1_to_t3_refuse_unreduced_factors(step):
    with pytest.raises(RuleError, match="T[123]"):
        apply(SUMS, step)


def test_t4_permute_gives_as_many_partial_sums_to_other_devices():
    w = Factor("w", 1, 6)
    after = Layout((8, 8), ((Y, Slot(0, 1, 2)),), (w,))
    assert apply(SUMS, Permute(after)) == after
    with pytest.raises(RuleError, match="T4: 6 partial sums become 3"):
        apply(SUMS, Permute(Layout((8, 8), SUMS.owners, (Z,))))


def test_t6_exchange_refuses_partial_sums():
    with pytest.raises(RuleError, match="T6"):
        apply(SUMS, steps.Exchanged(None, ROWS))


def test_t7_reduce_scatter_takes_local_digits():
    step = ReduceScatter(((Y, Slot(0, 4, 8)),))
    assert apply(SUMS, step) == Layout((8, 8), ((X, Slot(0, 1, 2)), (Y, Slot(0, 4, 8))), (Z,))
    assert received_elements(SUMS, step) == 16
    assert steps.text(SUMS, step, Mesh.parse("x=2,y=2,z=3")) == "reduce_scatter y: dim 0"


@pytest.mark.parametrize(
    "moves",
    [
        ((X, Slot(1, 1, 2)),),
        ((Factor("w", 1, 2), Slot(1, 1, 2)),),
        ((Y, Slot(0, 1, 2)),),
        ((Y, Slot(1, 1, 4)),),
        ((Y, Slot(1, 1, 2)), (Z, Slot(1, 2, 6))),
    ],
)
def test_t7_reduce_scatter_refuses_reduced_factors_taken_digits_wrong_sizes_and_digits_that_are_none(moves):
    with pytest.raises(RuleError, match="T7|reduce_scatter"):
        apply(SUMS, ReduceScatter(moves))


def test_t8_all_reduce_replicates():
    assert apply(SUMS, AllReduce((Z,))) == Layout((8, 8), SUMS.owners, (Y,))
    assert received_elements(SUMS, AllReduce((Y,))) == 32
    assert received_elements(SUMS, AllReduce((Z,))) == 43  # 2 * 32 * 2/3, rounded up
    for factor in (X, Factor("w", 1, 2)):
        with pytest.raises(RuleError, match="T8"):
            apply(SUMS, AllReduce((factor,)))


def test_t9_to_unreduced_pads_owned_digits_and_keeps_replicas_apart():
    w, mesh = Factor("w", 1, 2), Mesh.parse("x=2,y=2,z=3,w=2")
    assert apply(SUMS, ToUnreduced((X, w))) == Layout((8, 8), (), (w, X, Y, Z))
    assert received_elements(SUMS, ToUnreduced((X, w))) == 0
    assert steps.text(SUMS, ToUnreduced((X, w)), mesh) == "to_unreduced w: replicated, x: dim 0"
    with pytest.raises(RuleError, match="T9"):
        apply(SUMS, ToUnreduced((Y,)))
