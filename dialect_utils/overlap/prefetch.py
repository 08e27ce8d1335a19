# SPDX-License-Identifier: Apache-2.0
"""Collectives in loops, one trip ahead: what a trip needs is brought while the trip before it computes.

A loop over layers gathers the weights of one layer in each trip. Where the first op of the body needs them, nothing can
run beside the gather, however asynchronous it is. The collective may be written a trip ahead if it depends on nothing
that a trip computes, but on how many there were: on values of the outside, on *constant* carried values, and on
*counters*, whose next value depends on such values alone. Then the loop carries its result: before the loop it is
brought for the first trip, and each trip brings it for the next one. What the last trip brings is not used; it is there
all the same, since slices are clamped to what there is.

If enough is left to compute after the last use of what a trip has, the next one comes then, into its place: a barrier
keeps compilers from starting it earlier, when both had to be held. What is left is what no use waits for: in a backward
pass the products that make gradients of weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.overlap.pipelines import AHEAD, Ahead, Span
from reshard.synthesis.programs.traffic import bytes_received

from ..emission.tile_emission import Mark
from ..hierarchy.explicit_collectives import OPS, ExplicitCollective, NotPlannable, explicit_collectives
from ..ir.fusing import may_be_fused
from ..ir.loop_trips import trips_of
from ..ir.ops import CONSTANTS, LOOPS, bits_of, ops_around, ops_in, producer_of, shape_of, terminator_of
from ..platform.bindings import DEVICE_TO_DEVICE, ir, stablehlo
from ..platform.typed import present
from .cones import DOT
from .products import DotProduct

_NUMBERS = frozenset({*CONSTANTS, "stablehlo.partition_id", "stablehlo.replica_id"})
_CONTINUED = frozenset({*OPS, "stablehlo.convert", "stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose"})
_BARRIER, _SHARDING = "stablehlo.optimization_barrier", "sdy.sharding"


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Collectives of a loop's body that are brought one trip ahead.

    Attributes:
      collectives: in their order; the last one is what the others are for.
      loop: around them. It carries what is made of the last one before anything else uses it.
      ahead: the modelled times. number: of the loop, among those of the module that have any.
    """

    collectives: tuple[ExplicitCollective, ...]
    loop: ir.Operation
    ahead: Ahead
    number: int = 0

    @property
    def whole_s(self) -> float:
        return self.ahead.as_it_is_s

    @property
    def pipelined_s(self) -> float:
        return self.ahead.ahead_s

    @property
    def spans(self) -> tuple[Span, ...]:
        """Returns the spans of two trips, as modelled."""
        return tuple(self.ahead.spans(is_ahead=True))

    @property
    def stock_spans(self) -> tuple[Span, ...]:
        return tuple(self.ahead.spans(is_ahead=False))

    @property
    def stock(self) -> ExplicitCollective:
        """Returns the collective as the module has it."""
        return self.collectives[-1]

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """Returns what no other pipeline may take the place of."""
        return tuple(each.op for each in self.collectives)

    @property
    def pattern(self) -> str:
        return f"{self.stock.in_groups.kind}, {AHEAD} in loop {self.number}"

    @property
    def form(self) -> str:
        return AHEAD

    @property
    def text(self) -> str:
        return f"{self.stock.in_groups.kind} in a loop"

    @property
    def way(self) -> str:
        """Returns in words how it travels."""
        place = ", into the place of what it has used" if self.ahead.is_in_place else ""
        return f"for the next of {self.ahead.trips} trips, while one computes{place}"

    @property
    def sends(self) -> int:
        return len(self.collectives)

    @property
    def received_bytes(self) -> int:
        """Returns the bytes that a device receives in one trip."""
        flat = [each.flat for each in self.collectives]
        return bytes_received(flat, 1 + max(max(group) for each in flat for group in each.groups))

    @property
    def whole_bytes(self) -> int:
        return self.stock.flat.largest_tile_bytes

    @property
    def pipelined_bytes(self) -> int:
        """Returns what is held: what a trip uses, and beside it what comes for the next one."""
        return (1 if self.ahead.is_in_place else 2) * self.whole_bytes


