# SPDX-License-Identifier: Apache-2.0
"""Layouts of small programs, whose best ones are known: data, tensor and sharded-parameter parallelism, and limits."""

import itertools

import pytest

from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.description import uses_of
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Interval, Tensor
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.pairwise.solving import InfeasibleError

MESH, NETWORK = Mesh.parse("x=8"), Topology.parse("v5e:2x4")


def dot(tokens: int, rows: int, columns: int, operands, result) -> FactoredOp:
    dims = (((0,), (2,)), ((2,), (1,)))
    sizes, flops = (tokens, columns, rows), 2 * tokens * rows * columns
    return FactoredOp("dot_general", operands, (result,), dims, (((0,), (1,)),), sizes, frozenset({2}), flops=flops)


def mlp(tokens: int, width: int, hidden: int, **more) -> FactoredProgram:
    """Returns x @ up, tanh, @ down; the tensors are x, up, down, hidden, activated, result."""
    shapes = ((tokens, width), (width, hidden), (hidden, width), (tokens, hidden), (tokens, hidden), (tokens, width))
    same = ((0,), (1,))
    ops = (
        dot(tokens, width, hidden, (0, 1), 3),
        FactoredOp("tanh", (3,), (4,), (same,), (same,), (tokens, hidden)),
        dot(tokens, hidden, width, (4, 2), 5),
    )
    tensors = tuple(Tensor(shape, 16, name=name) for shape, name in zip(shapes, ("x", "up", "down", "h", "a", "y")))
    lives = tuple(Interval(tensor, 0, 3) for tensor in range(len(tensors)))
    return FactoredProgram(tensors, ops, (1, 2, 0), (5,), lives=lives, **more)


def layouts(found) -> list[str]:
    return [str(each) for each in found.layouts]


def test_many_tokens_and_small_weights_are_split_by_batch():
    found = LayoutProblem(mlp(65536, 1024, 1024), MESH, NETWORK).solve()
    assert layouts(found)[0] == layouts(found)[3] == layouts(found)[5] == '[{"x"}, {}]'
    assert found.moves == () and found.solution.gap == 0


def test_few_tokens_and_large_weights_are_split_by_columns_then_rows():
    pinned = ((0, ((), ())), (5, ((), ())))
    found = LayoutProblem(mlp(256, 16384, 65536, pinned=pinned), MESH, NETWORK).solve()
    assert layouts(found)[1:5] == ['[{}, {"x"}]', '[{"x"}, {}]', '[{}, {"x"}]', '[{}, {"x"}]']
    (move,) = found.moves
    assert str(move.source) == '[{}, {}], unreduced={"x"}' and str(move.target) == "[{}, {}]"  # one all_reduce


def test_a_memory_limit_splits_what_would_be_whole():
    free = LayoutProblem(mlp(65536, 4096, 4096), MESH, NETWORK).solve()
    limit = free.memory_bytes - 2 * 4096 * 4096
    tight = LayoutProblem(mlp(65536, 4096, 4096), MESH, NETWORK, memory_limit=limit).solve()
    assert tight.memory_bytes <= limit < free.memory_bytes and tight.seconds > free.seconds
    assert '"x"' in layouts(tight)[1] or '"x"' in layouts(tight)[2]


def test_an_impossible_limit_is_refused_and_the_least_memory_is_known():
    problem = LayoutProblem(mlp(1024, 1024, 1024), MESH, NETWORK, memory_limit=1000)
    with pytest.raises(InfeasibleError):
        problem.solve()
    assert problem.memory.least() == 6 * 2 * 1024 * 1024 // 8


def test_pinned_layouts_are_kept_and_a_conversion_leads_out_of_them():
    free = LayoutProblem(mlp(65536, 1024, 1024), MESH, NETWORK).solve()
    found = LayoutProblem(mlp(65536, 1024, 1024, pinned=((0, ((), ("x",))),)), MESH, NETWORK).solve()
    assert layouts(found)[0] == '[{}, {"x"}]' and found.seconds > free.seconds


@pytest.mark.slow
def test_what_a_solution_costs_is_what_its_parts_cost():
    for tokens, width in ((256, 4096), (4096, 1024)):
        for mesh in ("x=8", "x=2,y=4"):
            found = LayoutProblem(mlp(tokens, width, width), Mesh.parse(mesh), NETWORK).solve()
            assert found.local_s + sum(move.seconds for move in found.moves) == pytest.approx(found.seconds)


