# SPDX-License-Identifier: Apache-2.0
"""Conversions: each (value type, source, target) of a module's sites is planned once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.shardings.sdy_shardings import Shardings, mesh_of, module_meshes
from reshard.passes.sites.findings import Finding, Findings
from reshard.passes.sites.network import ANYWHERE, SiteNetwork
from reshard.passes.sites.site_records import SiteRecord, record_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

if TYPE_CHECKING:
    from reshard.synthesis.planner.entry import Plan

PLAN_ENTRIES = ("bytes_received", "bound_bytes", "largest_tile_bytes", "collectives")
# The key of a conversion: value type, source and target as attributes, manual axes.
Key = tuple[ir.Type, ir.Attribute, ir.Attribute, tuple[str, ...]]


@dataclass(frozen=True)
class Asked:
    """One problem for the planner: a value of a type, on a mesh, from source to target.

    Attributes:
      manual_axes: axes of the manual computations around the value; the value is a tile along them.
      target_mesh: the mesh of the target where it is another one, over the same devices.
      network: what the plan is made for.
    """

    type: ir.Type
    mesh: Mesh
    source: Sharding
    target: Sharding
    manual_axes: tuple[str, ...] = ()
    target_mesh: Mesh | None = None
    network: SiteNetwork = ANYWHERE

    @functools.cached_property
    def text(self) -> str:
        """Returns a text with everything on which the plan depends."""
        ends = self.mesh, self.source, self.target, self.manual_axes, self.target_mesh
        return repr((str(self.type), *ends, self.network))

    @functools.cached_property
    def plan(self) -> Plan:
        """Returns the plan. Raises: NoPlanError or ValueError if there is none."""
        from reshard.passes.sites.site_plans import site_plan  # loads the planner; a record may have the answer

        ends = self.mesh, self.source, self.target, self.manual_axes, self.target_mesh
        return site_plan(self.type, *ends, self.network)

    def facts(self) -> dict[str, Any]:
        """Returns the facts that a report shows about the plan, as plain values.

        `solved` is the problem in a form that can be planned again; `problem` says why there is no plan.
        """
        try:
            plan = self.plan
        except ValueError as problem:  # NoPlanError is one
            return {"problem": f"no chain: {problem}"}
        ends = {"mesh": str(plan.mesh), "source": str(plan.source), "target": str(plan.target)}
        if plan.target_mesh is not None:
            ends["target_mesh"] = str(plan.target_mesh)
        solved = ends | {"shape": list(plan.shape), "bits": plan.bits, "objective": plan.objective}
        solved |= {"with_exchange": plan.request.with_exchange}
        if self.network.is_known:
            solved["topology"] = self.network.readable
        if plan.request.memory_limit is not None:
            solved["memory_limit"] = plan.request.memory_limit
        entries = {name: getattr(plan, name) for name in PLAN_ENTRIES}
        return {"chain": plan.chain_text, "is_empty": not plan.steps, **entries, "solved": solved}


@dataclass(frozen=True)
class Conversion:
    """A problem together with the facts of its plan. Several sites may share one conversion.

    Attributes:
      key: identifies the conversion among those of the module.
      asked: None if the ends are on different meshes and cannot be planned.
      facts: see `Asked.facts`.
    """

    key: Key
    source: Sharding
    target: Sharding
    asked: Asked | None
    facts: dict[str, Any]

    @functools.cached_property
    def ends(self) -> dict[str, str]:
        """Returns the source and the target as a report shows them."""
        return {"source": str(self.source), "target": str(self.target)}

    @property
    def is_planned(self) -> bool:
        return "chain" in self.facts

    @property
    def planned(self) -> Asked:
        """Returns the problem that the plan solves; only if `is_planned`."""
        return present(self.asked)

    @property
    def problem(self) -> str:
        """Returns why there is no plan."""
        return self.facts["problem"]

    @property
    def solved(self) -> dict | None:
        """Returns the problem as plain values that can be planned again; None if there is no chain."""
        return self.facts.get("solved")


_ON_DIFFERENT_MESHES = {
    "problem": "source and target are on meshes over different devices, or on two inside a manual computation"
}


class Conversions:
    """The conversions of all sites of a module, and the meshes and shardings of its attributes.

    State: `record` holds the answers from disk, or is never kept. The constructor plans every site.
    """

    def __init__(self, module: ir.Module, found: Findings, is_recorded: bool, network: SiteNetwork = ANYWHERE):
        self.network = network
        self.meshes = module_meshes(module)
        self.shardings = Shardings()
        self._mesh_of: dict[ir.Attribute, Mesh | None] = {}
        self._asked: dict[Key, Asked | None] = {}
        self._converted: dict[Key, Conversion] = {}
        firsts = {site: edges[0] for site, edges in found.by_site().items()}
        asked = [self._asked_at(edge) for edge in firsts.values()]
        self.record = record_of(each.text for each in asked if each is not None) if is_recorded else SiteRecord(None)
        self._of_site = {site: self._conversion_at(edge) for site, edge in firsts.items()}

    def of_site(self, site: int) -> Conversion:
        """Returns the conversion of a site."""
        return self._of_site[site]

    def of_chain(self, chain: list[Finding]) -> Conversion:
        """Returns the one conversion that replaces a chain of constraints."""
        first, last = chain[0], chain[-1]
        if len(chain) == 1:
            return self.of_site(first.site)
        source, target = self.of_site(first.site).source, self.of_site(last.site).target
        mesh = self.mesh(last.target)
        asked = None
        if mesh is not None:
            asked = Asked(last.value.type, mesh, source, target, last.manual_axes, network=self.network)
        key = last.value.type, first.source, last.target, last.manual_axes
        return self._converted_from(key, source, target, asked)

    def mesh(self, sharding: ir.Attribute) -> Mesh | None:
        """Returns the mesh of a sharding; None if the module does not declare it."""
        if sharding not in self._mesh_of:
            self._mesh_of[sharding] = mesh_of(sharding, self.meshes)
        return self._mesh_of[sharding]

    def _asked_at(self, edge: Finding) -> Asked | None:
        """Returns the problem of one edge; None if no conversion is planned between the meshes of its two ends."""
        key = _key(edge)
        if key not in self._asked:
            self._asked[key] = self._asked_between(edge)
        return self._asked[key]

    def _asked_between(self, edge: Finding) -> Asked | None:
        mesh, goal = self.mesh(edge.source), self.mesh(edge.target)
        ends = self.shardings[edge.source], self.shardings[edge.target]
        if mesh is not None and mesh == goal:
            return Asked(edge.value.type, mesh, *ends, edge.manual_axes, network=self.network)
        if mesh is None or goal is None or edge.manual_axes:
            return None
        is_over_the_same_devices = (mesh.size, mesh.devices) == (goal.size, goal.devices)
        if not is_over_the_same_devices:
            return None
        return Asked(edge.value.type, mesh, *ends, target_mesh=goal, network=self.network)

    def _conversion_at(self, edge: Finding) -> Conversion:
        key = _key(edge)
        if key not in self._converted:
            source, target = self.shardings[edge.source], self.shardings[edge.target]
            self._converted[key] = self._converted_from(key, source, target, self._asked_at(edge))
        return self._converted[key]

    def _converted_from(self, key: Key, source: Sharding, target: Sharding, asked: Asked | None) -> Conversion:
        facts = _ON_DIFFERENT_MESHES if asked is None else self.record.answer(asked.text, asked.facts)
        return Conversion(key, source, target, asked, facts)


def _key(edge: Finding) -> Key:
    return edge.value.type, edge.source, edge.target, edge.manual_axes
