# SPDX-License-Identifier: Apache-2.0
"""Layers that repeat: found, laid out alike, and named alike, in programs in which they are known by hand."""

import pytest

from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.dimensions import named_dimensions
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Interval, Tensor
from reshard.synthesis.assignment.layout_problem import MANY_LAYERS, LayoutProblem
from reshard.synthesis.assignment.repeats import alike_clusters, repeats_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.pairwise.solving import solve

SAME = ((0,), (1,))
NETWORK = Topology.parse("v5e:2x4")
OPS_OF_A_LAYER = 4  # a product, a tanh, a product, an add


def layers(count: int, tokens: int, width: int, hidden: int, **more) -> FactoredProgram:
    """Returns x + tanh(x @ up) @ down, `count` times; then a product with a vocabulary of 3 * width."""
    tensors = [Tensor((tokens, width), 16, name="x")]
    ops: list[FactoredOp] = []

    def make(*shape: int) -> int:
        tensors.append(Tensor(shape, 16))
        return len(tensors) - 1

    def dot(one: int, other: int) -> int:
        (rows, inner), (_, columns) = tensors[one].shape, tensors[other].shape
        made, dims = make(rows, columns), (((0,), (2,)), ((2,), (1,)))
        sizes, flops = (rows, columns, inner), 2 * rows * columns * inner
        ops.append(FactoredOp("dot", (one, other), (made,), dims, (SAME,), sizes, frozenset({2}), flops=flops))
        return made

    def elementwise(name: str, *operands: int) -> int:
        shape = tensors[operands[0]].shape
        made = make(*shape)
        ops.append(FactoredOp(name, operands, (made,), (SAME,) * len(operands), (SAME,), shape))
        return made

    state, weights = 0, []
    for _ in range(count):
        weights += [make(width, hidden), make(hidden, width)]
        inner = elementwise("tanh", dot(state, weights[-2]))
        state = elementwise("add", dot(inner, weights[-1]), state)
    weights.append(make(width, 3 * width))
    result = dot(state, weights[-1])
    lives = tuple(Interval(tensor, 0, len(ops)) for tensor in range(len(tensors)))
    return FactoredProgram(tuple(tensors), tuple(ops), (*weights, 0), (result,), lives=lives, **more)


def test_layers_are_found_and_what_is_behind_them_is_none():
    program = layers(5, 64, 32, 128)
    (found,) = repeats_of(program, clusters_of(program).ties)
    assert (found.first, found.last, found.period, found.layers) == (0, 5 * OPS_OF_A_LAYER - 1, OPS_OF_A_LAYER, 5)


def test_what_has_no_choice_or_comes_once_is_no_layer():
    once = layers(1, 64, 32, 128)
    assert repeats_of(once, clusters_of(once).ties) == ()
    same = tuple(FactoredOp("tanh", (at,), (at + 1,), (SAME,), (SAME,), (4, 4)) for at in range(6))
    program = FactoredProgram((Tensor((4, 4), 32),) * 7, same)
    assert repeats_of(program, clusters_of(program).ties) == ()


def test_clusters_of_layers_are_alike_even_where_dimensions_are_turned():
    tensors = (Tensor((8, 4), 32),) * 3 + (Tensor((4, 8), 32),) * 3
    reduce = dict(operand_dims=(SAME,), result_dims=(((0,),),), sizes=(8, 4), reduced=frozenset({1}))
    sums = tuple(Tensor((8,), 32) for _ in range(2))
    ops = (
        FactoredOp("tanh", (0,), (1,), (SAME,), (SAME,), (8, 4)),
        FactoredOp("reduce", (1,), (6,), **reduce),
        FactoredOp("tanh", (2,), (1,), (SAME,), (SAME,), (8, 4)),
        FactoredOp("reduce", (2,), (7,), **reduce),
        FactoredOp("transpose", (3,), (0,), (((1,), (0,)),), (SAME,), (8, 4)),
    )
    program = FactoredProgram((*tensors, *sums), ops)
    clusters = clusters_of(program)
    (repeat,) = repeats_of(program, clusters.ties)
    found = alike_clusters(program, clusters, [repeat])
    sums_of = clusters.of[6], clusters.of[7]
    assert found.of[sums_of[0]] == found.of[sums_of[1]] and repeat.period == 2


