# SPDX-License-Identifier: Apache-2.0
"""P²'s formalism, from the paper: states, instructions, a validator and an exhaustive synthesizer for small systems.

It shares no code with the planner. The state of a device is a boolean matrix: entry (c, i) says that its partial sum of
chunk c contains what device i contributes. Here a matrix is a tuple of rows, one for each chunk, and a row is a set of
bits, one for each contribution. At first a device has its own contribution to all chunks; at the end all have all.

| instruction | precondition, in each group | afterwards |
|---|---|---|
| AllReduce | the same chunks, no contribution twice | all have the union |
| ReduceScatter | the same, and their number divides by the group | member i has the i-th part of the union |
| AllGather | disjoint chunks, as many of each | all have the union |
| Reduce | as AllReduce | the first has the union, the others have nothing |
| Broadcast | the others have nothing that the first lacks | all have what the first has |

An instruction is a collective with groups, given by a slice of the hierarchy and a form. Over levels 0..m-1, outer to
inner, the members of a group differ along the levels from `outer` up to `inner`, which is not included:

- InsideGroup: all devices in one unit, `inner` = m;
- Parallel: those with the same place in several units, `inner` < m; all places work at the same time;
- Master: the same, but the first devices of the units only.

Source: P² (arXiv 2110.10548), section 3 (its synthesis hierarchy of the reduction axes only), from its description; the
rules of Reduce and Broadcast are as strict as a program needs to be right.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Matrix = tuple[int, ...]
State = tuple[Matrix, ...]
GATHERS = ("AllReduce", "ReduceScatter", "AllGather")
ROOTED = ("Reduce", "Broadcast")


class InvalidProgram(ValueError):
    """The precondition of an instruction does not hold."""


def chunks(matrix: Matrix) -> tuple[int, ...]:
    """Returns the chunks of which a device has something."""
    return tuple(chunk for chunk, row in enumerate(matrix) if row)


def union(matrices: Sequence[Matrix]) -> Matrix:
    rows = []
    for row in zip(*matrices):
        joined = 0
        for part in row:
            joined |= part
        rows.append(joined)
    return tuple(rows)


def kept(matrix: Matrix, part: int, parts: int) -> Matrix:
    """Returns the matrix with one of several equal parts of its chunks."""
    all_chunks = chunks(matrix)
    size = len(all_chunks) // parts
    mine = all_chunks[part * size : (part + 1) * size]
    return tuple(row if chunk in mine else 0 for chunk, row in enumerate(matrix))


def after(collective: str, members: Sequence[Matrix]) -> list[Matrix]:
    """Returns the matrices of a group after a collective. Raises: InvalidProgram if its precondition does not hold."""
    return _RULES[collective](members, len(members))


def _reduced(members: Sequence[Matrix]) -> Matrix:
    if not chunks(members[0]) or len({chunks(each) for each in members}) > 1:
        raise InvalidProgram("members have different chunks, or none")
    for row in zip(*members):
        if sum(part.bit_count() for part in row) != union([(part,) for part in row])[0].bit_count():
            raise InvalidProgram("a contribution is added twice")
    return union(members)


def _all_reduce(members, n):
    return [_reduced(members)] * n


def _reduce_scatter(members, n):
    joined = _reduced(members)
    if len(chunks(joined)) % n:
        raise InvalidProgram("chunks do not divide")
    return [kept(joined, part, n) for part in range(n)]


def _all_gather(members, n):
    counts = {len(chunks(each)) for each in members}
    joined = union(members)
    if len(counts) > 1 or counts == {0} or len(chunks(joined)) != n * min(counts):
        raise InvalidProgram("members share chunks, or have unequal numbers of them")
    return [joined] * n


def _reduce(members, n):
    return [_reduced(members), *[(0,) * len(members[0])] * (n - 1)]


def _broadcast(members, n):
    root = members[0]
    if not chunks(root) or union(members) != root or all(each == root for each in members):
        raise InvalidProgram("a member has something that the root lacks, or nobody lacks anything")
    return [root] * n


_RULES: dict[str, Callable] = {
    "AllReduce": _all_reduce,
    "ReduceScatter": _reduce_scatter,
    "AllGather": _all_gather,
    "Reduce": _reduce,
    "Broadcast": _broadcast,
}


def run(state: State, collective: str, groups: Iterable[Sequence[int]]) -> State:
    """Returns the state after one collective; devices in no group keep theirs. Raises: InvalidProgram."""
    found = list(state)
    for group in groups:
        for member, matrix in zip(group, after(collective, [state[member] for member in group])):
            found[member] = matrix
    return tuple(found)


def moved(state: State, pairs: Iterable[tuple[int, int]]) -> State:
    """Returns the state after whole tiles move from sources to targets, which P² has no instruction for.

    A device that is no target has nothing then.
    """
    found = [(0,) * len(state[0])] * len(state)
    for source, target in pairs:
        found[target] = state[source]
    return tuple(found)


def first(contribution: Sequence[int], num_chunks: int) -> State:
    """Returns the state before a reduction, given what each device contributes."""
    return tuple((1 << own,) * num_chunks for own in contribution)


def is_done(state: State, contributions: int) -> bool:
    return all(row == (1 << contributions) - 1 for matrix in state for row in matrix)


# ---- programs of one reduction group, whose levels have the given sizes


@dataclass(frozen=True, slots=True)
class Instruction:
    collective: str
    form: str
    outer: int
    inner: int

    def groups(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the groups, as row-major places in the hierarchy."""
        place = {at: n for n, at in enumerate(itertools.product(*map(range, sizes)))}
        around, inside = sizes[: self.outer], sizes[self.inner :]
        insides = [(0,) * len(inside)] if self.form == "Master" else list(itertools.product(*map(range, inside)))
        return [
            tuple(place[head + at + tail] for at in itertools.product(*map(range, sizes[self.outer : self.inner])))
            for head in itertools.product(*map(range, around))
            for tail in insides
        ]

    def __str__(self) -> str:
        return f"{self.collective}({self.form} {self.outer}:{self.inner})"