def prefetches(root: ir.Operation, topology: Topology) -> Iterator[Prefetch]:
    """Yields the collectives of manual computations that may be brought one trip ahead, with their modelled times."""
    bodies: dict[ir.Operation, _Body] = {}
    found: dict[ir.Operation, dict[ir.Value, list[ExplicitCollective]]] = {}
    for op, collective in explicit_collectives(root):
        loop = op.parent.operation if op.parent is not None else None
        if isinstance(collective, NotPlannable) or loop is None or loop.name not in LOOPS:
            continue
        if op.block != loop.regions[1].blocks[0] or _SHARDING in loop.attributes:
            continue
        body = bodies[loop] = bodies.get(loop) or _Body(loop)
        carried = body.carried(op.results[0])
        if body.is_ahead(carried) and body.uses(carried):
            found.setdefault(loop, {}).setdefault(carried, []).append(collective)
    for number, (loop, of_loop) in enumerate(found.items()):
        body = bodies[loop]
        alone = {carried: each for carried, each in of_loop.items() if body.is_alone(carried, each)}
        yield from _of_loop(number, alone, body, topology)


def _of_loop(
    number: int, found: Mapping[ir.Value, Sequence[ExplicitCollective]], body: _Body, topology: Topology
) -> Iterator[Prefetch]:
    """Yields the prefetches of one loop, from what they carry.

    As it is, the collectives come in their order, beside the products that wait for none of those that are not there.
    """
    seconds, uses = body.products_s(topology), {carried: body.uses(carried) for carried in found}
    waiting_s, waiting = {}, set()
    for carried in reversed(list(found)):
        _reached(uses[carried], body.users, waiting)
        waiting_s[carried] = sum(seconds[at] for at in waiting)
    come_s = waited_s = 0.0
    for carried, collectives in found.items():
        mesh = collectives[0].mesh
        brought_s = sum(collective_time_s(topology, mesh.devices, each.flat) for each in collectives)
        come_s += brought_s
        exposed_s = max(0.0, come_s - (sum(seconds) - waiting_s[carried]) - waited_s)
        waited_s += exposed_s
        after_s = sum(seconds) - sum(seconds[at] for at in body.needed_by(uses[carried]))
        ahead = Ahead(brought_s, sum(seconds), brought_s - exposed_s, after_s, trips_of(body.loop))
        yield Prefetch(tuple(collectives), body.loop, ahead, number)


def _reached(start: Iterable[int], edges: Sequence[set[int]], seen: set[int]) -> set[int]:
    """Adds to `seen` what is reached from some numbers along edges, and returns it."""
    left = [each for each in start if each not in seen]
    seen.update(left)
    while left:
        further = edges[left.pop()] - seen
        seen |= further
        left += further
    return seen


