# SPDX-License-Identifier: Apache-2.0
"""Layers that repeat: found, and named alike, in programs in which they are known by hand."""

from dataclasses import replace

import pytest

from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.dimensions import named_dimensions
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Interval, Tensor
from reshard.synthesis.assignment.layout_problem import MANY_LAYERS, LayoutProblem
from reshard.synthesis.assignment.repeats import repeats_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.pairwise.solving import SMALL_GAP, solve

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


def columns_then_rows(count: int, tokens: int, width: int) -> FactoredProgram:
    """Returns tanh(x @ w), `count` times, with weights split by columns and by rows in turn, as in Megatron."""
    shapes = [(tokens, width)] + [(width, width)] * count + [(tokens, width)] * 2 * count
    ops = []
    for at in range(count):
        before, product, after = 0 if not at else 2 * at + count, 2 * at + count + 1, 2 * at + count + 2
        dims, sizes = (((0,), (2,)), ((2,), (1,))), (tokens, width, width)
        flops = 2 * tokens * width * width
        ops.append(FactoredOp("dot", (before, at + 1), (product,), dims, (SAME,), sizes, frozenset({2}), flops=flops))
        ops.append(FactoredOp("tanh", (product,), (after,), (SAME,), (SAME,), (tokens, width)))
    pinned = tuple((at + 1, ((), ("x",)) if at % 2 == 0 else (("x",), ())) for at in range(count))
    tensors = tuple(Tensor(shape, 16) for shape in shapes)
    return FactoredProgram(tensors, tuple(ops), tuple(range(count + 1)), (3 * count,), pinned=pinned)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_layers_whose_best_layouts_alternate_are_not_made_alike(is_pinned):
    program = columns_then_rows(MANY_LAYERS + 1, 256, 4096)
    program = program if is_pinned else replace(program, pinned=())
    problem = LayoutProblem(program, Mesh.parse("x=8"), NETWORK)
    assert problem.repeats and problem.repeats[0].period == 2
    found, best = problem.solve(), solve(problem.problem, gap=0.0)
    assert found.seconds <= best.cost * (1 + SMALL_GAP) and found.solution.bound <= best.cost * (1 + 1e-9)


def test_looking_for_repeats_ends_where_there_are_many_short_ones():
    names = [name for at in range(600) for name in ("dot", "dot", f"other {at}")]
    ops = tuple(FactoredOp(name, (at,), (at + 1,), (SAME,), (SAME,), (4, 4)) for at, name in enumerate(names))
    program = FactoredProgram((Tensor((4, 4), 32),) * (len(ops) + 1), ops)
    assert 0 < len(repeats_of(program, frozenset())) < 100


def test_few_layers_are_none_to_be_listed():
    assert LayoutProblem(layers(MANY_LAYERS - 1, 64, 32, 128), Mesh.parse("x=8"), NETWORK).repeats == ()


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
