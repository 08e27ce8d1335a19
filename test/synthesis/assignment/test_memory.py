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
from reshard.synthesis.assignment.solving import InfeasibleError
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

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
    return FactoredProgram(
        tensors, tuple(ops), arguments, results, pinned, found.lives, found.moments, found.loops
    )


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


def replayed(problem: LayoutProblem, states) -> float:
    """Returns the most bytes in memory while ops run one after the other: another way to come to the peak.

    Each op counts what is alive at its moment, and holds what is converted for it; it lets go of that when it, or the
    ops that take what it makes if it is a part of them, have run.
    """
    given = problem.program
    moments = dict(enumerate(given.moments))
    takers = {t: [n for n, op in enumerate(given.ops) if t in op.operands] for t in range(len(given.tensors))}
    end = max(each.last for each in given.lives)

    def moment_of(number):
        if moments[number] is not None:
            return moments[number]
        made = given.ops[number].results
        found = [moment_of(user) for tensor in made for user in takers[tensor]]
        return min((each for each in found if each is not None), default=end if set(made) & {*given.results} else None)

    def needed_until(number):
        """Returns the ops that have to run before an op's operands may go; None stands for the end."""
        if moments[number] is not None:
            return {number}
        made = given.ops[number].results
        ends = {user for tensor in made for user in takers[tensor] if moment_of(user) is not None} | {number}
        return ends | {None} if set(made) & {*given.results} else ends

    held = []  # [the op that begins to hold it; None: before all; the ops that still need it; bytes]
    for edge in problem._edges:
        source, target = edge.sources[states[edge.source]], edge.targets[states[edge.target]]
        if (source == target).all():
            continue
        before, after = (given.tensors[edge.tensor].bytes / problem.prices.shards(each[None])[0] for each in (source, target))
        users = [each for each in takers[edge.tensor] if moment_of(each) is not None]
        if edge.op is None:
            users = [each for each in users if each in problem._op_nodes]
            held.append((set(users), set().union(*map(needed_until, users)), after))
        elif edge.source == problem._op_nodes[edge.op] and moments[edge.op] is not None:
            held.append(({edge.op}, {edge.op}, before))
        elif edge.source == problem._op_nodes[edge.op]:
            kept = {None} & {None if edge.tensor in given.results else edge.op}
            held.append(({*users, *kept}, set().union(kept, *map(needed_until, users)), after))
        elif moment_of(edge.op) is not None:
            held.append(({edge.op}, needed_until(edge.op), after))
    order = sorted((n for n in moments if moment_of(n) is not None), key=lambda n: (moment_of(n), moments[n] is not None, n))
    tile = {each.tensor: problem.memory.tiles[number].size(states) for number, each in enumerate(given.lives)}

    def alive(moment):
        return sum(tile[each.tensor] for each in given.lives if each.first <= moment <= each.last)

    steps = [(moment_of(number), number) for number in order]
    empty = set(range(end + 1)) - {moment for moment, _ in steps}
    steps = sorted([*steps, *((moment, None) for moment in empty)], key=lambda step: step[0])
    place = {number: at for at, (_, number) in enumerate(steps) if number is not None}
    last = max(at for at, (moment, _) in enumerate(steps) if moment == end)
    first_of_end = min(at for at, (moment, _) in enumerate(steps) if moment == end)
    most = 0.0
    for at, (moment, _) in enumerate(steps):
        size = alive(moment)
        for begins, needs, num_bytes in held:
            starts = [place[each] if each is not None else first_of_end for each in begins]
            stops = [place[each] if each is not None else last for each in needs]
            size += num_bytes if starts and min(starts) <= at <= max(stops) else 0
        most = max(most, size)
    return most


@settings(deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_the_peak_is_that_of_a_replay(drawn, random):
    problem = LayoutProblem(drawn, Mesh.parse("x=2,y=4"), NETWORK)
    for _ in range(4):
        states = tuple(random.randrange(len(costs)) for costs in problem.problem.costs)
        assert problem.memory.peak(states) == int(replayed(problem, states))
        limits = [problem.memory.limit(at, 0.0).used(states) for at in range(len(problem.memory.used(states)))]
        assert np.allclose(limits, problem.memory.used(states)), "what is limited is what is counted"


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
