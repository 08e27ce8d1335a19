# SPDX-License-Identifier: Apache-2.0
"""Canonical requests: the names of axes, axes of size 1, and the way a sharding is written do not matter.

Requests that differ only in these have the same canonical request. Its plan, with the original names, is the plan of
each of them. So a plan depends neither on names nor on which of these requests came first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ..layouts.layout import Factor, Layout, unreduced_factors, whole_factors
from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding
from ..plans.plan import Plan, PlannedStep
from ..plans.request import Request
from ..programs import steps
from ..programs.steps import Step
from ..programs.tile_program import (
    Gather,
    KeepFirst,
    KeepOwn,
    Loop,
    On,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Swap,
    TakeOwn,
    TileProgram,
)

_NAME = re.compile(r"axis\d{2,}")


def canonical(request: Request) -> Request:
    """Returns the request with axes named by position and without axes of size 1; unchanged if it has two meshes.

    Example:
      >>> from ..network.topology import Topology
      >>> mesh = Mesh.parse("one=1,model=4")
      >>> ends = Sharding.parse('[{"model":(1)2, "model":(2)2}]'), Sharding.parse('[{"one"}]')
      >>> same = canonical(Request(mesh, (8,), 32, *ends, "bytes", Topology.parse("uniform"), False, "sum"))
      >>> print(same.mesh, same.source, same.target)
      <["axis00"=4]> [{"axis00"}] [{}]
    """
    if request.target_mesh is not None:
        return request
    names = _names(request.mesh)
    axes = tuple([(names[name], size) for name, size in request.mesh.axes if size > 1])
    source, target = [_renamed_sharding(request.mesh, side, names) for side in (request.source, request.target)]
    return replace(request, mesh=Mesh(axes, request.mesh.device_ids), source=source, target=target)


def _names(mesh: Mesh) -> dict[str, str]:
    """Returns the canonical name of each axis of size above 1; in alphabetical order they are in the mesh's order."""
    return {name: f"axis{position:02}" for position, name in enumerate([name for name, size in mesh.axes if size > 1])}


def _renamed_sharding(mesh: Mesh, side: Sharding, names: dict[str, str]) -> Sharding:
    sizes = dict(mesh.axes)

    def refs(factors) -> tuple[AxisRef, ...]:
        return tuple(
            [
                AxisRef(names[axis]) if size == sizes[axis] else AxisRef(names[axis], pre, size)
                for axis, pre, size in factors
            ]
        )

    unreduced = sorted(unreduced_factors(mesh, side), key=lambda factor: (names[factor.axis], factor.pre))
    return Sharding(
        tuple([refs(factors) if factors else () for factors in whole_factors(mesh, side)]), unreduced=refs(unreduced)
    )


def with_names_of(request: Request, plan: Plan) -> Plan:
    """Returns the plan of a request, made from the plan of its canonical request."""
    if request.target_mesh is not None:
        return plan
    names = _Names({new: old for old, new in _names(request.mesh).items()})
    program = names.program(request.mesh, plan.tile_program)
    named = tuple(map(names.planned_step, plan.steps))
    return replace(plan, request=request, steps=named, tile_program=program)


def canonical_steps(mesh: Mesh, typed: Iterable[Step]) -> tuple[Step, ...]:
    """Returns the steps of a plan on a mesh, with the axis names of its canonical request."""
    names = _Names(_names(mesh))
    return tuple(map(names.step, typed))


class _Names:
    """Renames the axes in the parts of a plan."""

    def __init__(self, names: dict[str, str]):
        self.names = names
        self.of_factor: dict[Factor, Factor] = {}
        self.of_step: dict[int, Step] = {}  # by identity: the steps of a plan are those of its program

    def text(self, text: str) -> str:
        return _NAME.sub(lambda name: self.names[name[0]], text)

    def factor(self, factor: Factor) -> Factor:
        """Returns the renamed factor; axes of a mesh that was made for some steps only keep their names."""
        found = self.of_factor.get(factor)
        if found is None:
            axis, pre, size = factor
            found = self.of_factor[factor] = Factor(self.names.get(axis, axis), pre, size)
        return found

    def factors(self, factors) -> tuple[Factor, ...]:
        return tuple(map(self.factor, factors))

    def moves(self, moves) -> tuple:
        return tuple([(self.factor(factor), slot) for factor, slot in moves])

    def layout(self, layout: Layout) -> Layout:
        return Layout(layout.shape, self.moves(layout.owners), self.factors(layout.unreduced))

    def step(self, step: Step) -> Step:
        found = self.of_step.get(id(step))
        if found is None:
            found = self.of_step[id(step)] = self._named(step)
        return found

    def _named(self, step: Step) -> Step:
        match step:
            case steps.Slice(moves) | steps.AllToAll(moves) | steps.ReduceScatter(moves):
                return type(step)(self.moves(moves))
            case steps.AllGather(factors) | steps.AllReduce(factors) | steps.ToUnreduced(factors):
                return type(step)(self.factors(factors))
            case steps.Permute(after):
                return steps.Permute(self.layout(after))
            case steps.Exchanged(exchange, after):
                return steps.Exchanged(exchange, after and self.layout(after))
            case steps.Chunked(steps=inside):
                return replace(step, steps=tuple(map(self.step, inside)))
        return step

    def planned_step(self, planned: PlannedStep) -> PlannedStep:
        inside = tuple(map(self.planned_step, planned.inside))
        costs = planned.bytes_received, planned.tile_bytes_before, planned.tile_bytes_after, planned.time_s
        return PlannedStep(self.step(planned.step), self.text(planned.text), *costs, inside)

    def program(self, mesh: Mesh, program: TileProgram) -> TileProgram:
        named = tuple(
            [
                (self.step(step), tuple([self.operation(mesh, each) for each in operations]))
                for step, operations in program.steps
            ]
        )
        return TileProgram(mesh, program.in_shape, program.out_shape, named, program.reduction)

    def operation(self, mesh: Mesh, operation: Operation) -> Operation:
        match operation:
            case TakeOwn(picks) | KeepOwn(picks):
                return replace(operation, picks=tuple((axis, self.factor(factor)) for axis, factor in picks))
            case (
                Gather(factors)
                | Swap(factors)
                | Reduce(factors)
                | ReduceOwn(factors)
                | PutOwn(factors)
                | KeepFirst(factors)
            ):
                return replace(operation, factors=self.factors(factors))
            case Loop(body=body):
                return replace(operation, body=self.program(mesh, body))
            case On(on):
                return On(Mesh(tuple((self.names.get(name, name), size) for name, size in on.axes), on.device_ids))
        return operation
