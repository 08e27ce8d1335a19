# SPDX-License-Identifier: Apache-2.0
"""The pass plan-sites: plans a chain for every site and decides whether the site is rewritten."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from reshard.dialect_utils.analysis import miscompilations
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.ops import CONSTRAINTS, int64_attr, producer_of
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import (
    mesh_of,
    mesh_reference,
    module_meshes,
    sharding_from_attr,
    sharding_to_attr,
)
from reshard.dialect_utils.xla import child as xla_child
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.constraint_chains import constraint_chains
from reshard.passes.sites.conversions import PLAN_ENTRIES, Conversions, Key
from reshard.passes.sites.findings import Finding, Findings, OpenResult, hand_on_findings, read_findings
from reshard.passes.sites.judge import Case, SiteJudge, is_data_flow
from reshard.passes.sites.network import (
    ANYWHERE,
    NetworkOptions,
    SiteNetwork,
    memory_limit_option,
    refuse_unfit,
    topology_option,
)
from reshard.passes.sites.op_layouts import OpLayouts
from reshard.passes.sites.oracle import ALWAYS, BETTER, KEEP, POLICIES, REWRITE, STRICT, LoneOracle, Verdict
from reshard.passes.sites.site_rows import SiteRows
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

_MANY_EDGES = 8  # with so many, XLA is hardly ever left unasked
_ROW_ENTRIES = (
    "verdict",
    "reason",
    "chain",
    "bytes_received",
    "bound_bytes",
    "largest_tile_bytes",
    "collectives",
    "stock_bytes",
    "stock_temp_bytes",
    "our_bytes",
    "our_temp_bytes",
    "stock_us",
    "our_us",
    "possible",
)


@dataclasses.dataclass(frozen=True)
class PlanSitesPass(NetworkOptions, Pass):
    """Plans every site and decides, by the policy, which sites are to be rewritten."""

    name = "plan-sites"
    summary = "plan a chain of collectives for every site and decide whether it is worth it"
    description = """
    Adds to each finding the chain, its costs and the verdict of the policy with its reason. Ops, types and shardings of
    the module stay as they are. Runs after find-mismatches.

    Before ==> after (entries that are added to a site):
    ```mlir
    {kind = "constraint", operand = 0 : i64, site = 0 : i64, source = ..., target = ..., why = "..."}
    ```
    ```mlir
    {..., chain = "all_to_all y: dim 0 -> 1, x: dim 2 -> 1", bytes_received = 1792 : i64,
     bound_bytes = 1792 : i64, largest_tile_bytes = 2048 : i64, stock_bytes = 14336 : i64, verdict = "rewrite",
     reason = "better than stock XLA in ..."}
    ```

    An edge of a constraint, a loop, a call or a function result is judged as a lone pair. An edge of any other op is
    judged together with the op (oracle `lone`). A chain of constraints whose values have no other user is planned and
    judged as one conversion. Its last site has `merges`, the sites that vanish in it.

    Each site to rewrite is compared with the layouts that XLA itself propagates (the layout check). If they differ from
    those of find-mismatches, the site is left alone. The same check finds the layouts of results whose sharding the
    caller left open.
    """
    guarantees = (
        "every site has a verdict and a reason",
        "XLA propagates to the sites to rewrite the layouts that we found",
    )
    takes_findings = True
    statistics = {
        "planned": "sites with a chain",
        "rewrite": "sites to rewrite",
        "keep": "sites to leave to XLA",
        "unchecked": "uses to rewrite whose layouts XLA could not confirm, since it does not propagate them",
    }

    policy: str = option(
        BETTER,
        "; ".join(f"{name}: {meaning}" for name, meaning in POLICIES.items()),
        choices=tuple(POLICIES),
    )
    oracle: str = option(
        "lone",
        "how the costs of stock XLA are found: lone compiles each site, or its op with all operands, on its own",
        choices=("lone",),
    )
    topology: str = topology_option()
    memory_limit: int = memory_limit_option()
    layout_check: str = option(
        "on",
        "have XLA propagate the shardings once, and leave the sites where it finds other layouts",
        choices=("on", "off"),
    )

    def run(self, module: ir.Module, session: Session) -> None:
        session.running.is_module_valid = True
        found = session.handed_on.findings or read_findings(module)
        if found is None:
            session.remark(
                module.operation, "nothing is planned: the module has no findings; run find-mismatches first"
            )
            return
        refuse_unfit(module, self.network, session.options.compile_for)
        planner = SitePlanner(module, found, self.policy, self.layout_check == "on", session, self.network)
        hand_on_findings(module, planner.planned(), session)


@dataclass(frozen=True, slots=True)
class _Decided:
    """The entries that a finding gets, and the same entries as plain values for reports. Edges may share them."""

    extras: tuple[tuple[str, ir.Attribute], ...]
    facts: dict[str, Any]


class SitePlanner:
    """Plans the sites of one module, has them judged, and reports them.

    State: `conversions` has a plan for each site from the beginning. `_results_of_xla` is empty until the layouts have
    been compared with XLA's own. Edges are named by their position in `found.edges`.
    """

    def __init__(
        self,
        module: ir.Module,
        found: Findings,
        policy: str,
        checks_layouts: bool,
        session: Session,
        network: SiteNetwork = ANYWHERE,
    ):
        self.module = module
        self.found = found
        self.checks_layouts = checks_layouts
        self.session = session
        self.conversions = Conversions(module, found, is_recorded=session.options.xla_child is None, network=network)
        if len(found.edges) >= _MANY_EDGES and policy != ALWAYS and self.conversions.record.is_new:
            sizes = [mesh.size for mesh in module_meshes(module).values()]
            self._child.prepare(max(sizes, default=1))  # it starts while questions are written here
        self.chains = constraint_chains(found, self.conversions)
        self.last_of = {edge.site: last for last, chain in self.chains.items() for edge in chain[:-1]}
        self._judge = SiteJudge(policy, self.conversions, lambda: self._op_layouts, lambda: self._oracle)
        self._rows = SiteRows(module, found, session)
        self._results_of_xla: dict[int, tuple[Mesh, Sharding] | None] = {}
        self._decided: dict[tuple[Verdict, Key], _Decided] = {}

    def planned(self) -> Findings:
        """Returns the findings with chains and verdicts, in their order; adds a report row per site."""
        verdicts = self._judged()
        if self.checks_layouts:
            verdicts = self._where_xla_agrees(verdicts)
        verdicts |= self._inside_chains(verdicts)
        decided = [self._decision(edge, verdicts[i]) for i, edge in enumerate(self.found.edges)]
        self._report(decided)
        edges = (dataclasses.replace(edge, extras=each.extras) for edge, each in zip(self.found.edges, decided))
        open_results = tuple(self._as_xla_has_it(each) for each in self.found.open_results)
        return dataclasses.replace(self.found, edges=tuple(edges), open_results=open_results)

    # Verdicts, by position

    def _judged(self) -> dict[int, Verdict]:
        """Returns all verdicts but those on constraints inside a chain. Edges of one op are judged together."""
        passing_before = xla_child.shared_child().passing_answers
        places: list[list[int]] = []
        brought: list[Verdict | Case] = []
        for positions in self._groups.values():
            group = [self.found.edges[i] for i in positions]
            if is_data_flow(group[0]):
                alone = [(i, edge) for i, edge in zip(positions, group) if edge.site not in self.last_of]
                places += [[i] for i, _ in alone]
                brought += [self._judge.chain(self._chain_of(edge)) for _, edge in alone]
            else:
                places.append(positions)
                brought.append(self._judge.op(group))
        judged = zip(places, self._judge.verdicts(brought), strict=True)
        verdicts = {position: verdict for positions, verdict in judged for position in positions}
        self.conversions.record.keep(is_lasting=xla_child.shared_child().passing_answers == passing_before)
        progress.at("plan-sites: comparing layouts with XLA's own")
        return verdicts

    def _where_xla_agrees(self, verdicts: dict[int, Verdict]) -> dict[int, Verdict]:
        """Returns the verdicts after the layout check: sites where XLA propagates other layouts are left to XLA."""
        if not any(verdict.is_rewrite for verdict in verdicts.values()) and self.session.options.effort == 1:
            # Nothing promises a gain: nothing is offered to the choice for the whole module, which compiles it often.
            return {i: dataclasses.replace(verdict, is_possible=False) for i, verdict in verdicts.items()}
        if not any(verdict.is_rewrite or verdict.is_possible for verdict in verdicts.values()):
            return verdicts
        from reshard.dialect_utils.analysis import layout_check  # a module with nothing to rewrite needs no check

        found = layout_check.compare_with_xla(self.module, self._op_layouts.analysis, self._oracle.child)
        self._results_of_xla = found.results
        if found.failure:
            self.session.count("unchecked", sum(verdict.is_rewrite for verdict in verdicts.values()))
            return verdicts
        checked = {}
        for position, verdict in verdicts.items():
            edge = self.found.edges[position]
            is_asked = verdict.is_rewrite or verdict.is_possible
            reason = found.at(edge.op, edge.number, edge.kind == kinds.RESULT) if is_asked else None
            checked[position] = verdict
            if reason is not None:
                checked[position] = dataclasses.replace(verdict, action=KEEP, reason=reason, is_possible=False)
        return checked

    def _inside_chains(self, verdicts: dict[int, Verdict]) -> dict[int, Verdict]:
        """Returns the verdicts on constraints inside a chain. Their action is that on the chain's last site."""
        edges = self.found.edges
        at_op = {edges[i].op: verdict for i, verdict in verdicts.items() if edges[i].site in self.chains}
        lasts = {i: self.last_of[edge.site] for i, edge in enumerate(edges) if edge.site in self.last_of}
        return {i: _with_its_chain(last, at_op[self.chains[last][-1].op]) for i, last in lasts.items()}

    def _chain_of(self, edge: Finding) -> list[Finding]:
        return self.chains.get(edge.site, [edge])

    @functools.cached_property
    def _groups(self) -> dict[ir.Operation, list[int]]:
        """Returns the positions of the edges at each op."""
        groups: dict[ir.Operation, list[int]] = {}
        for i, edge in enumerate(self.found.edges):
            groups.setdefault(edge.op, []).append(i)
        return groups

    @functools.cached_property
    def _oracle(self) -> LoneOracle:
        return LoneOracle(self._child, self.conversions.network.has_final)

    @property
    def _child(self) -> xla_child.XlaChild:
        return self.session.options.xla_child or xla_child.shared_child()

    @functools.cached_property
    def _op_layouts(self) -> OpLayouts:
        at_edges = {edge.op for edge in self.found.edges}
        behind = {use.owner.operation for op in at_edges if op.name in CONSTRAINTS for use in op.results[0].uses}
        before = {op for edge in self.found.edges if (op := producer_of(edge.value)) is not None}
        asked = at_edges | {op for op in behind | before if op.name in miscompilations.OPS}
        return OpLayouts(self.session.handed_on.analysis or analyse(self.module), asked)

    # Results

    def _decision(self, edge: Finding, verdict: Verdict) -> _Decided:
        """Returns the entries for an edge. Edges with the same verdict and the same conversion share their entries."""
        chain = self._chain_of(edge)
        if len(chain) > 1 or edge.extras:
            return self._decided_alone(edge, chain, verdict)
        key = verdict, self.conversions.of_site(edge.site).key
        if key not in self._decided:
            self._decided[key] = self._decided_alone(edge, chain, verdict)
        return self._decided[key]

    def _decided_alone(self, edge: Finding, chain: list[Finding], verdict: Verdict) -> _Decided:
        conversion = self.conversions.of_chain(chain)
        entries: dict[str, ir.Attribute] = {
            "verdict": ir.StringAttr.get(verdict.action),
            "reason": ir.StringAttr.get(verdict.reason),
        }
        if conversion.is_planned:
            entries["chain"] = ir.StringAttr.get(conversion.facts["chain"])
            entries |= {name: int64_attr(conversion.facts[name]) for name in PLAN_ENTRIES}
        for name, compiled in (("stock", verdict.stock), ("our", verdict.ours)):
            if compiled is not None and compiled.is_ok:
                entries[f"{name}_bytes"] = int64_attr(compiled.costs.bytes_received)
                entries[f"{name}_temp_bytes"] = int64_attr(compiled.costs.temp_bytes)
        for name, seconds in (("stock_us", verdict.stock_s), ("our_us", verdict.our_s)):
            if seconds is not None:
                entries[name] = ir.FloatAttr.get_f64(round(seconds * 1e6, 3))
        if verdict.is_possible:
            entries["possible"] = ir.StringAttr.get(_proposer(verdict))
        if len(chain) > 1 and (verdict.is_rewrite or verdict.is_possible):
            entries["merges"] = ir.ArrayAttr.get([int64_attr(each.site) for each in chain[:-1]])
        extras = edge.with_extras(entries).extras
        known = dict(extras)
        return _Decided(extras, {name: _plain(known.get(name)) for name in _ROW_ENTRIES})

    def _report(self, decided: list[_Decided]) -> None:
        """Counts every site, adds its report row, and remarks on every edge that is left to XLA.

        The row and the counts of a site are those of an edge that is rewritten, if there is one.
        """
        positions_of: dict[int, list[int]] = {}
        for i, edge in enumerate(self.found.edges):
            positions_of.setdefault(edge.site, []).append(i)
        for site, positions in sorted(positions_of.items()):
            shown = next((i for i in positions if decided[i].facts["verdict"] == REWRITE), positions[0])
            self.session.count("planned", self.conversions.of_site(site).is_planned)
            self.session.count(decided[shown].facts["verdict"])
            self.session.results.report_rows.append(self._row(self.found.edges[shown], decided[shown].facts))
        for edge, each in zip(self.found.edges, decided):
            if each.facts["verdict"] == KEEP:
                where = self._rows.line(edge.op) or edge.op
                self.session.remark(where, f"site {edge.site} ({edge.kind}) is left to XLA: {each.facts['reason']}")

    def _row(self, edge: Finding, facts: dict[str, Any]) -> dict[str, Any]:
        last = self.last_of.get(edge.site, edge.site)
        group = f"site {last}" if is_data_flow(edge) else self._number_of_op[edge.op]
        solved = self.conversions.of_chain(self.chains.get(last, [edge])).solved
        return self._rows.row(edge, self.conversions.of_site(edge.site), facts, group, solved)

    @functools.cached_property
    def _number_of_op(self) -> dict[ir.Operation, int]:
        return {op: number for number, op in enumerate(self._groups)}

    def _as_xla_has_it(self, result: OpenResult) -> OpenResult:
        """Returns a result that the caller left open, with the layout that XLA propagates if that layout is known."""
        if result.number not in self._results_of_xla or not _is_entry(result.function):
            return result
        meshes = self.conversions.meshes
        mesh, rank = mesh_of(result.sharding, meshes), sharding_from_attr(result.sharding).rank
        seen_mesh, sharding = self._results_of_xla[result.number] or (mesh, Sharding(((),) * rank))
        if seen_mesh == mesh:
            reference = mesh_reference(result.sharding)
        else:
            reference = next((name for name, each in meshes.items() if each == seen_mesh), None)
        if reference is None:
            return result
        return dataclasses.replace(result, sharding=sharding_to_attr(sharding, reference))


def _proposer(verdict: Verdict) -> str:
    """Returns the most careful policy that might rewrite a site: `always` if it moves as much either way."""
    if verdict.is_strict:
        return STRICT
    return ALWAYS if verdict.stock is not None and verdict.ours is None else BETTER


def _with_its_chain(last: int, verdict: Verdict) -> Verdict:
    """Returns the verdict on a constraint inside the chain that ends at site `last`."""
    reason = f"merged into site {last}" if verdict.is_rewrite else f"with site {last}: {verdict.reason}"
    return Verdict(verdict.action, reason, is_possible=verdict.is_possible)


def _is_entry(function: str) -> bool:
    from reshard.dialect_utils.analysis.layout_check import ENTRY  # only if the check has run

    return function == ENTRY


def _plain(attr: ir.Attribute | None):
    if isinstance(attr, ir.StringAttr | ir.FloatAttr):
        return attr.value
    return None if attr is None else ir.IntegerAttr(attr).value
