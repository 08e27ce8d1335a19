# SPDX-License-Identifier: Apache-2.0
"""What is in memory: tiles while tensors live, and what conversions make while it is needed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Tensor
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.assignment.lives import Region, schedule_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.pairwise.solving import InfeasibleError

MESH, NETWORK = Mesh.parse("x=8"), Topology.parse("v5e:2x4")
SIZE = 64
BYTES = SIZE * SIZE  # of a tensor
SAME, TURNED = ((0,), (1,)), ((1,), (0,))


def dot(one: int, other: int, made: int, runs: int = 1) -> FactoredOp:
    dims, sizes = (((0,), (2,)), ((2,), (1,))), (SIZE,) * 3
    flops = 2 * SIZE**3
    return FactoredOp("dot", (one, other), (made,), dims, (SAME,), sizes, frozenset({2}), flops=flops, runs=runs)


def turned_sum(one: int, other: int, made: int) -> FactoredOp:
    """Returns the op `one + other.T`."""
    return FactoredOp("add", (one, other), (made,), (SAME, TURNED), (SAME,), (SIZE, SIZE))


def exponential(one: int, made: int) -> FactoredOp:
    return FactoredOp("exponential", (one,), (made,), (SAME,), (SAME,), (SIZE, SIZE))


def program(ops, arguments, results, pinned=None, body=None) -> FactoredProgram:
    count = 1 + max(each for op in ops for each in (*op.operands, *op.results))
    tensors = (Tensor((SIZE, SIZE), 8),) * count
    found = schedule_of(tensors, ops, body or Region(tuple(range(len(ops)))), arguments, (), results)
    pinned = tuple((tensor, layout) for tensor, layout in sorted((pinned or {}).items()))
    return FactoredProgram(tensors, tuple(ops), arguments, results, pinned, found.lives, found.moments, found.loops)


WHOLE, ROWS, COLUMNS = ((), ()), (("x",), ()), ((), ("x",))


def test_a_gathered_operand_is_in_memory_while_its_op_runs():
    pinned = {0: ROWS, 1: ROWS, 2: ROWS}
    found = LayoutProblem(program([dot(0, 1, 2)], (0, 1), (2,), pinned), MESH, NETWORK).solve()
    assert found.memory_bytes == 3 * BYTES // 8 + BYTES, "the weights are gathered"


def test_partial_sums_are_in_memory_beside_what_they_become():
    pinned = {0: COLUMNS, 1: ROWS, 2: ROWS}
    found = LayoutProblem(program([dot(0, 1, 2)], (0, 1), (2,), pinned), MESH, NETWORK).solve()
    assert found.memory_bytes == 3 * BYTES // 8 + BYTES


def test_what_several_ops_share_is_kept_between_them():
    ops = [dot(0, 1, 2), dot(2, 3, 4), dot(4, 1, 5)]
    pinned = {0: ROWS, 1: ROWS, 3: WHOLE, 5: ROWS}
    problem = LayoutProblem(program(ops, (0, 1, 3), (5,), pinned), MESH, NETWORK)
    found = problem.solve()
    (move,) = found.moves
    assert move.op is None, "gathered once"
    used = problem.memory.used(found.solution.states)
    assert used.max() == 2 * BYTES + 4 * BYTES // 8 == used[2], "also at the product between"


def test_what_is_gathered_in_front_of_a_loop_is_kept_while_it_runs():
    ops = [FactoredOp.copy(0, 2, (SIZE, SIZE)), dot(2, 1, 3, runs=4), exponential(3, 4), dot(4, 5, 6, runs=4)]
    ops.append(FactoredOp.copy(6, 2, (SIZE, SIZE), runs=4))
    body = Region((0, Region((1, 2, 3, 4), is_loop=True, carries=frozenset({2}))))
    pinned = {0: ROWS, 1: ROWS, 2: ROWS, 5: WHOLE}
    problem = LayoutProblem(program(ops, (0, 1, 5), (2,), pinned, body), MESH, NETWORK)
    found = problem.solve()
    (move,) = found.moves
    assert move.tensor == 1 and move.runs == 1
    (copy,) = (each for each in problem.memory.copies if each.size(found.solution.states))
    first, last = copy.span
    assert all(first <= each.span[0] and each.span[1] <= last for each in problem.memory.copies if each.target > 2)


def test_a_copy_that_is_a_tensor_is_counted_once():
    ops = [dot(0, 1, 2), FactoredOp.copy(2, 3, (SIZE, SIZE))]
    problem = LayoutProblem(program(ops, (0, 1), (3,), {0: ROWS, 1: WHOLE, 3: WHOLE}), MESH, NETWORK)
    assert problem.solve().memory_bytes == BYTES // 8 + BYTES + BYTES // 8 + BYTES


def test_a_limit_gathers_one_after_the_other_what_would_be_whole():
    given = program([dot(0, 1, 2), dot(2, 3, 4)], (0, 1, 3), (4,), {0: ROWS, 4: ROWS})
    free = LayoutProblem(given, MESH, NETWORK).solve()
    assert free.moves == () and free.memory_bytes == 2 * BYTES + 3 * BYTES // 8
    limit = BYTES + 5 * BYTES // 8
    found = LayoutProblem(given, MESH, NETWORK, memory_limit=limit).solve()
    assert found.memory_bytes == limit and len(found.moves) == 2
    refused = LayoutProblem(given, MESH, NETWORK, memory_limit=limit - 1)
    with pytest.raises(InfeasibleError) as error:
        refused.solve()
    assert refused.memory.least() == 5 * BYTES // 8 and refused.memory.peak(error.value.closest) == limit


@st.composite
def programs(draw, most_ops=6):
    """Draws ops in a line, each of which reads values that are there; some values are pinned."""
    ops = []
    for made in range(2, 2 + draw(st.integers(1, most_ops))):
        kind = draw(st.sampled_from([dot, dot, turned_sum, exponential]))
        some = [draw(st.integers(0, made - 1)) for _ in range(1 if kind is exponential else 2)]
        ops.append(kind(*some, made))
    values = st.integers(0, 1 + len(ops))
    results = draw(st.sets(values, min_size=1, max_size=2))
    pinned = draw(st.dictionaries(values, st.sampled_from([WHOLE, ROWS, COLUMNS]), max_size=3))
    found = program(ops, (0, 1), tuple(sorted(results)), pinned)
    try:
        LayoutProblem(found, MESH, NETWORK)
    except InfeasibleError:
        reject()  # two layouts are pinned to tensors that have one
    return found


class Replay:
    """Ops that run one after the other, and what is in memory meanwhile: another way to come to the peak.

    Each op finds what is alive at its moment, and what is held: an op holds what is converted for it until it has run,
    or, if it is a part of others, until those ops have run that take what it makes. `END` is after all of them.
    """

    END = -1

    def __init__(self, problem: LayoutProblem):
        self.problem, self.program = problem, problem.program
        self.takers = {t: [n for n, op in enumerate(self.program.ops) if t in op.operands] for t in self._tensors()}
        self.end = max(each.last for each in self.program.lives)
        known = [(self.moment_of(number), self.runs(number), number) for number in range(len(self.program.ops))]
        empty = {*range(self.end + 1)} - {moment for moment, *_ in known}
        known += [(moment, True, self.END) for moment in empty]
        self.steps = [(moment, op) for moment, _, op in sorted(each for each in known if each[0] is not None)]
        self.place = {op: at for at, (_, op) in enumerate(self.steps)} | {self.END: len(self.steps) - 1}

    def _tensors(self):
        return range(len(self.program.tensors))

    def runs(self, op: int) -> bool:
        return self.program.moments[op] is not None

    def moment_of(self, op: int):
        """Returns when an op runs, or the first op that it is a part of; None if nobody needs it."""
        if self.runs(op):
            return self.program.moments[op]
        (made,) = self.program.ops[op].results
        found = [self.moment_of(user) for user in self.takers[made]]
        found += [self.end] if made in self.program.results else []
        return min((each for each in found if each is not None), default=None)

    def needed_until(self, op: int) -> set[int]:
        if self.runs(op):
            return {op}
        return {op, *self.users(*self.program.ops[op].results)}

    def users(self, tensor: int) -> set[int]:
        found = {each for each in self.takers[tensor] if self.moment_of(each) is not None}
        return found | ({self.END} if tensor in self.program.results else set())

    def held(self, edge, states):
        """Yields the ops that need what a conversion makes, those that have to run before it may go, and its bytes."""
        source, target = edge.sources[states[edge.source]], edge.targets[states[edge.target]]
        if (source == target).all():
            return
        size = self.program.tensors[edge.tensor].bytes
        before, after = (size / self.problem.prices.shards(each[None])[0] for each in (source, target))
        is_result = edge.op is not None and edge.source == self.problem._op_nodes[edge.op]
        if is_result and self.runs(edge.op):
            yield {edge.op}, {edge.op}, before
            return
        users = self.users(edge.tensor) if is_result or edge.op is None else {edge.op}
        if edge.op is None:
            users = {each for each in users if each in self.problem._op_nodes}
        users = {each for each in users if each == self.END or self.moment_of(each) is not None}
        if users:
            yield users, {end for each in users for end in ({each} if each < 0 else self.needed_until(each))}, after

    def peak(self, states) -> float:
        held = [each for edge in self.problem._edges for each in self.held(edge, states)]
        lives = list(zip(self.program.lives, (tile.size(states) for tile in self.problem.memory.tiles)))
        most = 0.0
        for at, (moment, _) in enumerate(self.steps):
            size = sum(each for life, each in lives if life.first <= moment <= life.last)
            for users, ends, num_bytes in held:
                if min(map(self.place.get, users)) <= at <= max(map(self.place.get, ends)):
                    size += num_bytes
            most = max(most, size)
        return most


@pytest.mark.slow
@settings(deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_the_peak_is_that_of_a_replay(drawn, random):
    problem = LayoutProblem(drawn, Mesh.parse("x=2,y=4"), NETWORK)
    replay = Replay(problem)
    for _ in range(4):
        states = tuple(random.randrange(len(costs)) for costs in problem.problem.costs)
        assert problem.memory.peak(states) == int(replay.peak(states))
        limits = [problem.memory.limit(at, 0.0).used(states) for at in range(len(problem.memory.used(states)))]
        assert np.allclose(limits, problem.memory.used(states)), "what is limited is what is counted"


@pytest.mark.slow
@settings(deadline=None)
@given(programs(), st.sampled_from([0.9, 0.7, 0.5, 0.3]))
def test_no_solution_is_above_its_limit(drawn, share):
    free = LayoutProblem(drawn, Mesh.parse("x=2,y=4"), NETWORK).solve()
    limit = int(share * free.memory_bytes)
    problem = LayoutProblem(drawn, Mesh.parse("x=2,y=4"), NETWORK, memory_limit=limit)
    try:
        found = problem.solve()
    except InfeasibleError as error:
        assert error.closest is None or problem.memory.peak(error.closest) > limit
        return
    assert found.memory_bytes <= limit and found.seconds >= free.seconds * (1 - 1e-9)


@pytest.mark.slow
@settings(deadline=None)
@given(programs(most_ops=2), st.sampled_from([0.9, 0.7, 0.5]))
def test_no_layouts_within_the_limit_are_faster(drawn, share):
    free = LayoutProblem(drawn, MESH, NETWORK)
    sizes = [len(costs) for costs in free.problem.costs]
    if math.prod(sizes) > 20_000:
        return
    limit = int(share * free.solve().memory_bytes)
    every = itertools.product(*map(range, sizes))
    best = min((free.problem.cost(each) for each in every if free.memory.used(each).max() <= limit), default=math.inf)
    problem = LayoutProblem(drawn, MESH, NETWORK, memory_limit=limit)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            problem.solve(gap=0)
    else:
        assert problem.solve(gap=0).seconds == pytest.approx(best)
