# SPDX-License-Identifier: Apache-2.0
"""Makes plans of chains: the layout after each step, its costs, and the operations of every device on its tile."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from ..layouts.blocks import both_ends
from ..layouts.layout import Layout, layout_of
from ..network import bounds, cut_bounds
from ..network.pricing import PER_SECOND, Pricing
from ..programs import chunks, steps, traffic
from ..programs.chain import Chain
from ..programs.peak import peak_bytes
from ..programs.steps import Step
from ..programs.tile_program import (
    Loop,
    Relayout,
    Reshape,
    Resize,
    Rounds,
    TileProgram,
    Transpose,
    before_all_to_all,
    bytes_moved,
    collectives,
    collectives_by_step,
    copied_elements,
    lower,
    shape_after,
)
from ..programs.traffic import Collective
from .objective import objective
from .plan import Plan, PlannedStep
from .request import Request


class Costing:
    """Computes the costs of chains and other ways to fulfil one request.

    Attributes:
      fastest_s: the least time of all plans priced so far.
      refined_ends: the request's source and target in refined factors, once they are known.
    """

    def __init__(self, request: Request, pricing: Pricing):
        self.request = request
        self.pricing = pricing
        self.objective = objective(request.objective)
        self.fastest_s = math.inf
        self.refined_ends: tuple[Layout, Layout] | None = None

    @functools.cached_property
    def bound(self) -> int:
        """Returns the number of elements that the busiest device must receive, whatever the method.

        A caller that knows the number already may set it.
        """
        asked = self.request
        return bounds.received_elements_bound(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)

    def of_chain(
        self,
        chain: Chain,
        is_optimal: bool = False,
        proved_gap: float | None = None,
        *,
        keeps_tiles_small: bool = True,
    ) -> Plan:
        """Returns the plan of a chain. The typing rules (R1), not the search, give the layout after each step.

        Args:
          proved_gap: see `Plan`. If it is None, the gap is computed from the bounds on any method.
          keeps_tiles_small: whether R2 is checked. A chain that breaks R2 may be priced, but should not run.
        """
        self._check_ends(chain)
        tiles = [layout.tile_elements for layout in chain.layouts]
        if keeps_tiles_small and max(tiles) > max(tiles[0], tiles[-1], self.request.tile_limit_elements):
            raise steps.RuleError(f"R2: tiles {tiles}")
        program = self._lowered(chain)
        priced = self.priced_steps(self.pricing, program, chain)
        found = self.plan_of(program, priced, max(tiles), is_optimal, proved_gap)
        if self.request.bits % 8 and not self.objective.is_by_time:
            return self._proved_in_bytes(found, chain.received_elements)
        return found

    def _check_ends(self, chain: Chain) -> None:
        """Raises: RuleError if the chain does not lead from the request's source to its target (R1)."""
        ends = chain.source, chain.target
        if ends == self.refined_ends:
            return
        for end, wanted in zip(ends, self.ends):
            # Most chains have the factors of the request; the others have pieces of them.
            if end != wanted and end.with_whole_factors() != wanted.with_whole_factors():
                raise steps.RuleError(f"R1: the chain has {end} at an end, not {wanted}")

    @functools.cached_property
    def ends(self) -> tuple[Layout, Layout]:
        """Returns the layouts of the request's source and target, in whole factors."""
        asked = self.request
        source = layout_of(asked.mesh, asked.shape, asked.source)
        return source, layout_of(asked.mesh, asked.shape, asked.target)

    def _lowered(self, chain: Chain) -> TileProgram:
        return lower(self.request.mesh, chain.source, chain.steps, self.request.reduction, chain.layouts)

    def of_cheaper_chain(self, chain: Chain, than: Plan) -> Plan | None:
        """Returns the plan of a chain without exchanges; None if the chain is not cheaper than the plan `than`.

        The costs that decide this are computed first: the collectives, then the copies, then the rest of the plan.
        """
        most = self.key(than)
        if any(bound >= most for bound in self.objective.bounds(self, chain)):
            return None
        found = self.of_chain(chain)
        return found if self.key(found) < most else None

    def key(self, plan: Plan) -> tuple:
        """Returns the numbers by which plans are compared; the cheapest plan has the smallest."""
        return self.objective.key(plan)

    def may_permute(self, than: Plan, head: Chain) -> bool:
        """Returns whether a chain that begins with `head` and then permutes may be cheaper than the plan `than`.

        If the target's tile is larger, a gather of all or a part of the missing elements follows the permute.
        """
        tile, target_tile = head.target.tile_elements, math.prod(than.tile_program.out_shape)
        moves = [step for step in head if isinstance(step, steps.AllToAll)]  # they keep the size of the tile
        return self.objective.may_permute(self, than, tile, max(0, target_tile - tile), moves)

    def least_received(self, chain: Chain) -> tuple[int, int]:
        """Returns a lower bound on the bytes that the busiest device receives, and the number of collectives.

        The bound counts only the largest permute, since different devices may be the busiest in different permutes.
        """
        received, permuted = 0, 0
        for before, step, after in chain.moves:
            if isinstance(step, steps.Permute):
                permuted = max(permuted, self.request.bytes_of(before.tile_elements) if after != before else 0)
            else:
                received += self.bytes_received(before.tile_elements, step)
        return received + permuted, chain.collectives

    def bytes_received(self, tile: int, step: Step) -> int:
        """Returns the bytes that a device receives in a collective of groups; 0 for other steps.

        Args:
          tile: the elements of the tile before the step. The bits of a packed tile are rounded up to bytes.
        """
        if not isinstance(step, steps.GROUPED):
            return 0
        kind = steps.name(step)
        num_bytes, size = self.request.bytes_of(tile), math.prod([factor.size for factor in step.factors])
        return traffic.received_in_group(Collective(kind, num_bytes, num_bytes), size) if size > 1 else 0

    def _proved_in_bytes(self, plan: Plan, elements: int) -> Plan:
        """Returns the plan with a proof that holds in bytes.

        The search counts elements, but the bits of a packed tile are rounded up to bytes when the tile is sent.
        """
        least = self.request.bytes_of(elements)
        if plan.bytes_received <= max(least, plan.bound_bytes) or plan.proved_gap is None:
            return plan
        return dataclasses.replace(plan, is_optimal=False, proved_gap=plan.proved_gap * plan.bytes_received / least)

    def least_seconds(self, chain: Chain) -> float:
        """Returns the time of a chain without its copies, which are not known before the chain is lowered."""
        return sum(self._seconds(self.pricing, *move) for move in chain.moves)

    def seconds_with_copies(self, chain: Chain) -> float:
        """Returns the time of a chain, including the copies of its tile program."""
        layouts, program = chain.layouts, self._lowered(chain)
        at = [0, *itertools.accumulate([not isinstance(step, Relayout) for step, _ in program.steps])]
        copied = copied_elements(program, [layouts[each].tile_elements for each in at[1:]])
        shares = _paid_shares(program, self.pricing)
        seconds = 0.0
        for (step, _), share, elements, (before, after) in zip(program.steps, shares, copied, itertools.pairwise(at)):
            seconds += self._seconds(self.pricing, layouts[before], step, layouts[after], elements, share)
        return seconds

    def of_no_elements(self) -> Plan:
        """Returns the plan for an array without elements; the plan changes the shape of the tile, if anything."""
        asked = self.request
        before, after = asked.tile_shapes
        reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
        operations = ((reshape, (Reshape(after),)),) if before != after else ()
        priced = tuple(PlannedStep(step, steps.text(None, step, asked.mesh), 0, 0, 0, 0.0) for step, _ in operations)
        return self.plan_of(TileProgram(asked.mesh, before, after, operations), priced, 0, True)

    def in_chunks(self, plan: Plan, schedule: chunks.Schedule) -> Iterator[Plan]:
        """Yields versions of a plan in more chunks; none if its steps touch all dimensions. See `chunks.py`."""
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
        copied_s = self.pricing.relayout_seconds(before) + self.pricing.relayout_seconds(
            after
        )  # taken out, put into place
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
        """Yields the steps of a plan with their costs on one chunk."""
        shape, moved = body.in_shape, iter(collectives(body, plan.bits))
        shares = _paid_shares(body, self.pricing)
        for whole, (step, operations), share, copied in zip(
            plan.steps, body.steps, shares, copied_elements(body), strict=True
        ):
            own = tuple(itertools.islice(moved, steps.collectives(step)))
            before, seconds = (
                math.prod(shape),
                self.pricing.seconds(own) + share * self.pricing.relayout_seconds(copied),
            )
            for operation in operations:
                held, shape = math.prod(shape), shape_after(operation, shape)
                if isinstance(operation, Rounds):
                    seconds += share * self.pricing.relayout_seconds(math.prod(shape))
                elif isinstance(operation, Resize):
                    seconds += self.pricing.relayout_seconds(max(held, math.prod(shape)))
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

    def priced_steps(self, pricing: Pricing, program: TileProgram, chain: Chain) -> tuple[PlannedStep, ...]:
        """Returns the steps of a chain's tile program with their costs.

        Args:
          pricing: prices steps on the mesh of the program.
        """
        found, layout, behind = [], chain.source, iter(chain.layouts[1:])
        shares = _paid_shares(program, pricing)
        for (step, _), share, copied in zip(program.steps, shares, copied_elements(program), strict=True):
            after = layout if isinstance(step, Relayout) else next(behind)
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
        """Returns the time of a step.

        Args:
          copied: the elements that the step copies. share: the part of the copies' time that counts.
        """
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
        """Returns an exchange with its costs, including the copy into the new tile."""
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
        """Returns a permute between two device orders with its costs, for tiles of the given number of elements."""
        num_bytes = self.request.bytes_of(elements)
        moved = Collective("collective_permute", num_bytes, num_bytes, pairs=step.pairs)
        received = num_bytes * any(a != b for a, b in step.pairs)
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, received, num_bytes, num_bytes, self.pricing.seconds((moved,)))

    def with_joined_copies(self, program: TileProgram, priced: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
        """Returns the priced steps of a program of several legs, with each copy at the joint of two legs counted
        once."""
        found = list(priced)
        for at, (copied, share) in enumerate(zip(copied_elements(program), _paid_shares(program, self.pricing))):
            if any([isinstance(each, Transpose) for each in program.steps[at][1]]):
                found[at] = dataclasses.replace(found[at], time_s=share * self.pricing.relayout_seconds(copied))
        return tuple(found)

    def priced_relayout(self, step: Relayout, before: int, after: int) -> PlannedStep:
        """Returns a relayout with its costs, for tiles of the given numbers of elements before and after it."""
        held, wanted = (self.request.bytes_of(elements) for elements in (before, after))
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, 0, held, wanted, self.pricing.relayout_seconds(max(before, after)))

    # Plans

    def plan_of(
        self,
        program: TileProgram,
        priced: tuple[PlannedStep, ...],
        largest_tile: int,
        is_optimal: bool,
        proved_gap: float | None = None,
    ) -> Plan:
        """Returns the plan of a tile program.

        Args:
          largest_tile: the elements of the largest tile before, between and after the steps.
          proved_gap: see `Plan`. If it is None, the gap is computed from the bounds on any method.
        """
        asked = self.request
        self.fastest_s = min(self.fastest_s, sum([step.time_s for step in priced]))
        received, sent = bytes_moved(program, asked.bits, asked.devices)
        bound_bytes = asked.bytes_of(self.bound)
        has_loop = any(
            [isinstance(each, Loop) for each in program.operations]
        )  # else it does not matter what is padded
        if asked.bits % 8:  # a tile of packed elements is whole bytes on its way
            priced = self._receiving_whole_bytes(priced, program)
        is_optimal = is_optimal or self.objective.proves(received, bound_bytes)
        found = Plan(
            request=asked,
            steps=priced,
            tile_program=program,
            bytes_received=received,
            bytes_sent=sent,
            bound_bytes=bound_bytes,
            largest_tile_bytes=asked.bytes_of(largest_tile),
            peak_bytes=peak_bytes(program, asked.bits, is_padded=has_loop and asked.is_source_padded),
            is_optimal=is_optimal,
            proved_gap=1.0 if is_optimal else proved_gap,
            bound_time_s=self.bound_time_s,
        )
        return found if found.proved_gap else dataclasses.replace(found, proved_gap=gap_to_bounds(found))

    def _receiving_whole_bytes(self, priced: tuple[PlannedStep, ...], program: TileProgram) -> tuple[PlannedStep, ...]:
        devices = self.request.devices
        by_step = collectives_by_step(program, self.request.bits)
        received = (int(traffic.bytes_received_per_device(own, devices).max()) for own in by_step)
        return tuple(map(_receiving, priced, received))

    @functools.cached_property
    def bound_time_s(self) -> float:
        """Returns a lower bound on the time of any method on the topology."""
        least_s = self._least_seconds() if self.bound else 0.0
        if self.request.has_sums:
            return max(least_s, self.pricing.least_picoseconds(self.bound) / PER_SECOND)
        return least_s

    def take_bounds_of(self, other: Costing) -> None:
        """Takes the bounds of a request that differs in its objective only, since no bound depends on that."""
        self.bound, self.bound_time_s = other.bound, other.bound_time_s

    def _least_seconds(self) -> float:
        """Returns a lower bound on the time in which the necessary bytes enter the units of the topology."""
        asked = self.request
        if self.pricing.is_flat and not asked.has_sums:
            return self.pricing.flat_bound_seconds(self.bound)
        if asked.target_mesh is None:
            return self.pricing.bound_seconds(asked.shape, asked.source, asked.target)
        ends = both_ends(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)
        held, wanted = ((side.starts, side.stops) for side in ends)
        return cut_bounds.cut_bytes_bound(self.pricing.topology, held, wanted, asked.bits).time_s


