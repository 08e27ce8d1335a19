# SPDX-License-Identifier: Apache-2.0
"""Choosing the layouts of a module for one mesh, and writing them.

A module is solved once: the checks run the pass on the original again, and get the same result from memory.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reshard.dialect_utils.assignment.factored_modules import (
    FactoredModule,
    KeptShardingError,
    factored_module,
    inline_calls_of,
)
from reshard.dialect_utils.assignment.written_layouts import drop_idle_meshes, free_of_shardings, write_layouts
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, error_at
from reshard.dialect_utils.ir.ops import replace_content
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.assignment.axes import WHOLE
from reshard.synthesis.assignment.description import AxisUse, uses_of
from reshard.synthesis.assignment.dimensions import NamedDimension, named_dimensions
from reshard.synthesis.assignment.layout_problem import Assignment, LayoutProblem
from reshard.synthesis.assignment.repeats import Repeat
from reshard.synthesis.assignment.tactics import Tactic, TacticError, check, separate_weights
from reshard.synthesis.common.numbers import enough_text, needed_and_limit
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.pairwise.solving import TIME_LIMIT_S, InfeasibleError

FLOPS_PER_BYTE = 200  # of a device of which only the memory is known; accelerators have 170 to 300
_KEPT = 8  # modules whose layouts are remembered


class MemoryLimitError(DiagnosedError):
    """No layout keeps the memory limit, by the model; `least_bytes` is the least that layouts which were found need."""

    least_bytes: int = 0


@dataclass(frozen=True)
class Assigned:
    """What was chosen for a module.

    Attributes:
      assignment, factored: the layouts, and the program that they are for.
      clusters: groups of its tensors. uses: what each axis is for.
      tactics: what axes might be for.
      repeats: layers of the program. dimensions: of the program, as it names them. axes: their form.
      constraints: the sharding constraints that were written. left: the values that propagation lays out otherwise.
        Both are None until the layouts are written.
    """

    assignment: Assignment
    factored: FactoredModule
    clusters: int
    uses: tuple[AxisUse, ...]
    tactics: Mapping[str, Tactic]
    repeats: tuple[Repeat, ...] = ()
    axes: str = WHOLE
    constraints: int | None = None
    left: int | None = None

    @property
    def seconds(self) -> float:
        return self.assignment.seconds

    @property
    def moves_s(self) -> float:
        return self.assignment.seconds - self.assignment.local_s

    @property
    def gap(self) -> float:
        return self.assignment.solution.gap

    @property
    def ways(self) -> int:
        return len(self.assignment.ways)

    @functools.cached_property
    def dimensions(self) -> tuple[NamedDimension, ...]:
        return named_dimensions(self.factored.program, self.repeats)


_Memory = OrderedDict[tuple, tuple[bytes, Assigned]]
_made: _Memory = OrderedDict()  # modules that are prepared, with their layouts
_written: _Memory = OrderedDict()  # modules that have them


def assign(module: ir.Module, mesh: Mesh, network: SiteNetwork, **options: Any) -> Assigned:
    """Writes the best layouts on a mesh into a module, in place; the options and errors are those of `chosen`."""
    return written(module, mesh, chosen(module, mesh, network, **options))


def _kept(memory: _Memory, key: tuple, module: ir.Module) -> Assigned | None:
    """Returns what is kept under a key, and makes the module what it was then; None if nothing is kept."""
    if key not in memory:
        return None
    content, found = memory[key]
    replace_content(module, ir.Module.parse(content, module.context))
    return found


def _keep(memory: _Memory, key: tuple, module: ir.Module, found: Assigned) -> None:
    memory[key] = compat.bytecode(module), found
    while len(memory) > _KEPT:
        memory.popitem(last=False)


def chosen(
    module: ir.Module,
    mesh: Mesh,
    network: SiteNetwork,
    *,
    keeps_annotations: bool = True,
    keeps_signature: bool = False,
    memory_limit: int | None = None,
    tactics: Mapping[str, Tactic] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    below_s: float = math.inf,
    axes: str = WHOLE,
) -> Assigned:
    """Returns the best layouts on a mesh for a module, which is prepared for `written`, in place.

    Args:
      keeps_annotations, keeps_signature: whether the shardings of the module are kept, or those of its arguments and
        results at least.
      tactics: axis -> what it may be for; other axes may be for anything.
      axes: the form of the mesh's axes, as `FORMS` has them.
    Raises:
      NotBelowError: they take `below_s` or longer, by the model.
      MemoryLimitError: no layout keeps the memory limit.
      KeptShardingError: a sharding of the module is none that layouts are chosen from; the caller says what to do.
      DiagnosedError: the topology does not fit the mesh, or the module cannot be read
        as one program.
    """
    topology = topology_for(module, mesh, network)
    tactics = tactics or {}
    try:
        check(tactics, mesh.axis_names)
    except TacticError as error:
        raise error_at(module.operation, str(error)) from None
    kept_parts = keeps_annotations, keeps_signature, axes
    key = compat.bytecode(module), mesh, network.text, kept_parts, memory_limit, tuple(sorted(tactics.items()))
    if (kept := _kept(_made, key, module)) is not None:
        return kept
    if not keeps_annotations:
        free_of_shardings(module, keeps_signatures=keeps_signature)
    drop_idle_meshes(module, mesh)
    inline_calls_of(module)
    progress.at("assign-layouts: the program as ops with factors")
    factored = factored_module(module, mesh, separate_weights=separate_weights(tactics))
    try:
        problem = LayoutProblem(factored.program, mesh, topology, memory_limit, tactics, axes)
    except InfeasibleError as error:
        raise KeptShardingError(error_at(module.operation, str(error)).diagnostics) from None
    progress.at(f"assign-layouts: {len(problem.problem.costs)} choices")
    try:
        assignment = problem.solve(time_limit_s=time_limit_s, below_s=below_s)
    except InfeasibleError as error:
        raise _infeasible(module, problem, error) from None
    uses = uses_of(factored.program, problem.clusters, assignment)
    found = Assigned(assignment, factored, len(problem.clusters.all), tuple(uses), tactics, problem.repeats, axes)
    _keep(_made, key, module, found)
    return found


def written(module: ir.Module, mesh: Mesh, found: Assigned) -> Assigned:
    """Writes layouts into the module that `chosen` has prepared, in place, and returns them with what was written."""
    key = compat.bytecode(module), mesh, id(found.assignment)  # which lives as long as what is kept
    if (kept := _kept(_written, key, module)) is not None:
        return kept
    progress.at("assign-layouts: few constraints")
    counts = write_layouts(module, found.factored, found.assignment, mesh)
    found = replace(found, constraints=counts.constraints, left=counts.left)
    _keep(_written, key, module, found)
    return found


def assign_again(module: ir.Module, mesh: Mesh, network: SiteNetwork, found: Assigned) -> None:
    """Writes layouts that were chosen for a module into another one with the same ops, in place.

    A program that is lowered once more, with shardings of its arguments, is such a module. One with other ops gets
    layouts of its own.
    """
    inline_calls_of(module)
    if found.factored.is_of(module):
        write_layouts(module, found.factored, found.assignment, mesh)
    else:
        limit = network.memory_limit
        assign(module, mesh, network, memory_limit=limit, tactics=found.tactics, axes=found.axes)


def topology_for(module: ir.Module, mesh: Mesh, network: SiteNetwork) -> Topology:
    """Returns the topology for as many devices as the mesh has; computing counts something on all of them."""
    try:
        topology = network.topology.fitted(mesh.size)
    except TopologyError as error:
        raise error_at(module.operation, str(error)) from None
    if topology.flops_per_s is None:
        return replace(topology, flops_per_s=FLOPS_PER_BYTE * topology.memory_bandwidth_bytes_per_s)
    return topology


def _infeasible(module: ir.Module, problem: LayoutProblem, error: InfeasibleError) -> DiagnosedError:
    if problem.memory_limit is None:
        return error_at(module.operation, f"{error} on {problem.mesh}")
    least = problem.memory.least()
    closest = least if error.closest is None else problem.memory.peak(error.closest)
    if least > problem.memory_limit:
        needed, limit = needed_and_limit(least, problem.memory_limit)
        said = (
            f"no layout fits into {limit}: with every tensor split over all of {problem.mesh} that can be, at least "
            f"{needed} are alive at once; allow {enough_text(least)} or more"
        )
    else:
        needed, limit = needed_and_limit(closest, problem.memory_limit)
        said = f"no layout was found that fits into {limit}; {needed} is the least that was found; allow "
        said += f"{enough_text(closest)}"
    said += ", or use more devices, a smaller batch, or donate arguments"
    found = MemoryLimitError(error_at(module.operation, said).diagnostics)
    found.least_bytes = closest
    return found
