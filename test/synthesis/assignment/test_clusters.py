# SPDX-License-Identifier: Apache-2.0
"""Clusters of programs whose named dimensions are known by hand."""

from reshard.synthesis.assignment.clusters import clusters_of, sums_of_sums
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Tensor

SAME, TURNED = ((0,), (1,)), ((1,), (0,))


def op(name, operands, results, operand_dims, result_dims, sizes, **more) -> FactoredOp:
    return FactoredOp(name, tuple(operands), tuple(results), tuple(operand_dims), tuple(result_dims), sizes, **more)


def test_an_attention_block_has_the_clusters_that_one_expects():
    """x[8,16] @ w[16,4] -> q, then q @ q.T -> s[8,8], whose two dimensions are different ones."""
    tensors = (Tensor((8, 16), 32), Tensor((16, 4), 32), Tensor((8, 4), 32), Tensor((8, 8), 32), Tensor((8, 8), 32))
    dots = (
        op("dot_general", (0, 1), (2,), (((0,), (2,)), ((2,), (1,))), (SAME,), (8, 4, 16), reduced=frozenset({2})),
        op("dot_general", (2, 2), (3,), (((0,), (2,)), ((1,), (2,))), (SAME,), (8, 8, 4), reduced=frozenset({2})),
        op("exponential", (3,), (4,), (SAME,), (SAME,), (8, 8)),
    )
    found = clusters_of(FactoredProgram(tensors, dots))
    assert found.of == (0, 1, 2, 3, 3) and found.ties == {2} and found.conflicts == ()
    assert [each.sizes for each in found.all] == [(8, 16), (16, 4), (8, 4), (8, 8)]


def test_transposes_tie_with_their_dimensions_turned():
    tensors = (Tensor((8, 16), 32), Tensor((16, 8), 32))
    found = clusters_of(FactoredProgram(tensors, (op("transpose", (0,), (1,), (TURNED,), (SAME,), (16, 8)),)))
    assert found.of == (0, 0) and found.dims == ((0, 1), (1, 0)) and found.all[0].sizes == (8, 16)


def test_dimensions_of_size_one_count_for_nothing():
    tensors = (Tensor((8, 1), 32), Tensor((8,), 32), Tensor((1, 1), 32))
    view = op("reshape", (0,), (1,), (((0,), (1,)),), (((0,),),), (8, 1))
    found = clusters_of(FactoredProgram(tensors, (view,)))
    assert found.of == (0, 0, -1) and found.dims == ((0, -1), (0,), (-1, -1))


def test_ops_that_split_or_merge_dimensions_or_treat_one_as_a_whole_do_not_tie():
    tensors = (Tensor((32,), 32), Tensor((8, 4), 32))
    split = op("reshape", (0,), (1,), (((0, 1),),), (SAME,), (8, 4))
    sort = op("sort", (1,), (1,), (SAME,), (SAME,), (8, 4), whole=frozenset({1}))
    padded = op("pad", (1,), (1,), (SAME,), (SAME,), (8, 4), moved=frozenset({0}))
    assert clusters_of(FactoredProgram(tensors, (split, sort, padded))).ties == frozenset()


def test_a_sum_of_sums_does_not_tie_unless_somebody_else_takes_a_summand():
    tensors = tuple(Tensor((8, 8), 32) for _ in range(6))
    dims = (((0,), (2,)), ((2,), (1,)))
    dots = tuple(
        op("dot_general", (0, 1), (result,), dims, (SAME,), (8, 8, 8), reduced=frozenset({2}), flops=1)
        for result in (2, 3)
    )
    add = op("add", (2, 3), (4,), (SAME, SAME), (SAME,), (8, 8), is_sum=True)
    found = clusters_of(FactoredProgram(tensors, (*dots, add)))
    assert found.sums == {2} and found.partial == {2, 3} and len({found.of[each] for each in (2, 3, 4)}) == 3
    other = op("tanh", (2,), (5,), (SAME,), (SAME,), (8, 8))
    assert sums_of_sums(FactoredProgram(tensors, (*dots, add, other))) == frozenset()
    assert sums_of_sums(FactoredProgram(tensors, (*dots, add), results=(2,))) == frozenset()


def test_an_op_in_conflict_ties_none_of_its_tensors():
    """x - x.T: the result has neither the layout of the one operand nor that of the other one."""
    tensors = tuple(Tensor((8, 8), 32) for _ in range(3))
    turn = op("transpose", (0,), (1,), (TURNED,), (SAME,), (8, 8))
    for operands in ((0, 1), (1, 0)):
        less = op("subtract", operands, (2,), (SAME, SAME), (SAME,), (8, 8))
        found = clusters_of(FactoredProgram(tensors, (turn, less)))
        assert found.conflicts == (1,) and [each.members for each in found.all] == [(0, 1), (2,)]
