# SPDX-License-Identifier: Apache-2.0
"""From typed steps to a plan: where each step leads, what it costs, and what every device does with its tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools
import math

from . import bounds, chunks, cost, steps, traffic
from .blocks import both_ends
from .layout import Layout
from .peak import peak_bytes
from .planned import Plan, PlannedStep
from .pricing import PER_SECOND, Pricing
from .problem import Problem
from .request import Request
from .steps import Step
from .tile_program import (
    Loop,
    Relayout,
    Reshape,
    Rounds,
    TileProgram,
    Transpose,
    bytes_moved,
    collectives,
    collectives_by_step,
    copied_elements,
    lower,
    shape_after,
)
from .traffic import Collective

_ROUNDING = 1e-9  # more than sums of times are off


class Costing:
    """Prices ways to fulfil one request.

    Attributes:
      fastest_s: the least time of all plans priced so far.
    """

    def __init__(self, request: Request, pricing: Pricing):
        self.request = request
        self.pricing = pricing
        self.fastest_s = math.inf
        self._bound_time_s: float | None = None

    @functools.cached_property
    def bound(self) -> int:
        """Returns the elements that the busiest device must receive whatever the method; who knows them already says so."""
        asked = self.request
        return bounds.received_elements_bound(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)

    def of_chain(
        self,
        problem: Problem,
        typed: Sequence[Step],
        is_optimal: bool,
        proved_gap: float | None = None,
        *,
        keeps_tiles_small: bool = True,
    ) -> Plan:
        """Returns the plan of a chain; R1: the rules, not the search, say where each step leads.

        Args:
          proved_gap: see `Plan`; None is what the bounds on any method prove.
          keeps_tiles_small: R2; without it chains are priced that nobody should run.
        """
        layouts = _layouts(problem.source, typed)
        tiles = _checked_tiles(layouts, problem.target)
        if keeps_tiles_small and max(tiles) > max(tiles[0], tiles[-1], self.request.tile_limit_elements):
            raise steps.RuleError(f"R2: tiles {tiles}")
        program = lower(problem.mesh, problem.source, typed, self.request.reduction, layouts)
        priced = self.priced_steps(self.pricing, problem.source, program, layouts)
        found = self.plan_of(program, priced, max(tiles), is_optimal, proved_gap)
        if self.request.bits % 8 and self.request.objective == "bytes":
            return self._proved_in_bytes(found, sum(map(steps.received_elements, layouts, typed)))
        return found

    def of_cheaper_chain(self, problem: Problem, typed: Sequence[Step], than: Plan) -> Plan | None:
        """Returns the plan of a chain without exchanges, None if by the objective it is no cheaper than a plan.

        What decides that comes first: the collectives, then the copies, and all the rest of a plan at last.
        """
        layouts, most = _layouts(problem.source, typed), self.key(than)
        if self.request.objective == "bytes":
            if self._least_cost(layouts, typed) >= most:
                return None
        else:
            seconds = 0.0 if self.pricing.has_free_copies else self._seconds_of_steps(layouts, typed)
            if seconds > most[0]:
                return None
            least = self._least_cost(layouts, typed)
            if (seconds, *least) >= most:
                return None
            program = lower(problem.mesh, problem.source, typed, self.request.reduction, layouts)
            if (self._seconds_of_program(layouts, program), *least) >= most:
                return None
        found = self.of_chain(problem, typed, False)
        return found if self.key(found) < most else None

    def key(self, plan: Plan) -> tuple:
        """Returns what makes a plan cheap by the objective; the least one is the cheapest.

        A collective counts as a picosecond more, by which sums of the same times may be off: of equal ones the one with fewer is cheaper.
        """
        cost = plan.bytes_received, plan.collectives
        picoseconds = round(plan.time_s * PER_SECOND) + plan.collectives
        return (picoseconds / PER_SECOND, *cost) if self.request.objective == "time" else cost

    def may_permute(self, than: Plan, head: Sequence[Step], layout: Layout) -> bool:
        """Returns whether a chain of slices and all_to_alls, and then a permute of the layout behind them, may be cheaper than a plan.

        Behind the permute there is a gather, if the target's tile is larger, of all that it lacks or of a part.
        """
        tile, target_tile = layout.tile_elements, math.prod(than.tile_program.out_shape)
        moves = [step for step in head if isinstance(step, steps.AllToAll)]  # which leave tiles as large
        gathered = max(0, target_tile - tile)
        if self.request.objective == "bytes":
            received = self.request.bytes_of(tile) + self.request.bytes_of(gathered)
            received += sum([self._bytes_received(layout, step) for step in moves])
            return (received, 1 + len(moves) + (gathered > 0)) < (than.bytes_received, than.collectives)
        times = [self.pricing.picoseconds("all_to_all", step.factors, tile) for step in moves]
        if gathered:
            times.append(self.pricing.least_picoseconds_of_one(target_tile // tile, gathered))
        return (self.pricing.least_picoseconds(tile) + sum(times)) / PER_SECOND <= than.time_s * (1 + _ROUNDING)

    def _least_cost(self, layouts: Sequence[Layout], typed: Sequence[Step]) -> tuple[int, int]:
        """Returns what the busiest device receives at least, and the number of collectives: of permutes, one reaches all devices."""
        received, permuted, count = 0, 0, 0
        for before, step in zip(layouts, typed):
            num_bytes = self._bytes_received(before, step)
            if isinstance(step, steps.Permute):
                permuted = max(permuted, num_bytes)
            else:
                received += num_bytes
            count += steps.collectives(step)
        return received + permuted, count

    def _bytes_received(self, before: Layout, step: Step) -> int:
        """Returns what a device receives in a collective of a group, the busiest one in a permute; packed tiles are whole bytes."""
        tile = self.request.bytes_of(before.tile_elements)
        if isinstance(step, steps.Permute):
            return tile if step.after != before else 0
        kind = steps.name(step)
        if kind not in traffic.GROUPED_KINDS:
            return 0
        size = math.prod([factor.size for factor in step.factors])
        return traffic.received_in_group(Collective(kind, tile, tile), size) if size > 1 else 0

    def _proved_in_bytes(self, plan: Plan, elements: int) -> Plan:
        """Returns the plan of a chain that the search counted in elements, where packed tiles are whole bytes on their way."""
        least = self.request.bytes_of(elements)
        if plan.bytes_received <= max(least, plan.bound_bytes) or plan.proved_gap is None:
            return plan
        return dataclasses.replace(plan, is_optimal=False, proved_gap=plan.proved_gap * plan.bytes_received / least)

    @staticmethod
    def checked_tiles(source: Layout, target: Layout, typed: Sequence[Step]) -> list[int]:
        """Returns the elements of the tile before, between and after steps. Raises: RuleError where R1 is broken."""
        return _checked_tiles(_layouts(source, typed), target)

    def least_seconds(self, problem: Problem, typed: Sequence[Step]) -> float:
        """Returns what a chain takes without its copies, which are known only when it is lowered."""
        return self._seconds_of_steps(_layouts(problem.source, typed), typed)

    def _seconds_of_steps(self, layouts: Sequence[Layout], typed: Sequence[Step]) -> float:
        return sum(self._seconds(self.pricing, *each) for each in zip(layouts, typed, layouts[1:]))

    def _seconds_of_program(self, layouts: Sequence[Layout], program: TileProgram) -> float:
        """Returns what a chain takes, given the layouts before, between and after its steps, and what it is lowered to."""
        at = [0, *itertools.accumulate([not isinstance(step, Relayout) for step, _ in program.steps])]
        copied = copied_elements(program, [layouts[each].tile_elements for each in at[1:]])
        shares = _paid_shares(program, self.pricing)
        seconds = 0.0
        for (step, _), share, elements, (before, after) in zip(program.steps, shares, copied, itertools.pairwise(at)):
            seconds += self._seconds(self.pricing, layouts[before], step, layouts[after], elements, share)
        return seconds

    def of_no_elements(self) -> Plan:
        """Returns the plan for an array of size 0: at most the tile's shape changes."""
        asked = self.request
        before, after = asked.tile_shapes
        reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
        operations = ((reshape, (Reshape(after),)),) if before != after else ()
        priced = tuple(PlannedStep(step, steps.text(None, step, asked.mesh), 0, 0, 0, 0.0) for step, _ in operations)
        return self.plan_of(TileProgram(asked.mesh, before, after, operations), priced, 0, True)

    def in_chunks(self, plan: Plan, schedule: chunks.Schedule) -> Iterator[Plan]:
        """Yields a plan in chunks, ever more of them; nothing where its steps touch all dimensions. See `chunks.py`."""
        for cut in chunks.cuts(plan.tile_program):
            program = chunks.looped(plan.tile_program, cut, schedule)
            yield self.plan_of(program, (self._priced_loop(plan, cut, program),), max(self._ends(program)), False)

    @staticmethod
    def _ends(program: TileProgram) -> tuple[int, int]:
        return math.prod(program.in_shape), math.prod(program.out_shape)

    def _priced_loop(self, plan: Plan, cut: chunks.Cut, program: TileProgram) -> PlannedStep:
        (loop,) = (each for each in program.operations if isinstance(each, Loop))
        inside = tuple(self._priced_part(plan, loop.body))
        ((step, _),) = program.steps
        before, after = self._ends(program)
        words = "; ".join(each.text for each in inside if each.op != "relayout")
        copied_s = self.pricing.relayout_seconds(before) + self.pricing.relayout_seconds(after)  # taken out, put into place
        return PlannedStep(
            step=step,
            text=f"{cut.count} chunks along dim {cut.dim}: {words}",
            bytes_received=bytes_moved(program, plan.bits, self.request.devices)[0],
            tile_bytes_before=self.request.bytes_of(before),
            tile_bytes_after=self.request.bytes_of(after),
            time_s=cut.count * sum(each.time_s for each in inside) + copied_s,
            inside=inside,
        )

    def _priced_part(self, plan: Plan, body: TileProgram) -> Iterator[PlannedStep]:
        """Yields the steps of a plan as they are on one chunk."""
        shape, moved = body.in_shape, iter(collectives(body, plan.bits))
        shares = _paid_shares(body, self.pricing)
        for whole, (step, operations), share, copied in zip(plan.steps, body.steps, shares, copied_elements(body), strict=True):
            own = tuple(itertools.islice(moved, steps.collectives(step)))
            before, seconds = math.prod(shape), self.pricing.seconds(own) + share * self.pricing.relayout_seconds(copied)
            for operation in operations:
                shape = shape_after(operation, shape)
                if isinstance(operation, Rounds):
                    seconds += share * self.pricing.relayout_seconds(math.prod(shape))
            if isinstance(step, steps.Slice):
                seconds += share * self.pricing.slice_picoseconds(math.prod(shape)) / PER_SECOND
            is_new = isinstance(step, (Relayout, steps.Exchanged))
            yield PlannedStep(
                step=step,
                text=steps.text(None, step, plan.mesh) if is_new else whole.text,
                bytes_received=traffic.bytes_received(own, self.request.devices),
                tile_bytes_before=self.request.bytes_of(before),
                tile_bytes_after=self.request.bytes_of(math.prod(shape)),
                time_s=seconds,
            )

    # Steps

    def priced_steps(
        self, pricing: Pricing, layout: Layout, program: TileProgram, layouts: Sequence[Layout] | None = None
    ) -> tuple[PlannedStep, ...]:
        """Returns the steps of a program that starts at `layout`; pricing: on the program's mesh; layouts: see `lower`."""
        found, behind = [], iter(layouts[1:] if layouts else ())
        shares = _paid_shares(program, pricing)
        for (step, _), share, copied in zip(program.steps, shares, copied_elements(program), strict=True):
            after = next(behind) if layouts and not isinstance(step, Relayout) else steps.apply(layout, step)
            if isinstance(step, steps.Exchanged):
                found.append(self.priced_exchange(step))
            else:
                found.append(
                    PlannedStep(
                        step=step,
                        text=steps.text(layout, step, program.mesh),
                        bytes_received=self.request.bytes_of(steps.received_elements(layout, step)),
                        tile_bytes_before=self.request.bytes_of(layout.tile_elements),
                        tile_bytes_after=self.request.bytes_of(after.tile_elements),
                        time_s=self._seconds(pricing, layout, step, after, copied, share),
                    )
                )
            layout = after
        return tuple(found)

    def _seconds(
        self, pricing: Pricing, before: Layout, step: Step, after: Layout, copied: int = 0, share: float = 1.0
    ) -> float:
        """Returns the time of a step, which copies so many elements; only a share of that is paid for."""
        seconds = share * pricing.relayout_seconds(copied) if copied else 0.0
        match step:
            case steps.AllGather() | steps.AllToAll() | steps.ReduceScatter() | steps.AllReduce():
                seconds += pricing.picoseconds(steps.name(step), step.factors, before.tile_elements) / PER_SECOND
            case steps.Slice():
                seconds += share * pricing.slice_picoseconds(after.tile_elements) / PER_SECOND
            case steps.Permute(_):
                seconds += pricing.permute_picoseconds(before, after, before.tile_elements) / PER_SECOND
        return seconds

    def priced_exchange(self, step: steps.Exchanged) -> PlannedStep:
        """Returns an exchange with its costs, those of a copy into the new tile included."""
        found = step.exchange
        copied_s = self.pricing.relayout_seconds(found.target.tile_elements)
        return PlannedStep(
            step=step,
            text=steps.text(None, step, self.request.mesh),
            bytes_received=self.request.bytes_of(found.received_elements),
            tile_bytes_before=self.request.bytes_of(found.source.tile_elements),
            tile_bytes_after=self.request.bytes_of(found.target.tile_elements),
            time_s=self.pricing.exchange_seconds(found) + copied_s,
        )

    def priced_reorder(self, step: steps.Reorder, elements: int) -> PlannedStep:
        """Returns a permute, between device orders, of tiles of so many elements with its costs."""
        num_bytes = self.request.bytes_of(elements)
        moved = Collective("collective_permute", num_bytes, num_bytes, pairs=step.pairs)
        received = num_bytes * any(a != b for a, b in step.pairs)
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, received, num_bytes, num_bytes, self.pricing.seconds((moved,)))

    def with_joined_copies(self, program: TileProgram, priced: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
        """Returns the steps of a program of several legs, priced leg by leg, with the copies at the ends of legs charged once."""
        found = list(priced)
        for at, (copied, share) in enumerate(zip(copied_elements(program), _paid_shares(program, self.pricing))):
            if any([isinstance(each, Transpose) for each in program.steps[at][1]]):
                found[at] = dataclasses.replace(found[at], time_s=share * self.pricing.relayout_seconds(copied))
        return tuple(found)

    def priced_relayout(self, step: Relayout, before: int, after: int) -> PlannedStep:
        """Returns a copy of tiles of so many elements before and after it with its costs."""
        sizes = (self.request.bytes_of(elements) for elements in (before, after))
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, 0, *sizes, self.pricing.relayout_seconds(max(before, after)))

    # Plans

    def plan_of(
        self,
        program: TileProgram,
        priced: tuple[PlannedStep, ...],
        largest_tile: int,
        is_optimal: bool,
        proved_gap: float | None = None,
    ) -> Plan:
        """Returns the plan that a tile program is.

        Args:
          largest_tile: in elements, before, between and after its steps.
          proved_gap: see `Plan`; None is what the bounds on any method prove.
        """
        asked = self.request
        self.fastest_s = min(self.fastest_s, sum([step.time_s for step in priced]))
        received, sent = bytes_moved(program, asked.bits, asked.devices)
        bound_bytes = asked.bytes_of(self.bound)
        has_loop = any([isinstance(each, Loop) for each in program.operations])  # else it does not matter what is padded
        if asked.bits % 8:  # a tile of packed elements is whole bytes on its way
            priced = self._receiving_whole_bytes(priced, program)
        is_optimal = is_optimal or asked.objective == "bytes" and received <= bound_bytes
        found = Plan(
            mesh=asked.mesh,
            shape=asked.shape,
            bits=asked.bits,
            source=asked.source,
            target=asked.target,
            steps=priced,
            tile_program=program,
            bytes_received=received,
            bytes_sent=sent,
            bound_bytes=bound_bytes,
            largest_tile_bytes=asked.bytes_of(largest_tile),
            peak_bytes=peak_bytes(program, asked.bits, is_padded=has_loop and asked.is_source_padded),
            is_optimal=is_optimal,
            proved_gap=1.0 if is_optimal else proved_gap,
            objective=asked.objective,
            topology=self.pricing.topology.name,
            bound_time_s=self._bound_seconds(),
            reduction=asked.reduction,
            target_mesh=asked.target_mesh,
        )
        return found if found.proved_gap else dataclasses.replace(found, proved_gap=gap_to_bounds(found))

    def _receiving_whole_bytes(self, priced: tuple[PlannedStep, ...], program: TileProgram) -> tuple[PlannedStep, ...]:
        devices = self.request.devices
        by_step = collectives_by_step(program, self.request.bits)
        received = (int(traffic.bytes_received_per_device(own, devices).max()) for own in by_step)
        return tuple(map(_receiving, priced, received))

    def _bound_seconds(self) -> float:
        """Returns what any method takes on the topology, at least."""
        if self._bound_time_s is None:
            asked = self.request
            self._bound_time_s = self._least_seconds() if self.bound else 0.0
            if asked.has_sums:
                self._bound_time_s = max(self._bound_time_s, self.pricing.least_picoseconds(self.bound) / PER_SECOND)
        return self._bound_time_s

    def _least_seconds(self) -> float:
        """Returns what must enter units of the topology, in time."""
        asked = self.request
        if self.pricing.is_flat and not asked.has_sums:
            return self.pricing.flat_bound_seconds(self.bound)
        if asked.target_mesh is None:
            return self.pricing.bound_seconds(asked.shape, asked.source, asked.target)
        ends = both_ends(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)
        boxes = ((side.starts, side.stops) for side in ends)
        return cost.cut_bytes_bound(self.pricing.topology, *boxes, asked.bits).time_s