def test_many_layers_are_solved_as_one_and_as_well_as_all_of_them():
    program = layers(MANY_LAYERS + 3, 8192, 1024, 4096, pinned=((0, (("x",), ())),))
    problem = LayoutProblem(program, Mesh.parse("x=4,y=2"), NETWORK)
    merged = problem._merging.merged(problem.problem)
    few = LayoutProblem(layers(2, 8192, 1024, 4096), problem.mesh, NETWORK)
    assert len(merged.costs) <= len(few.problem.costs) < len(problem.problem.costs) / 3
    assert problem.solve().seconds == pytest.approx(solve(problem.problem, gap=0.0).cost)


def test_fewer_layers_are_solved_one_by_one():
    assert LayoutProblem(layers(MANY_LAYERS - 1, 64, 32, 128), Mesh.parse("x=8"), NETWORK).repeats == ()


def test_layers_are_alike_only_as_far_as_what_is_pinned_allows():
    """The weights of one layer are pinned otherwise than all the rest would be."""
    free = layers(MANY_LAYERS, 65536, 1024, 1024)
    pinned = layers(MANY_LAYERS, 65536, 1024, 1024, pinned=((free.arguments[4], ((), ("x",))),))
    mesh = Mesh.parse("x=8")
    found, other = (LayoutProblem(each, mesh, NETWORK).solve() for each in (pinned, free))
    assert str(found.layouts[free.arguments[4]]) == '[{}, {"x"}]'
    assert len({str(found.layouts[each]) for each in free.arguments[:-2] if each != free.arguments[4]}) <= 2
    assert found.seconds >= other.seconds


def test_a_memory_limit_may_lay_layers_out_differently():
    program = layers(MANY_LAYERS, 4096, 2048, 8192)
    mesh = Mesh.parse("x=8")
    free = LayoutProblem(program, mesh, NETWORK).solve()
    least = LayoutProblem(program, mesh, NETWORK).memory.least()
    limit = (free.memory_bytes + least) // 2
    found = LayoutProblem(program, mesh, NETWORK, memory_limit=limit).solve()
    assert found.memory_bytes <= limit and found.seconds >= free.seconds


def test_what_is_the_same_in_each_layer_has_one_name():
    program = layers(3, 64, 32, 128)
    alone = named_dimensions(program)
    together = named_dimensions(program, repeats_of(program, clusters_of(program).ties))
    assert [each.sizes for each in together] == [(128,), (64,), (32,), (96,)]
    assert [each.sizes for each in alone] == [(64,), (32,), (128,), (128,), (128,), (96,)]
    hidden, batch, width, _ = together
    assert len(batch.places) == 14 and batch.conflicts == hidden.conflicts == width.conflicts == ()
    assert [dim for tensor, dim in hidden.places if tensor in program.arguments] == [1, 0] * 3


def test_scores_of_positions_by_positions_are_a_conflict():
    tensors = tuple(Tensor(shape, 32) for shape in ((8, 16), (8, 8)))
    scores = FactoredOp("dot", (0, 0), (1,), (((0,), (2,)), ((1,), (2,))), (SAME,), (8, 8, 16), frozenset({2}))
    rows, columns = named_dimensions(FactoredProgram(tensors, (scores,)))
    assert rows.conflicts == (1,) and rows.places == ((0, 0), (1, 0), (1, 1)) and columns.places == ((0, 1),)


def test_an_op_that_takes_a_dimension_as_a_whole_names_nothing_by_it():
    tensors = (Tensor((8, 4), 32),) * 2
    sort = FactoredOp("sort", (0,), (1,), (SAME,), (SAME,), (8, 4), whole=frozenset({1}))
    assert [each.places for each in named_dimensions(FactoredProgram(tensors, (sort,)))] == [((0, 0), (1, 0))]