def least_costs(request: Request) -> tuple[int, float]:
    """Returns what no method goes below: the bytes that the busiest device receives, and the seconds on the topology.

    Raises: TopologyError if the topology does not fit the devices.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.sharding import Sharding
      >>> ends = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')
      >>> least_costs(Request.of(Mesh.parse("x=4"), (8, 8), 32, *ends))[0]
      48
    """
    costing = Costing(request, Pricing(request.topology, request.widest_mesh, request.bits))
    return request.bytes_of(costing.bound), costing.bound_time_s


def _paid_shares(program: TileProgram, pricing: Pricing) -> list[float]:
    """Returns for each step the share of its copies' time that counts.

    The share is below 1 in an all_to_all and in the copies directly before it, where the topology says so.
    """
    if not pricing.has_free_copies:
        return [1.0] * len(program.steps)
    paid = 1 - pricing.topology.free_before_all_to_all
    return [paid if each else 1.0 for each in before_all_to_all(program)]


def _receiving(step: PlannedStep, num_bytes: int) -> PlannedStep:
    """Returns the step with another number of received bytes."""
    return step if step.bytes_received == num_bytes else dataclasses.replace(step, bytes_received=num_bytes)


def gap_to_bounds(plan: Plan) -> float | None:
    """Returns the largest factor by which any method could cost less than the plan; None if nothing is proved.

    The factor is the cost of the plan over its bound. Nothing is proved if the bound is 0 and the cost is not.
    """
    if not plan.collectives:
        return 1.0
    spent, least = objective(plan.objective).spent(plan)
    if spent <= least:
        return 1.0
    return spent / least if least else None