class _Body:
    """The body of a loop, and what of it depends on nothing that a trip computes.

    A barrier says nothing about values, so what is behind it counts: rematerialised bodies put one over everything that
    comes in.

    State: `numbers` has the place of each op, `_products_s` what has been asked for; `_counters` has the numbers of the
    carried values that are counters, or constant; `_ahead` the ops that depend on such values alone.
    """

    def __init__(self, loop: ir.Operation):
        self.loop = loop
        self.block = loop.regions[1].blocks[0]
        self.returned = list(terminator_of(self.block).operands)
        self.ops = [view.operation for view in self.block.operations]
        self.numbers = {op: number for number, op in enumerate(self.ops)}
        self._products_s: list[float] = []
        self._ahead: set[ir.Operation] = set()
        self._counters = set(range(len(self.returned)))
        changing = self._counters
        while changing:
            self._ahead = self._found()
            changing = {number for number in self._counters if not self.is_ahead(self.returned[number])}
            self._counters -= changing

    def _found(self) -> set[ir.Operation]:
        self._ahead = set()
        for op in self.ops:
            if _is_repeatable(op) and all(map(self.is_ahead, op.operands)):
                self._ahead.add(op)
        return self._ahead

    def is_ahead(self, value: ir.Value) -> bool:
        """Returns whether the value that the next trip has is known in this one."""
        value = self.behind(value)
        op = producer_of(value)
        if op is None:
            is_argument = isinstance(value.owner, ir.Block) and value.owner == self.block
            return not is_argument or ir.BlockArgument(value).arg_number in self._counters
        return op.block != self.block or op in self._ahead

    def behind(self, value: ir.Value) -> ir.Value:
        """Returns the value of which barriers of the body make this one."""
        while (op := producer_of(value)) is not None and op.name == _BARRIER and op.block == self.block:
            value = op.operands[ir.OpResult(value).result_number]
        return value

    def carried(self, value: ir.Value) -> ir.Value:
        """Returns what becomes of a value, as long as it takes no more memory and is known a trip ahead, too."""
        users = {use.owner.operation for use in value.uses}
        if len(users) != 1:
            return value
        (user,) = users
        if user.block != self.block or user.name not in _CONTINUED or not self.is_ahead(user.results[0]):
            return value
        return self.carried(user.results[0]) if user.name in OPS or _bytes(user.results[0]) <= _bytes(value) else value

    def cone(self, value: ir.Value) -> list[ir.Operation]:
        """Returns the ops of the body from which a value is made, in their order."""
        inside: dict[ir.Operation, None] = {}
        left = [value]
        while left:
            op = producer_of(self.behind(left.pop()))
            if op is not None and op.block == self.block and op not in inside:
                inside[op] = None
                left += op.operands
        return [op for op in self.ops if op in inside]

    def is_alone(self, carried: ir.Value, collectives: Sequence[ExplicitCollective]) -> bool:
        """Returns whether a value needs no other collectives, and these are for nothing else."""
        cone = self.cone(carried)
        inside, own = set(cone), {each.op for each in collectives}
        for op in cone:
            if op.name not in OPS:
                continue
            users = {use.owner.operation for use in op.results[0].uses}
            if op not in own or (op.results[0] != carried and not users <= inside):
                return False
        return True

    def uses(self, value: ir.Value) -> set[int]:
        """Returns the numbers of the ops of the body that use a value, or in which something does.

        What compilers fuse with what comes next, such as conversions, reads it no sooner than that does.
        """
        found: set[int] = set()
        left, seen = [value], {value}
        while left:
            for use in left.pop().uses:
                op = use.owner.operation
                if op.block != self.block or not _is_passed_through(op):
                    found.add(self.number_of(op))
                    continue
                made = op.results[use.operand_number if op.name == _BARRIER else 0]
                if made not in seen:
                    seen.add(made)
                    left.append(made)
        return found

    def number_of(self, op: ir.Operation) -> int:
        """Returns the number of an op of the body, or of the one in which it is."""
        inside = op if op.block == self.block else next(each for each in ops_around(op) if each.block == self.block)
        return self.numbers[inside]

    def needed_by(self, ops: Iterable[int]) -> set[int]:
        """Returns the numbers of some ops, and of those that must run before."""
        return _reached(ops, self.inputs, set())

    def last_uses(self, value: ir.Value) -> list[ir.Operation]:
        """Returns the ops that use a value, but for those that must run before another one."""
        uses = self.uses(value)
        before = {number for at in self.needed_by(uses) for number in self.inputs[at]}
        return [self.ops[at] for at in sorted(uses - before)]

    @cached_property
    def inputs(self) -> list[set[int]]:
        """Returns for each op the numbers of those whose results it takes."""
        return [
            {
                self.numbers[producer]
                for inner in ops_in(op)
                for operand in inner.operands
                if (producer := producer_of(operand)) is not None and producer.block == self.block
            }
            for op in self.ops
        ]

    @cached_property
    def users(self) -> list[set[int]]:
        """Returns for each op the numbers of those that take its results."""
        found: list[set[int]] = [set() for _ in self.ops]
        for at, inputs in enumerate(self.inputs):
            for number in inputs:
                found[number].add(at)
        return found

    def products_s(self, topology: Topology) -> list[float]:
        """Returns the modelled seconds of the products in each op."""
        if not self._products_s:
            self._products_s += [_products_s(op, topology) for op in self.ops]
        return self._products_s

    def erase_unused(self, ops: Set[ir.Operation]) -> None:
        """Erases those of some ops that nothing uses."""
        for op in reversed(self.ops):
            if op in ops and not any(True for _ in op.results[0].uses):
                op.erase()


def _products_s(op: ir.Operation, topology: Topology) -> float:
    """Returns the modelled seconds of the products in an op; those of a loop as often as it runs."""
    if op.name == DOT:
        product = DotProduct(op)
        try:
            return product.sized(*product.shapes).seconds(topology)
        except ValueError:  # elements without a width
            return 0.0
    inner = (each.operation for region in op.regions for block in region.blocks for each in block.operations)
    return sum(_products_s(each, topology) for each in inner) * (trips_of(op) if op.name in LOOPS else 1)