def test_no_choice_of_layouts_and_ways_is_cheaper():
    """Tries all layouts of all clusters, each op in its best way for them: another way to come to the optimum."""
    for tokens, width, hidden in ((64, 64, 128), (512, 64, 64), (64, 512, 64)):
        problem = LayoutProblem(mlp(tokens, width, hidden), MESH, NETWORK)
        pairwise, clusters = problem.problem, len(problem.clusters.all)
        best = min(
            sum(pairwise.costs[node][state] for node, state in enumerate(states))
            + sum(
                min(
                    pairwise.costs[op][way]
                    + sum(m[states[a], way] for (a, b), m in pairwise.edges.items() if b == op and a < clusters)
                    for way in range(len(pairwise.costs[op]))
                )
                for op in range(clusters, len(pairwise.costs))
            )
            for states in itertools.product(*(range(len(costs)) for costs in pairwise.costs[:clusters]))
        )
        assert problem.solve().seconds == pytest.approx(best)


def test_axes_that_divide_nothing_split_nothing():
    found = LayoutProblem(mlp(64, 64, 64), Mesh.parse("x=7"), Topology.parse("uniform").fitted(7)).solve()
    assert set(layouts(found)) == {"[{}, {}]"}


def test_the_use_of_an_axis_is_said_in_the_words_of_the_field():
    program = mlp(65536, 1024, 1024)
    found = LayoutProblem(program, MESH, NETWORK).solve()
    (use,) = uses_of(program, clusters_of(program), found)
    assert use.words == "data parallel in 100% of the matrix work" and use.is_used
    program = mlp(256, 16384, 65536, pinned=((0, ((), ())), (5, ((), ()))))
    found = LayoutProblem(program, MESH, NETWORK).solve()
    (use,) = uses_of(program, clusters_of(program), found)
    assert use.words.startswith("tensor parallel in 100% of the matrix work")


def test_partial_sums_are_added_before_they_are_completed():
    """Two products with split contracted dimensions, and their sum: one reduction, not two."""
    tokens, width = 4096, 4096
    tensors = tuple(Tensor(shape, 16) for shape in [(tokens, width), (width, width)] * 2 + [(tokens, width)] * 3)
    same = ((0,), (1,))
    ops = (
        dot(tokens, width, width, (0, 1), 4),
        dot(tokens, width, width, (2, 3), 5),
        FactoredOp("add", (4, 5), (6,), (same, same), (same,), (tokens, width), is_sum=True),
    )
    pinned = tuple((tensor, ((), ("x",)) if tensor in (0, 2) else (("x",), ())) for tensor in range(4)) + (
        (6, ((), ())),
    )
    program = FactoredProgram(tensors, ops, (0, 1, 2, 3), (6,), pinned=pinned)
    found = LayoutProblem(program, MESH, NETWORK).solve()
    assert clusters_of(program).sums == {2}
    assert len(found.moves) == 1 and found.moves[0].op == 2 and found.moves[0].source.unreduced


def test_ops_in_a_loop_share_a_conversion_whatever_else_takes_the_tensor_once():
    """Two ops of four turns need rows that are split, and one behind the loop takes the last turn's tensor as it is."""
    size, same, columns, rows = 4096, ((0,), (1,)), ((), ("x",)), (("x",), ())
    tensors = tuple(Tensor((size, size), 16, runs) for runs in (4, 4, 4, 1))
    sorts = (
        FactoredOp("sort", (0,), (result,), (same,), (same,), (size, size), whole=frozenset({1}), runs=4)
        for result in (1, 2)
    )
    ops = (*sorts, FactoredOp.copy(0, 3, (size, size), 1))
    pinned = ((0, columns), (1, rows), (2, rows), (3, columns))
    found = LayoutProblem(FactoredProgram(tensors, ops, (0,), (1, 2, 3), pinned=pinned), MESH, NETWORK).solve()
    assert [(move.tensor, move.op, move.runs) for move in found.moves] == [(0, None, 4)]


def shifted(cells: int, slices: int) -> FactoredProgram:
    """Returns a step of a stencil: x padded by one row, `slices` times cut to its size again, and x added."""
    shapes = ((cells, cells), (cells + 1, cells), *((cells, cells),) * 2 * slices)
    same, moved = ((0,), (1,)), frozenset({0})
    ops = [FactoredOp("pad", (0,), (1,), (same,), (same,), (cells, cells), moved=moved)]
    for number in range(slices):
        cut, total = 2 + 2 * number, 3 + 2 * number
        before = total - 2 if number else 0
        ops += [
            FactoredOp("slice", (1,), (cut,), (same,), (same,), (cells + 1, cells), moved=moved),
            FactoredOp("add", (before, cut), (total,), (same, same), (same,), (cells, cells)),
        ]
    tensors, pinned = tuple(Tensor(shape, 32) for shape in shapes), ((0, (("x",), ())),)
    return FactoredProgram(tensors, tuple(ops), (0,), (len(shapes) - 1,), pinned)


@pytest.mark.parametrize("slices", [1, 2], ids=["taken once", "taken twice"])
def test_borders_of_uneven_tiles_are_exchanged_where_elements_move(slices):
    found = LayoutProblem(shifted(4096, slices), MESH, NETWORK).solve()
    assert {*layouts(found)} == {'[{"x"}, {}]'} and found.moves == ()