def instructions(levels: int, collectives: Sequence[str]) -> Iterator[Instruction]:
    for outer, inner in itertools.combinations(range(levels + 1), 2):
        for form in ("InsideGroup",) if inner == levels else ("Parallel", "Master"):
            for collective in collectives:
                yield Instruction(collective, form, outer, inner)


@functools.cache
def moves(state: State, sizes: tuple[int, ...], collectives: tuple[str, ...]) -> list[tuple[Instruction, int, State]]:
    """Returns the instructions whose preconditions hold, the chunks on the fullest device that takes part, the states
    after them.
    """
    found = []
    for each in instructions(len(sizes), collectives):
        groups = each.groups(sizes)
        try:
            then = run(state, each.collective, groups)
        except InvalidProgram:
            continue
        found.append((each, max(len(chunks(state[member])) for group in groups for member in group), then))
    return found


def programs(sizes: tuple[int, ...], collectives: tuple[str, ...], most: int) -> int:
    """Returns the number of valid programs of at most `most` instructions that reduce; none goes on when it is done."""
    devices = math.prod(sizes)
    states, found = {first(range(devices), devices): 1}, 0
    for _ in range(most):
        following: dict[State, int] = {}
        for state, count in states.items():
            for _, _, then in moves(state, sizes, collectives):
                following[then] = following.get(then, 0) + count
        found += sum(count for state, count in following.items() if is_done(state, devices))
        states = {state: count for state, count in following.items() if not is_done(state, devices)}
    return found


Price = Callable[[Instruction, int], float]  # given the chunks on the fullest of the devices that take part


def cheapest(
    sizes: tuple[int, ...], collectives: tuple[str, ...], price: Price
) -> tuple[float, tuple[Instruction, ...]]:
    """Returns the cost of the cheapest program of any length, and the program."""
    devices, ties = math.prod(sizes), itertools.count()
    queue = [(0.0, next(ties), first(range(devices), devices), ())]
    done: set[State] = set()
    while queue:
        cost, _, state, program = heapq.heappop(queue)
        if is_done(state, devices):
            return cost, program
        if state in done:
            continue
        done.add(state)
        for each, busy, then in moves(state, sizes, collectives):
            heapq.heappush(queue, (cost + price(each, busy), next(ties), then, (*program, each)))
    raise InvalidProgram("no program reduces")
