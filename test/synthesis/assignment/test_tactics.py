# SPDX-License-Identifier: Apache-2.0
"""Tactics by name restrict what an axis is for, alone and joined."""

import pytest

from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.description import uses_of
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Interval, Tensor
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.assignment.tactics import TACTICS, TacticError, check, parse
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

NETWORK = Topology.parse("v5e:2x4")


def mlp_step(tokens: int, width: int, hidden: int) -> FactoredProgram:
    """Returns h = x @ up, y = h @ down, and new parameters up + x.T @ y @ down.T, down + h.T @ y.

    The tensors are x, up, down, h, y, their gradients, and the new parameters.
    """
    shapes = [(tokens, width), (width, hidden), (hidden, width), (tokens, hidden), (tokens, width)]
    shapes += [(tokens, hidden), (width, hidden), (hidden, width), (width, hidden), (hidden, width)]

    def dot(operands, result, operand_dims):
        sizes = (shapes[result][0], shapes[result][1], shapes[operands[0]][operand_dims[0].index((2,))])
        flops = 2 * sizes[0] * sizes[1] * sizes[2]
        return FactoredOp(
            "dot_general", operands, (result,), operand_dims, (((0,), (1,)),), sizes, frozenset({2}), flops=flops
        )

    def add(operands, result):
        same = ((0,), (1,))
        return FactoredOp("add", operands, (result,), (same, same), (same,), shapes[result])

    plain, second, first = ((0,), (2,)), ((1,), (2,)), ((2,), (0,))
    ops = (
        dot((0, 1), 3, (plain, ((2,), (1,)))),
        dot((3, 2), 4, (plain, ((2,), (1,)))),
        dot((4, 2), 5, (plain, second)),
        dot((0, 5), 6, (first, ((2,), (1,)))),
        dot((3, 4), 7, (first, ((2,), (1,)))),
        add((1, 6), 8),
        add((2, 7), 9),
    )
    tensors = tuple(Tensor(shape, 16) for shape in shapes)
    lives = tuple(Interval(tensor, 0, len(ops)) for tensor in range(len(tensors)))
    return FactoredProgram(tensors, ops, (1, 2, 0), (8, 9), lives=lives)


def momentum_step(tokens: int, width: int) -> FactoredProgram:
    """Returns y = x @ w, new momentum m + x.T @ y and a new weight w - it; the optimizer takes and makes copies.

    The tensors are x, w, m, y, the gradient, the new momentum, the copy of w, the copy of the new weight, and that.
    """
    square, batch, same = (width, width), (tokens, width), ((0,), (1,))
    shapes = [batch, square, square, batch, square, square, square, square, square]
    flops = 2 * tokens * width**2

    def add(operands, result):
        return FactoredOp("add", operands, (result,), (same, same), (same,), square)

    def dot(operands, result, dims, sizes):
        return FactoredOp("dot", operands, (result,), dims, (same,), sizes, frozenset({2}), flops=flops)

    ops = (
        dot((0, 1), 3, (((0,), (2,)), ((2,), (1,))), (tokens, width, width)),
        dot((0, 3), 4, (((2,), (0,)), ((2,), (1,))), (width, width, tokens)),
        add((2, 4), 5),
        FactoredOp.copy(1, 6, square),
        add((6, 5), 7),
        FactoredOp.copy(7, 8, square),
    )
    return FactoredProgram(tuple(Tensor(each, 16) for each in shapes), ops, (1, 2, 0), (8, 5), weights=((1, 8),))


def solved(mesh: str, tactics: str, program: FactoredProgram | None = None):
    program = program or mlp_step(4096, 1024, 4096)
    problem = LayoutProblem(program, Mesh.parse(mesh), NETWORK, tactics=parse(tactics))
    found = problem.solve()
    return found, {use.axis: use for use in uses_of(program, clusters_of(program), found)}


@pytest.mark.parametrize(
    ("tactic", "role", "stored"),
    [("data", "data", 0.0), ("zero3", "data", 1.0), ("megatron", "tensor", 1.0)],
)
def test_an_axis_is_for_what_its_tactic_says(tactic, role, stored):
    found, uses = solved("x=8", f"x={tactic}")
    assert set(uses["x"].work) == {role} and uses["x"].stored == stored
    assert found.seconds >= solved("x=8", "")[0].seconds


def test_zero1_keeps_weights_whole_and_the_state_of_the_optimizer_in_shards():
    found, uses = solved("x=8", "x=zero1", momentum_step(4096, 1024))
    weight, momentum, new_momentum, new_weight = (found.layouts[each] for each in (1, 2, 5, 8))
    assert not any(weight.dims) and weight == new_weight
    assert any(momentum.dims) and momentum == new_momentum == found.layouts[6] == found.layouts[7]
    kinds = {(move.tensor, str(move.source), str(move.target)) for move in found.moves}
    assert {tensor for tensor, *_ in kinds} == {4, 7}  # the gradient is reduced and scattered, the new weight gathered
    assert uses["x"].words.endswith("the optimizer's state kept in shards, parameters whole (ZeRO-1)")


def test_a_stronger_tactic_says_what_is_in_shards():
    assert not any(solved("x=8", "x=data+zero1", momentum_step(4096, 1024))[0].layouts[1].dims)
    assert any(solved("x=8", "x=zero1+zero3", momentum_step(4096, 1024))[0].layouts[1].dims)
    assert parse("x=zero1+zero3")["x"] == parse("x=zero3")["x"]


@pytest.mark.slow
def test_tactics_of_two_axes_compose():
    _, uses = solved("x=4,y=2", "x=megatron,y=zero3")
    assert set(uses["x"].work) == {"tensor"} and set(uses["y"].work) == {"data"}
    assert uses["x"].stored == uses["y"].stored == 1.0


def test_joined_tactics_cost_at_most_what_each_of_them_costs():
    joined = solved("x=8", "x=data+megatron")[0].seconds
    assert joined <= min(solved("x=8", "x=data")[0].seconds, solved("x=8", "x=megatron")[0].seconds)
    assert solved("x=8", "x=auto")[0].seconds == solved("x=8", "")[0].seconds


def test_an_axis_whose_tactic_fits_nothing_is_not_used():
    _, uses = solved("x=8", "x=expert")
    assert not uses["x"].work


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "not AXIS=TACTIC"),
        ("x=zero", "do you mean zero3"),
        ("x=data,x=zero3", "named twice"),
        ("x=", "is none of"),
    ],
)
def test_what_is_no_tactic_is_an_error(text, message):
    with pytest.raises(TacticError, match=message):
        parse(text)


def test_a_tactic_without_an_axis_is_for_all_axes_of_the_mesh():
    assert parse("megatron+data", ("x", "y")) == parse("x=megatron+data,y=megatron+data")
    with pytest.raises(TacticError, match="'zer3' is none of"):
        parse("zer3", ("x", "y"))
    with pytest.raises(TacticError, match="'megatron' is not AXIS=TACTIC"):  # it does not say which are the others
        parse("x=data,megatron", ("x", "y"))


def test_an_axis_that_the_mesh_lacks_is_an_error():
    with pytest.raises(TacticError, match="no axis z; its axes are x, y"):
        check(parse("z=data"), ("x", "y"))
    check(parse(",".join(f"{axis}={tactic}" for axis, tactic in enumerate(TACTICS))), tuple(map(str, range(9))))
