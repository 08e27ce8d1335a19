# SPDX-License-Identifier: Apache-2.0
"""From typed steps to a plan: where each step leads, what it costs, and what every device does with its tile."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

from . import bounds, steps, traffic
from .exchange import Exchange
from .layout import Layout
from .planned import Plan, PlannedStep
from .pricing import PER_SECOND, Pricing
from .problem import Problem
from .request import Request
from .steps import Step
from .tile_program import Relayout, Reshape, Rounds, TileProgram, Transpose, collectives, lower


class Costing:
    """Prices ways to fulfil one request.

    Attributes:
      bound: the elements that the busiest device must receive whatever the method.
    """

    def __init__(self, request: Request, pricing: Pricing):
        self.request = request
        self.pricing = pricing
        self.bound = bounds.received_elements_bound(request.mesh, request.shape, request.source, request.target)
        self._bound_time_s: float | None = None

    def of_chain(self, problem: Problem, typed: Sequence[Step], is_optimal: bool, proved_gap: float | None = None) -> Plan:
        """Returns the plan of a chain; R1: the rules, not the search, say where each step leads.

        Args:
          proved_gap: see `Plan`; None is what the bounds on any method prove.
        """
        source, layouts = problem.source, [problem.source]
        for step in typed:
            layouts.append(steps.apply(layouts[-1], step))
        if layouts[-1] != problem.target:
            raise steps.RuleError(f"R1: the chain ends in {layouts[-1]}, not in {problem.target}")
        tiles = [layout.tile_elements for layout in layouts]
        if max(tiles) > max(tiles[0], tiles[-1]):
            raise steps.RuleError(f"R2: tiles {tiles}")
        program = lower(problem.mesh, source, typed, self.request.reduction)
        return self._plan(program, self._priced_steps(source, program), max(tiles), is_optimal, proved_gap)

    def of_exchange(self, found: Exchange) -> Plan:
        """Returns the plan that is one exchange, between placements that no chain of layouts connects."""
        step = steps.Exchanged(found, None)
        mesh = self.request.mesh
        program = TileProgram(mesh, found.source.tile_shape, found.target.tile_shape, ((step, (Rounds(found),)),))
        return self._plan(program, (self._priced_exchange(step),), found.largest_tile_elements, False)

    def of_no_elements(self) -> Plan:
        """Returns the plan for an array of size 0: at most the tile's shape changes."""
        asked = self.request
        before, after = (side.tile_shape(asked.mesh, asked.shape) for side in (asked.source, asked.target))
        reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
        operations = ((reshape, (Reshape(after),)),) if before != after else ()
        priced = tuple(PlannedStep(step, steps.text(None, step, asked.mesh), 0, 0, 0, 0.0) for step, _ in operations)
        return self._plan(TileProgram(asked.mesh, before, after, operations), priced, 0, True)

    # Steps

    def _priced_steps(self, layout: Layout, program: TileProgram) -> tuple[PlannedStep, ...]:
        found = []
        for step, operations in program.steps:
            after = steps.apply(layout, step)
            if isinstance(step, steps.Exchanged):
                found.append(self._priced_exchange(step))
            else:
                found.append(
                    PlannedStep(
                        step=step,
                        text=steps.text(layout, step, program.mesh),
                        bytes_received=self.request.bytes_of(steps.received_elements(layout, step)),
                        tile_bytes_before=self.request.bytes_of(layout.tile_elements),
                        tile_bytes_after=self.request.bytes_of(after.tile_elements),
                        time_s=self._seconds(layout, step, after, operations),
                    )
                )
            layout = after
        return tuple(found)

    def _seconds(self, before: Layout, step: Step, after: Layout, operations) -> float:
        copies = sum(isinstance(each, Transpose) for each in operations)
        seconds = copies * self.pricing.relayout_seconds(after.tile_elements)
        match step:
            case steps.AllGather() | steps.AllToAll() | steps.ReduceScatter() | steps.AllReduce():
                seconds += self.pricing.picoseconds(steps.name(step), step.factors, before.tile_elements) / PER_SECOND
            case steps.Permute(_):
                seconds += self.pricing.permute_picoseconds(before, after, before.tile_elements) / PER_SECOND
        return seconds

    def _priced_exchange(self, step: steps.Exchanged) -> PlannedStep:
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

    # Plans

    def _plan(
        self,
        program: TileProgram,
        priced: tuple[PlannedStep, ...],
        largest_tile: int,
        is_optimal: bool,
        proved_gap: float | None = None,
    ) -> Plan:
        asked = self.request
        moved = collectives(program, asked.bits)
        received, bound_bytes = traffic.bytes_received(moved, asked.mesh.size), asked.bytes_of(self.bound)
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
            bytes_sent=traffic.bytes_sent(moved, asked.mesh.size),
            bound_bytes=bound_bytes,
            largest_tile_bytes=asked.bytes_of(largest_tile),
            peak_bytes=_peak_bytes(priced, asked.bytes_of(math.prod(program.in_shape))),
            is_optimal=is_optimal,
            proved_gap=1.0 if is_optimal else proved_gap,
            objective=asked.objective,
            topology=self.pricing.topology.name,
            bound_time_s=self._bound_seconds(),
            reduction=asked.reduction,
        )
        if found.proved_gap is None:
            gap = found.time_s / found.bound_time_s if asked.objective == "time" and found.bound_time_s else found.ratio_to_bound
            found = dataclasses.replace(found, proved_gap=gap)
        return found

    def _bound_seconds(self) -> float:
        """Returns what any method takes on the topology, at least."""
        if self._bound_time_s is None:
            asked = self.request
            if self.pricing.is_flat and not asked.has_sums:
                self._bound_time_s = self.pricing.flat_bound_seconds(self.bound)
                return self._bound_time_s
            self._bound_time_s = self.pricing.bound_seconds(asked.shape, asked.source, asked.target) if self.bound else 0.0
            if asked.has_sums:
                self._bound_time_s = max(self._bound_time_s, self.pricing.least_picoseconds(self.bound) / PER_SECOND)
        return self._bound_time_s


def _peak_bytes(priced: tuple[PlannedStep, ...], source_bytes: int) -> int:
    """Returns the most that a step holds at once: the caller's source tile, the step's operand and its result."""
    held = [source_bytes + (0 if i == 0 else s.tile_bytes_before) + s.tile_bytes_after for i, s in enumerate(priced)]
    return max(held, default=source_bytes)
