# SPDX-License-Identifier: Apache-2.0
"""From typed steps to a plan: where each step leads, what it costs, and what every device does with its tile."""

from __future__ import annotations

from collections.abc import Sequence
import math

from . import bounds, cost, steps, traffic
from .blocks import both_ends
from .layout import Layout
from .planned import Plan, PlannedStep
from .pricing import PER_SECOND, Pricing
from .problem import Problem
from .request import Request
from .steps import Step
from .tile_program import Relayout, Reshape, TileProgram, Transpose, collectives, lower
from .traffic import Collective


class Costing:
    """Prices ways to fulfil one request.

    Attributes:
      bound: the elements that the busiest device must receive whatever the method.
      fastest_s: the least time of all plans priced so far.
    """

    def __init__(self, request: Request, pricing: Pricing):
        self.request = request
        self.pricing = pricing
        sides = (request.source, request.target, request.target_mesh)
        self.bound = bounds.received_elements_bound(request.mesh, request.shape, *sides)
        self.fastest_s = math.inf
        self._bound_time_s: float | None = None

    def of_chain(self, problem: Problem, typed: Sequence[Step], is_optimal: bool) -> Plan:
        """Returns the plan of a chain; R1: the rules, not the search, say where each step leads."""
        source = problem.source
        tiles = self.checked_tiles(source, problem.target, typed)
        if max(tiles) > max(tiles[0], tiles[-1]):
            raise steps.RuleError(f"R2: tiles {tiles}")
        program = lower(problem.mesh, source, typed, self.request.reduction)
        return self.plan_of(program, self.priced_steps(self.pricing, source, program), max(tiles), is_optimal)

    @staticmethod
    def checked_tiles(source: Layout, target: Layout, typed: Sequence[Step]) -> list[int]:
        """Returns the elements of the tile before, between and after steps. Raises: RuleError where R1 is broken."""
        layouts = [source]
        for step in typed:
            layouts.append(steps.apply(layouts[-1], step))
        if layouts[-1] != target:
            raise steps.RuleError(f"R1: the chain ends in {layouts[-1]}, not in {target}")
        return [layout.tile_elements for layout in layouts]

    def of_no_elements(self) -> Plan:
        """Returns the plan for an array of size 0: at most the tile's shape changes."""
        asked = self.request
        before, after = asked.tile_shapes
        reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
        operations = ((reshape, (Reshape(after),)),) if before != after else ()
        priced = tuple(PlannedStep(step, steps.text(None, step, asked.mesh), 0, 0, 0, 0.0) for step, _ in operations)
        return self.plan_of(TileProgram(asked.mesh, before, after, operations), priced, 0, True)

    # Steps

    def priced_steps(self, pricing: Pricing, layout: Layout, program: TileProgram) -> tuple[PlannedStep, ...]:
        """Returns the steps of a program that starts at `layout`; pricing: on the program's mesh."""
        found = []
        for step, operations in program.steps:
            after = steps.apply(layout, step)
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
                        time_s=self._seconds(pricing, layout, step, after, operations),
                    )
                )
            layout = after
        return tuple(found)

    def _seconds(self, pricing: Pricing, before: Layout, step: Step, after: Layout, operations) -> float:
        copies = sum(isinstance(each, Transpose) for each in operations)
        seconds = copies * pricing.relayout_seconds(after.tile_elements)
        match step:
            case steps.AllGather() | steps.AllToAll() | steps.ReduceScatter() | steps.AllReduce():
                seconds += pricing.picoseconds(steps.name(step), step.factors, before.tile_elements) / PER_SECOND
            case steps.Permute(_):
                seconds += pricing.permute_picoseconds(before, after, before.tile_elements) / PER_SECOND
        return seconds

    def priced_exchange(self, step: steps.Exchanged) -> PlannedStep:
        """Returns an exchange with its costs, those of a copy into the new tile included."""
        found, bits = step.exchange, self.request.bits
        copied_s = self.pricing.relayout_seconds(found.target.tile_elements)
        return PlannedStep(
            step=step,
            text=steps.text(None, step, self.request.mesh),
            bytes_received=self.request.bytes_of(found.received_elements),
            tile_bytes_before=self.request.bytes_of(found.source.tile_elements),
            tile_bytes_after=self.request.bytes_of(found.target.tile_elements),
            time_s=self.pricing.seconds(found.collectives(bits)) + copied_s,
        )

    def priced_reorder(self, step: steps.Reorder, elements: int) -> PlannedStep:
        """Returns a permute, between device orders, of tiles of so many elements with its costs."""
        num_bytes = self.request.bytes_of(elements)
        moved = Collective("collective_permute", num_bytes, num_bytes, pairs=step.pairs)
        received = num_bytes * any(a != b for a, b in step.pairs)
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, received, num_bytes, num_bytes, self.pricing.seconds((moved,)))

    def priced_relayout(self, step: Relayout, before: int, after: int) -> PlannedStep:
        """Returns a copy of tiles of so many elements before and after it with its costs."""
        sizes = (self.request.bytes_of(elements) for elements in (before, after))
        text = steps.text(None, step, self.request.mesh)
        return PlannedStep(step, text, 0, *sizes, self.pricing.relayout_seconds(max(before, after)))

    # Plans

    def plan_of(self, program: TileProgram, priced: tuple[PlannedStep, ...], largest_tile: int, is_optimal: bool) -> Plan:
        """Returns the plan that a tile program is; largest_tile: in elements, before, between and after its steps."""
        asked = self.request
        self.fastest_s = min(self.fastest_s, sum(step.time_s for step in priced))
        moved = collectives(program, asked.bits)
        received, bound_bytes = traffic.bytes_received(moved, asked.devices), asked.bytes_of(self.bound)
        return Plan(
            mesh=asked.mesh,
            shape=asked.shape,
            bits=asked.bits,
            source=asked.source,
            target=asked.target,
            steps=priced,
            tile_program=program,
            bytes_received=received,
            bytes_sent=traffic.bytes_sent(moved, asked.devices),
            bound_bytes=bound_bytes,
            largest_tile_bytes=asked.bytes_of(largest_tile),
            peak_bytes=_peak_bytes(priced, asked.bytes_of(math.prod(program.in_shape))),
            is_optimal=is_optimal or asked.objective == "bytes" and received <= bound_bytes,
            objective=asked.objective,
            topology=self.pricing.topology.name,
            bound_time_s=self._bound_seconds(),
            reduction=asked.reduction,
            target_mesh=asked.target_mesh,
        )

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
        if asked.target_mesh is None:
            return self.pricing.bound_seconds(asked.shape, asked.source, asked.target)
        ends = both_ends(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)
        boxes = ((side.starts, side.stops) for side in ends)
        return cost.cut_bytes_bound(self.pricing.topology, *boxes, asked.bits).time_s


def _peak_bytes(priced: tuple[PlannedStep, ...], source_bytes: int) -> int:
    """Returns the most that a step holds at once: the caller's source tile, the step's operand and its result."""
    held = [source_bytes + (0 if i == 0 else s.tile_bytes_before) + s.tile_bytes_after for i, s in enumerate(priced)]
    return max(held, default=source_bytes)
