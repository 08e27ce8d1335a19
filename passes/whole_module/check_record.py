# SPDX-License-Identifier: Apache-2.0
"""What is recorded of the whole-module check of one module, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.at_hand import CompilerAtHand
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.sites.network import NetworkOptions, SiteNetwork
from reshard.passes.sites.oracle import BETTER
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.other_orders import OtherOrder, faster_order
from reshard.passes.whole_module.taken_over import pipeline_for

if TYPE_CHECKING:  # loading it loads numpy
    from reshard.synthesis.layouts.mesh import Mesh
    from reshard.synthesis.network.program_time import ProgramTime

Change = tuple[tuple[int, ...], str]  # sites and the reason


@dataclass(frozen=True, slots=True)
class Kept:
    """What a check says of its programs once it is made; see the properties of `Check` with these names."""

    generated_s: tuple[float, float] | None = None
    other_order: OtherOrder | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The result of the whole-module check of one module.

    Attributes:
      stock, ours: the module as it came and as it is handed over.
      dropped: (sites, the reason) that were left to XLA although they were to be rewritten, in the order of the search.
      is_rewritten: whether any site is still rewritten.
      target: the target of compilation of both; None for as many CPU devices as the module has.
      topology: the network that times are modelled on, as the text of an option; empty: unknown.
      stock_time, our_time: the modelled times of both; None for one that does not compile.
      added: (sites, the reason) that are rewritten although the oracle would leave them to XLA.
      attempts: how many rewritten modules were compiled for the target.
      promised: how many were compared before as XLA partitions them for CPU devices; 0 if the target has these.
      traffic: the longest collectives of both, as `passes.traffic.summary` has them; None if nobody asked for them.
      taken_over: if ours is the module written per device as a whole, what its plans are made for; else empty.
      not_taken_over: why it is not, though that was tried; empty if it is or was not tried.
      wrong_stock: where stock XLA computes wrong values, if that is why it is taken over; else empty.
      layouts: how many constraints say the layouts of ours, if these are chosen; None if they are those of propagation.
      not_judged: why the compiler of devices at hand has not decided, in words; empty if it has, or if there is none.
      mesh: that of the module; None if it has none or several, or if their work is not there.
      kept: what takes the work of the programs to find out; None if that was not done yet.
    """

    stock: Compiled
    ours: Compiled
    dropped: tuple[Change, ...]
    is_rewritten: bool
    target: Target | None = None
    topology: str = ""
    stock_time: ProgramTime | None = None
    our_time: ProgramTime | None = None
    added: tuple[Change, ...] = ()
    attempts: int = 0
    promised: int = 0
    traffic: dict[str, Any] | None = None
    taken_over: str = ""
    not_taken_over: str = ""
    wrong_stock: str = ""
    layouts: int | None = None
    not_judged: str = ""
    mesh: Mesh | None = None
    kept: Kept | None = None

    @property
    def generated_s(self) -> tuple[float, float] | None:
        """Returns the times of both by the code generator of the target's compiler; None if it does not say both."""
        if self.kept is not None:
            return self.kept.generated_s
        if self.target is None or not (self.topology and self.stock.is_ok and self.ours.is_ok):
            return None
        criterion = ModuleCriterion(BETTER, SiteNetwork(self.topology), self.target.devices)
        return criterion.generated(self.stock, self.ours)

    @property
    def other_order(self) -> OtherOrder | None:
        """Returns the order of devices with which what is handed over is clearly faster; None if there is none."""
        if self.kept is not None:
            return self.kept.other_order
        return self.mesh and faster_order(SiteNetwork(self.topology), self.mesh, self.ours)

    def without_work(self) -> Check:
        """Returns the check without the work of its programs: it has their times, and the work is as long as a
        program."""
        check = self.settled()
        nothing = {"moved": (), "work": (), "final_moved": (), "final_work": (), "final_schedule": ()}
        stock, ours = (replace(each, **nothing) for each in (self.stock, self.ours))
        return replace(check, stock=stock, ours=ours, mesh=None)

    def settled(self) -> Check:
        """Returns the check with all that it says found out, once."""
        return self if self.kept else replace(self, kept=Kept(self.generated_s, self.other_order))


