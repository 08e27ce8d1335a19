# SPDX-License-Identifier: Apache-2.0
"""Work that leaves less to hold through a loop, done before the loop in place of behind it.

    %l:9 = while(... %x ...)              the layers, backward
    %w = dot_general %a, %g               : 2048x16384, the gradient of a weight; %g: 4x2048x16384 is held until here
    %s = reduce_scatter %w                : 512x16384
    ==>
    %w = dot_general %a, %g
    %s = reduce_scatter %w
    %y, %t = optimization_barrier %x, %s
    %l:9 = while(... %y ...)              and %t in place of %s behind it

JAX writes the gradient of what is behind a scan, such as the head of a language model, behind the backward scan. The
compiler for TPUs may leave it there, and hold what it is made of, the largest array of the program, while the loop
holds all that the forward scan has saved: so in a step of MaxText (`python -m benchmarks.trainers --size large`, step
`fsdp_tensor`), a sixth of the temporaries.

B1  An op behind a loop may be done before it if it takes nothing of the loop, nor of what has to stay behind it, and
    does nothing but compute its results.
B2  It is done before it, with the ops that it takes such results of, if that leaves at least 1 MiB less to hold: what
    is needed no more, neither behind the loop nor in each of its turns, less the results that are. Arguments are held
    anyway; what a compiler computes where it is used is not held, but what it is computed of.
B3  The loop waits: it takes one of its operands, no constant and no argument, from a barrier behind the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..ir.ops import LOOPS, blocks_of, ops_in, producer_of, terminator_of
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from .tile_lives import MADE_WHERE_USED, is_made_where_used, tile_bytes, top_in, uses_of

LEAST_BYTES = 1 << 20
_MOST_OPS = 64  # that are moved for one
_STAY = frozenset(  # for their effects, or since they hold more inside than their results say; so do other dialects'
    f"stablehlo.{name}"
    for name in ("after_all", "case", "create_token", "custom_call", "if", "infeed", "outfeed", "recv", "send", "while")
)


def shrink_before_loops(block: ir.Block) -> int:
    """Moves ops before the loops of a block, and of the blocks in it, in place; returns how many."""
    moved = 0
    for op in [each.operation for each in block.operations]:
        for inner in blocks_of(op) if op.name in _STAY else ():
            moved += shrink_before_loops(inner)
        if op.name in LOOPS:
            moved += _Around(block, op).move()
    return moved


@dataclass
class _Around:
    """What is before a loop of a block, and what is behind it.

    State: `place`, that of each op of the block, and the `last` op; `free`, the ops behind the loop that may be
    done before it (B1); `needed`, the values from before the loop that an op behind it takes, as they are in
    memory; `needing`, the ops behind the loop that need a value from before it; `_held`, those that each turn of
    the loop needs.
    """

    block: ir.Block
    loop: ir.Operation
    place: dict[ir.Operation, int] = field(init=False)
    last: ir.Operation = field(init=False)
    free: list[ir.Operation] = field(init=False, default_factory=list)
    needed: dict[ir.Operation, set[ir.Value]] = field(init=False, default_factory=dict)
    needing: dict[ir.Value, set[ir.Operation]] = field(init=False, default_factory=dict)
    _held: set[ir.Value] = field(init=False, default_factory=set)

    def __post_init__(self):
        ops = [each.operation for each in self.block.operations]
        self.place, self.last = {op: at for at, op in enumerate(ops)}, ops[-1]
        behind = ops[self.place[self.loop] + 1 :]
        late = {self.loop}
        self._held = set(itertools.chain.from_iterable(map(self._in_memory, self._needed_in_turns())))
        for op in behind:
            taken = list(self._taken(op))
            if _has_to_stay(op) or any(producer_of(each) in late for each in taken):
                late.add(op)
            else:
                self.free.append(op)
            self.needed[op] = set(itertools.chain.from_iterable(map(self._in_memory, taken)))
            for value in self.needed[op]:
                self.needing.setdefault(value, set()).add(op)

    def move(self) -> int:
        """Moves the ops that B2 names, and returns how many."""
        anchor = self._anchor()
        moved = self._shrinking() if anchor is not None and self.free else set()
        left = [each for op in self.free if op in moved for each in op.results if self._users(each) - moved]
        if anchor is None or not left:
            return 0
        for op in self.free:
            if op in moved:
                op.move_before(self.loop)
        with ir.InsertionPoint(self.loop), self.loop.location:
            waiting, *results = stablehlo.OptimizationBarrierOp([anchor, *left]).results
        for number, operand in enumerate(self.loop.operands):
            if operand == anchor:
                self.loop.operands[number] = waiting
        for value, result in zip(left, results, strict=True):
            for user, number in uses_of(value):
                if (top := top_in(self.block, user)) in self.place and top not in moved:  # not the barrier itself
                    user.operands[number] = result
        return len(moved)

    def _shrinking(self) -> set[ir.Operation]:
        """Returns the ops that are done before the loop (B2)."""
        moved: set[ir.Operation] = set()
        for op in self.free:
            if op not in moved and (together := self._with_taken(op, moved)) is not None:
                if self._freed(together, moved) >= LEAST_BYTES:
                    moved |= together
        return moved

    def _with_taken(self, op: ir.Operation, moved: set[ir.Operation]) -> set[ir.Operation] | None:
        """Returns an op with those behind the loop that it takes results of, and so on; None if they are many."""
        found, waiting = {op}, [op]
        while waiting and len(found) <= _MOST_OPS:
            made_by = {producer_of(each) for each in self._taken(waiting.pop())}
            fresh = {
                each
                for each in made_by - found - moved
                if each is not None and self.place[each] > self.place[self.loop]
            }
            found |= fresh
            waiting += fresh
        return found if len(found) <= _MOST_OPS else None

    def _freed(self, together: set[ir.Operation], moved: set[ir.Operation]) -> float:
        """Returns the bytes that are held less through the loop if ops are done before it, besides others."""
        before = moved | together
        taken = {value for op in together for value in self.needed[op]} - self._held
        freed = sum(tile_bytes(value) for value in taken if self.needing[value] <= before)
        own = {value for op in together for value in self._taken(op) if producer_of(value) in moved}
        freed += sum(tile_bytes(value) for value in own if self._users(value) <= before)
        return freed - sum(tile_bytes(each) for op in together for each in op.results if self._users(each) - before)

    def _anchor(self) -> ir.Value | None:
        """Returns the largest operand of the loop that is computed before it (B3)."""
        computed = [
            value
            for value in self.loop.operands
            if (op := producer_of(value)) in self.place and present(op).name not in MADE_WHERE_USED
            if isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).rank
        ]
        return max(computed, key=tile_bytes, default=None)

    def _needed_in_turns(self) -> Iterator[ir.Value]:
        """Yields the values from before the loop that it takes without ever changing them, or that ops in it take."""
        body = self.loop.regions[1].blocks[0]
        handed_on = zip(self.loop.operands, body.arguments, terminator_of(body).operands, strict=True)
        yield from (value for value, argument, result in handed_on if argument == result)
        for each in ops_in(self.loop)[1:]:
            yield from (operand for operand in each.operands if producer_of(operand) in self.place)

    def _in_memory(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yields the values from before the loop that are in memory until an op behind it has taken `value`."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            op = producer_of(value)
            if op is None or self.place.get(op, len(self.place)) >= self.place[self.loop]:
                continue
            if is_made_where_used(op, self.last):
                waiting += op.operands
            else:
                yield value

    def _taken(self, op: ir.Operation) -> Iterator[ir.Value]:
        """Yields the values of the block that an op takes, or ops in it."""
        for each in ops_in(op) if len(op.regions) else (op,):
            for operand in each.operands:
                if producer_of(operand) in self.place:
                    yield operand

    def _users(self, value: ir.Value) -> set[ir.Operation]:
        return {top_in(self.block, user) for user, _ in uses_of(value)}


def _has_to_stay(op: ir.Operation) -> bool:
    return op.name in _STAY or not op.name.startswith(("stablehlo.", "chlo.")) or op.name == "stablehlo.return"