def write_ahead(prefetches: Sequence[tuple[Prefetch, Mark]]) -> None:
    """Writes the collectives of one loop a trip ahead; a loop that carries more takes its place."""
    loop = prefetches[0][0].loop
    body = _Body(loop)
    # Once more: pipelines may have taken what followed a collective.
    carried = [body.carried(each.stock.op.results[0]) for each, _ in prefetches]
    brought = [_Brought(body, each, mark, value) for (each, mark), value in zip(prefetches, carried, strict=True)]
    with ir.InsertionPoint(loop):
        now = dict(zip(body.block.arguments, loop.operands, strict=True))
        starts = [each.written(now) for each in brought]
    returns = terminator_of(body.block)
    with ir.InsertionPoint(returns):
        coming = dict(zip(body.block.arguments, body.returned, strict=True))
        nexts = [each.written(coming, each.used_up) for each in brought]
    with ir.InsertionPoint(loop), loop.location:
        operands = [*loop.operands, *starts]
        attributes = dict(loop.attributes.items())
        carrying = ir.Operation.create(
            loop.name, [value.type for value in operands], operands, attributes, regions=len(loop.regions)
        )
    for old, new in zip(loop.regions, carrying.regions, strict=True):
        old.blocks[0].append_to(new)
        for start in starts:
            new.blocks[0].add_argument(start.type, loop.location)
    with ir.InsertionPoint(returns), returns.location:
        ir.Operation.create(returns.name, [], [*returns.operands, *nexts])
    returns.erase()
    arguments = carrying.regions[1].blocks[0].arguments
    for value, argument in zip(carried, arguments[len(loop.operands) :], strict=True):
        value.replace_all_uses_with(argument)
    body.erase_unused({op for each in brought for op in each.cone})
    for old, new in zip(loop.results, carrying.results):
        old.replace_all_uses_with(new)
    loop.erase()


class _Brought:
    """Writes what a loop carries, from the ops of its body that make it."""

    def __init__(self, body: _Body, prefetch: Prefetch, mark: Mark, carried: ir.Value):
        self.body, self.prefetch, self.mark, self.carried = body, prefetch, mark, carried
        self.cone = body.cone(carried)

    @property
    def used_up(self) -> list[ir.Value]:
        """Returns the values that are there once what a trip has is used for the last time; none if nobody waits."""
        if not self.prefetch.ahead.is_in_place:
            return []
        return [op.results[0] for op in self.body.last_uses(self.carried) if len(op.results)]

    def written(self, values: Mapping[ir.Value, ir.Value], after: Sequence[ir.Value] = ()) -> ir.Value:
        """Inserts copies of ops, and returns what they make of other values of the loop's arguments.

        Args:
          after: what has to be there before a collective starts.
        """
        made = dict(values)
        for op in self.cone:
            operands = [made.get(each, each) for each in map(self.body.behind, op.operands)]
            attributes = dict(op.attributes.items())
            if op.name in OPS:
                channel = next(self.mark.channels)
                attributes["channel_handle"] = stablehlo.ChannelHandle.get(channel, DEVICE_TO_DEVICE)
            place = ir.Location.name(self.mark.name, op.location)
            if after and op == self.prefetch.collectives[0].op:
                operands = [stablehlo.OptimizationBarrierOp([operands[0], *after], loc=place).results[0]]
            copy = ir.Operation.create(op.name, [each.type for each in op.results], operands, attributes, loc=place)
            made.update(zip(op.results, copy.results, strict=True))
        return made[self.carried]


def _is_passed_through(op: ir.Operation) -> bool:
    """Returns whether compilers read an op's operand where its result is read."""
    return op.name == _BARRIER or (may_be_fused(op) and not len(op.regions) and len(op.results) == 1)


def _is_repeatable(op: ir.Operation) -> bool:
    """Returns whether an op may run once more, for one trip more than there are."""
    if len(op.regions) or len(op.results) != 1 or op.name == _BARRIER:
        return False
    return op.name in _NUMBERS or op.name in OPS or may_be_fused(op)


def _bytes(value: ir.Value) -> int:
    return math.prod(present(shape_of(value.type))) * bits_of(value.type)