def _checked_tiles(layouts: Sequence[Layout], target: Layout) -> list[int]:
    """Returns the elements of the tile in each layout. Raises: RuleError where R1 is broken: the last one is not `target`."""
    if layouts[-1] != target:
        raise steps.RuleError(f"R1: the chain ends in {layouts[-1]}, not in {target}")
    return [layout.tile_elements for layout in layouts]


def _paid_shares(program: TileProgram, pricing: Pricing) -> list[float]:
    """Returns for each step what share of its copies has to be paid for: less right before an all_to_all, and in its own step."""
    if not pricing.has_free_copies:
        return [1.0] * len(program.steps)
    shares, paid = [], 1.0
    for step, _ in reversed(program.steps):
        if isinstance(step, steps.AllToAll):
            paid = 1 - pricing.topology.free_before_all_to_all
        elif not _is_copy(step):
            paid = 1.0
        shares.append(paid)
    return shares[::-1]


def _is_copy(step: Step) -> bool:
    return isinstance(step, (Relayout, steps.Slice))


def _layouts(source: Layout, typed: Sequence[Step]) -> list[Layout]:
    """Returns the layouts before, between and after steps."""
    return list(itertools.accumulate(typed, steps.apply, initial=source))


def _receiving(step: PlannedStep, num_bytes: int) -> PlannedStep:
    """Returns the step with what its collectives bring; packed elements are whole bytes on their way."""
    return step if step.bytes_received == num_bytes else dataclasses.replace(step, bytes_received=num_bytes)


def gap_to_bounds(plan: Plan) -> float | None:
    """Returns by what factor any method receives less, or takes less time, at most; None if the bound is 0 and the plan above it."""
    if not plan.collectives:
        return 1.0
    spent, least = (plan.time_s, plan.bound_time_s) if plan.objective == "time" else (plan.bytes_received, plan.bound_bytes)
    if spent <= least:
        return 1.0
    return spent / least if least else None