def mesh_of(module: ir.Module) -> Mesh | None:
    """Returns the mesh of a module; None if it has none, or several."""
    meshes = {mesh for mesh in module_meshes(module).values() if mesh.axes}
    return meshes.pop() if len(meshes) == 1 else None


def option_of(pipeline: Pipeline, name: str, default):
    """Returns an option of the pass plan-sites; the default if the pipeline has no such pass."""
    return next((getattr(each, name) for each in pipeline.passes if isinstance(each, PlanSitesPass)), default)


def network_of(pipeline: Pipeline) -> SiteNetwork:
    """Returns the network of the pass plan-sites; without that pass, the one that any other pass of a pipeline has."""
    networks = (each.network for each in pipeline.passes if isinstance(each, NetworkOptions))
    known = next((each for each in networks if each.is_known), SiteNetwork())
    return option_of(pipeline, "network", known)


def needs_values(session: Session) -> bool:
    """Returns whether values have to be checked even if nobody asks.

    That is so if stock XLA refuses the last module, but not ours: there is no program of stock XLA to compare with, and
    XLA may compute ours wrongly. It is also so if ours was chosen because the program of stock XLA is wrong.
    """
    last = session.results.checks[-1] if session.results.checks else None
    return last is not None and last.is_rewritten and (not last.stock.is_ok or bool(last.wrong_stock))


def pipeline_behind(check: Check, pipeline: Pipeline) -> Pipeline:
    """Returns the pipeline that makes the module that a check hands over, if `pipeline` rewrites sites."""
    return pipeline_for(pipeline, check.taken_over) if check.taken_over else pipeline


def problem_of(stock: Compiled, ours: Compiled, original: ir.Module, pipeline: Pipeline) -> str:
    """Returns in words why a rewritten form of a module may not take the place of the original; empty if it may."""
    network, policy = network_of(pipeline), option_of(pipeline, "policy", BETTER)
    return ModuleCriterion(policy, network, devices_of(original)).problem(stock, ours)


def with_ours(
    check: Check,
    ours: Compiled,
    original: ir.Module,
    rewritten: ir.Module | None,
    sites: Collection[int],
    child: xla_child.XlaChild,
) -> Check:
    """Returns the check of `original` with another form of it handed over.

    Args:
      ours: the form, compiled. rewritten: the form; None if it is the original. sites: those rewritten in it.
    """
    network, devices = SiteNetwork(check.topology), devices_of(original)
    time = ModuleCriterion(BETTER, network, devices).time(check.stock, ours) if ours.is_ok else None
    added = tuple((left, why) for each, why in check.added if (left := tuple(site for site in each if site in sites)))
    traffic = check.traffic and traffic_of(original, rewritten, child, network, check.target)
    taken_over = check.taken_over if rewritten is not None else ""
    return replace(
        check,
        ours=ours,
        our_time=time,
        is_rewritten=rewritten is not None,
        added=added,
        traffic=traffic,
        taken_over=taken_over,
        kept=None,
    )


def traffic_of(
    original: ir.Module,
    rewritten: ir.Module | None,
    child: xla_child.XlaChild,
    network: SiteNetwork,
    target: Target | None,
    rows: Sequence[dict] = (),
    compiled: tuple[NumberedOps, Compiled] | None = None,
) -> dict[str, Any] | None:
    """Returns the longest collectives of a module and of its rewritten form, as `passes.traffic.summary_of` does for
    the same arguments; None if it has no function main.

    They are those right after partitioning, for which the compiler of devices at hand would compile once more: there
    they are those of CPU devices, for which XLA partitions in the same way.
    """
    from reshard.passes.traffic.summary import summary_of  # reports alone need it

    progress.at("whole-module check: listing collectives")
    try:
        how = {"target": None if isinstance(child, CompilerAtHand) else target, "rows": rows, "compiled": compiled}
        return summary_of(original, rewritten, child, network.topology, **how)
    except DiagnosedError:  # the module has no function main
        return None
