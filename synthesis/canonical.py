# SPDX-License-Identifier: Apache-2.0
"""Canonical requests: what axes are called does not matter, nor do axes of size 1, nor how a sharding is written.

Requests that differ in these alone have one canonical request, whose plan, with the names put back, is the plan of each. So the
plan of a request does not depend on names, nor on which of them was asked for first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
import re

from . import steps
from .layout import Factor, Layout, unreduced_factors, whole_factors
from .mesh import Mesh
from .planned import Plan, PlannedStep
from .request import Request
from .sharding import AxisRef, Sharding
from .steps import Step
from .tile_program import Gather, KeepFirst, Loop, On, Operation, PutOwn, Reduce, ReduceOwn, Swap, TakeOwn, TileProgram

_NAME = re.compile(r"axis\d{2,}")


def canonical(request: Request) -> Request:
    """Returns the request with axes named by their position, without axes of size 1; as it is where meshes are two.

    Example:
      >>> from .topology import Topology
      >>> mesh, ends = Mesh.parse("one=1,model=4"), (Sharding.parse('[{"model":(1)2, "model":(2)2}]'), Sharding.parse('[{"one"}]'))
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
            [AxisRef(names[axis]) if size == sizes[axis] else AxisRef(names[axis], pre, size) for axis, pre, size in factors]
        )

    unreduced = sorted(unreduced_factors(mesh, side), key=lambda factor: (names[factor.axis], factor.pre))
    return Sharding(tuple([refs(factors) if factors else () for factors in whole_factors(mesh, side)]), unreduced=refs(unreduced))


def with_names_of(request: Request, plan: Plan) -> Plan:
    """Returns the plan of a request, given that of its canonical request. Texts name axes in the mesh's order."""
    if request.target_mesh is not None:
        return plan
    names = _Names({new: old for old, new in _names(request.mesh).items()})
    program = names.program(request.mesh, plan.tile_program)
    named = tuple(map(names.planned_step, plan.steps))
    return replace(plan, mesh=request.mesh, source=request.source, target=request.target, steps=named, tile_program=program)


def canonical_steps(mesh: Mesh, typed: Iterable[Step]) -> tuple[Step, ...]:
    """Returns the steps of a plan on a mesh in the names of its canonical request."""
    names = _Names(_names(mesh))
    return tuple(map(names.step, typed))


class _Names:
    """Puts other names to the axes of whatever a plan consists of."""

    def __init__(self, names: dict[str, str]):
        self.names = names
        self.of_factor: dict[Factor, Factor] = {}
        self.of_step: dict[int, Step] = {}  # by identity: the steps of a plan are those of its program

    def text(self, text: str) -> str:
        return _NAME.sub(lambda name: self.names[name[0]], text)

    def factor(self, factor: Factor) -> Factor:
        """Returns the factor; those of a mesh that was made for some steps keep their names."""
        found = self.of_factor.get(factor)
        if found is None:
            axis, pre, size = factor
            found = self.of_factor[factor] = Factor(self.names.get(axis, axis), pre, size)
        return found

    def factors(self, factors) -> tuple[Factor, ...]:
        return tuple(map(self.factor, factors))

    def moves(self, moves) -> tuple:
        return tuple([(self.factor(factor), slot) for factor, slot in moves])

    def layout(self, layout: Layout | None) -> Layout | None:
        return layout and Layout(layout.shape, self.moves(layout.owners), self.factors(layout.unreduced))

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
                return steps.Exchanged(exchange, self.layout(after))
            case steps.Chunked(steps=inside):
                return replace(step, steps=tuple(map(self.step, inside)))
        return step

    def planned_step(self, planned: PlannedStep) -> PlannedStep:
        inside = tuple(map(self.planned_step, planned.inside))
        costs = planned.bytes_received, planned.tile_bytes_before, planned.tile_bytes_after, planned.time_s
        return PlannedStep(self.step(planned.step), self.text(planned.text), *costs, inside)

    def program(self, mesh: Mesh, program: TileProgram) -> TileProgram:
        named = tuple([(self.step(step), tuple([self.operation(mesh, each) for each in operations])) for step, operations in program.steps])
        return TileProgram(mesh, program.in_shape, program.out_shape, named, program.reduction)

    def operation(self, mesh: Mesh, operation: Operation) -> Operation:
        match operation:
            case TakeOwn(picks):
                return TakeOwn(tuple((axis, self.factor(factor)) for axis, factor in picks))
            case Gather(factors) | Swap(factors) | Reduce(factors) | ReduceOwn(factors) | PutOwn(factors) | KeepFirst(factors):
                return type(operation)(self.factors(factors))
            case Loop(body=body):
                return replace(operation, body=self.program(mesh, body))
            case On(on):
                return On(Mesh(tuple((self.names.get(name, name), size) for name, size in on.axes), on.device_ids))
        return operation
