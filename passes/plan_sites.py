# SPDX-License-Identifier: Apache-2.0
"""The pass plan-sites: a chain for every site, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from dataclasses import dataclass
import functools
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils import diagnostics, miscompilations, propagation, stages, xla_child
from reshard.dialect_utils.bindings import ir
from reshard.dialect_utils.ops import int64_attr, producer_of
from reshard.dialect_utils.sdy_shardings import (
    SHARDING,
    Shardings,
    mesh_of,
    mesh_reference,
    module_meshes,
    sharding_from_attr,
    sharding_to_attr,
)
from reshard.dialect_utils.user_lines import Frame, UserLines, frames_of
from reshard.passes import findings as kinds
from reshard.passes.base import Pass, Session, option
from reshard.passes.findings import PREFIX, Finding, Findings, OpenResult, hand_on_findings, read_findings
from reshard.passes.op_layouts import Layouts, OpLayouts
from reshard.passes.oracle import KEEP, REWRITE, LoneOracle, Verdict
from reshard.passes.site_records import SiteRecord, record_of
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.sharding import Sharding

if TYPE_CHECKING:
    from reshard.dialect_utils.origins import Origins
    from reshard.synthesis.plan import Plan

_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
# The users that take a value as it is, in one layout whatever it costs.
EDGES_OF_DATA_FLOW = propagation.CONSTRAINTS | propagation.LOOPS | _RETURNS | {"func.call", "sdy.manual_computation"}

@dataclasses.dataclass(frozen=True)
class PlanSitesPass(Pass):
    """Plans every site and decides, by the policy, which are to be rewritten."""

    name = "plan-sites"
    summary = "plan a chain of collectives for every site and decide whether it is worth it"
    description = """
    Adds to each finding the chain, its costs and the verdict of the policy with its reason. Ops, types and shardings of the
    module stay as they are. Runs after find-mismatches.

    Before ==> after (entries that are added to a site):
    ```mlir
    {kind = "constraint", operand = 0 : i64, site = 0 : i64, source = ..., target = ..., why = "..."}
    ```
    ```mlir
    {..., chain = "all_to_all y: dim 0 -> 1, x: dim 2 -> 1", bytes_received = 1792 : i64, bound_bytes = 1792 : i64,
     largest_tile_bytes = 2048 : i64, stock_bytes = 14336 : i64, verdict = "rewrite", reason = "better than stock XLA in ..."}
    ```

    The edges of a constraint, a loop, a call or a function result are judged as lone pairs; those of any other op together
    with the op (oracle `lone`). A chain of constraints that nobody else looks at is planned and judged as one conversion:
    its last site has `merges`, the sites that vanish in it.

    What is to be rewritten is checked against the layouts that XLA itself propagates (the canary): where they are others
    than those of find-mismatches, the site is left alone. The same check tells the layouts of results that the caller left
    open.
    """
    guarantees = ("every site has a verdict and a reason", "XLA propagates to the sites to rewrite the layouts that we found")
    takes_findings = True
    statistics = {
        "planned": "sites with a chain",
        "rewrite": "sites to rewrite",
        "keep": "sites to leave to XLA",
        "unchecked": "uses to rewrite whose layouts XLA could not confirm, since it does not compile the module",
    }

    policy: str = option("better", "rewrite where our chain beats stock XLA, or wherever there is a chain", choices=("better", "always"))
    oracle: str = option(
        "lone",
        "how it is known what stock XLA does at a site: lone compiles the site, or its op with all operands, alone",
        choices=("lone",),
    )
    canary: str = option(
        "on", "compile the module once to see whether XLA propagates the same layouts to sites to rewrite", choices=("on", "off")
    )

    def run(self, module: ir.Module, session: Session) -> None:
        session.is_verified = True
        found = session.findings or read_findings(module)
        if found is None:
            session.remark(module.operation, "nothing is planned: the module has no findings; run find-mismatches first")
            return
        planner = SitePlanner(module, found, self.policy, self.canary == "on", session)
        edges = tuple(planner.planned_edges())
        planned = dataclasses.replace(found, edges=edges, open_results=planner.open_results())
        hand_on_findings(module, planned, session)


@dataclass(frozen=True)
class Asked:
    """What is to be planned: a value of a type on a mesh from source to target, inside manual computations along some axes.

    Attributes:
      target_mesh: that of the target where it is another one, over the same devices.
    """

    type: ir.Type
    mesh: Mesh
    source: Sharding
    target: Sharding
    manual_axes: tuple[str, ...] = ()
    target_mesh: Mesh | None = None

    @functools.cached_property
    def text(self) -> str:
        """Returns all that the plan depends on."""
        return repr((str(self.type), self.mesh, self.source, self.target, self.manual_axes, self.target_mesh))

    @functools.cached_property
    def plan(self) -> Plan:
        """Returns the plan. Raises: NoPlanError or ValueError if there is none."""
        from reshard.passes.site_plans import site_plan  # with all that plans: a record may have what is asked

        return site_plan(self.type, self.mesh, self.source, self.target, self.manual_axes, self.target_mesh)

    def facts(self) -> dict[str, Any]:
        """Returns what a report says of the plan, `solved` from which it can be planned again, or why there is none: plain values."""
        try:
            plan = self.plan
        except ValueError as problem:  # NoPlanError is one
            return {"problem": f"no chain: {problem}"}
        ends = {"mesh": str(plan.mesh), "source": str(plan.source), "target": str(plan.target)}
        if plan.target_mesh is not None:
            ends["target_mesh"] = str(plan.target_mesh)
        solved = ends | {"shape": list(plan.shape), "bits": plan.bits, "objective": plan.objective}
        entries = {name: getattr(plan, name) for name in _PLAN_ENTRIES}
        return {"chain": plan.chain_text, "is_empty": not plan.steps, **entries, "solved": solved}


@dataclass(frozen=True)
class Conversion:
    """One (value, source, target), planned: `facts` is what `Asked` has of it. Sites share it.

    Attributes:
      asked: None where the ends are on different meshes and `_ON_DIFFERENT_MESHES` says why that is not planned.
    """

    source: Sharding
    target: Sharding
    asked: Asked | None
    facts: dict[str, Any]

    @functools.cached_property
    def ends(self) -> dict[str, str]:
        """Returns source and target as a report has them."""
        return {"source": str(self.source), "target": str(self.target)}

    @property
    def is_planned(self) -> bool:
        return "chain" in self.facts

    @property
    def problem(self) -> str:
        """Returns why there is no plan."""
        return self.facts["problem"]

    @property
    def solved(self) -> dict | None:
        """Returns what the chain solves, as plain values from which it can be planned again; None where there is no chain."""
        return self.facts.get("solved")


_ON_DIFFERENT_MESHES = {"problem": "source and target are on meshes over different devices, or on two inside a manual computation"}


class SitePlanner:
    """Plans the sites of one module and judges them.

    State: `verdicts`, by (op, is result, number), grows group by group; `merged` names for the last site of a chain of
    constraints the sites that vanish in it. `_results_of_xla` is empty until the canary has seen the module.
    """

    def __init__(self, module: ir.Module, found: Findings, policy: str, checks_layouts: bool, session: Session):
        self.module = module
        self.found = found
        self.policy = policy
        self.checks_layouts = checks_layouts
        self.session = session
        self.meshes = module_meshes(module)
        self._results_of_xla: dict[int, tuple[Mesh, Sharding] | None] = {}
        self._judged: dict[tuple, Verdict] = {}
        self._shardings = Shardings()
        self._asked_of: dict[tuple, Asked | None] = {}
        self._converted: dict[tuple, Conversion] = {}
        self._meshes_of: dict[ir.Attribute, Mesh | None] = {}
        self._texts: dict[ir.Type, str] = {}
        self._numbers = _Numbers()
        self._frames_of: dict[ir.Operation, tuple[Frame, ...]] = {}
        self._facts_of: dict[int, tuple[tuple, dict[str, Any]]] = {}  # by the id of the extras, which are held
        self._entries: dict[tuple[int, int], tuple[tuple[str, ir.Attribute], ...]] = {}
        firsts = {site: edges[0] for site, edges in found.by_site().items()}
        self._record_on_disk = self._record_of([self._asked(edge) for edge in firsts.values()])
        self.conversions = {site: self._conversion(edge) for site, edge in firsts.items()}

    def planned_edges(self) -> list[Finding]:
        """Returns the findings with chains and verdicts, in their order; records a report row per site."""
        chains = self._chains_of_constraints()
        inside = {edge.site: last for last, sites in chains.items() for edge in sites[:-1]}
        verdicts: dict[int, Verdict] = {}  # by position in found.edges
        positions = {id(edge): i for i, edge in enumerate(self.found.edges)}
        passing_before = xla_child.shared_child().passing_answers
        groups = self._groups()
        for number, group in enumerate(groups, 1):
            stages.at("plan-sites: judging op", number, len(groups))
            if _is_data_flow(group[0]):
                for edge in group:
                    if edge.site not in inside:
                        verdicts[positions[id(edge)]] = self._judge_edge(edge, chains.get(edge.site, [edge]))
            else:
                verdict = self._judge_neighbourhood(group)
                verdicts |= {positions[id(edge)]: verdict for edge in group}
        self._record_on_disk.keep(is_lasting=xla_child.shared_child().passing_answers == passing_before)
        stages.at("plan-sites: comparing layouts with XLA's own")
        if self.checks_layouts:
            verdicts = self._where_xla_agrees(verdicts)
        verdicts |= self._follow_their_chains(inside, chains, verdicts, positions)
        planned = [self._with_verdict(edge, verdicts[i], chains) for i, edge in enumerate(self.found.edges)]
        self._record(planned, inside, chains)
        return planned

    def open_results(self) -> tuple[OpenResult, ...]:
        """Returns the results that the caller left open, with the layouts that XLA propagates, where the canary saw them."""
        return tuple(self._as_xla_has_it(each) for each in self.found.open_results)

    def _as_xla_has_it(self, result: OpenResult) -> OpenResult:
        if result.number not in self._results_of_xla or not self._is_entry(result.function):
            return result
        mesh, rank = mesh_of(result.sharding, self.meshes), sharding_from_attr(result.sharding).rank
        seen_mesh, sharding = self._results_of_xla[result.number] or (mesh, Sharding(((),) * rank))
        if seen_mesh == mesh:
            reference = mesh_reference(result.sharding)
        else:
            reference = next((name for name, each in self.meshes.items() if each == seen_mesh), None)
        return result if reference is None else dataclasses.replace(result, sharding=sharding_to_attr(sharding, reference))

    def _is_entry(self, function: str) -> bool:
        from reshard.dialect_utils.canary import ENTRY  # as where it is asked

        return function == ENTRY

    # Plans

    def _record_of(self, asked: list[Asked | None]) -> SiteRecord:
        """Returns the record of a module with these conversions; the answers of a child of the caller's are in none."""
        if self.session.options.get("xla_child") is not None:
            return SiteRecord(None)
        return record_of(each.text for each in asked if each is not None)

    def _asked(self, edge: Finding) -> Asked | None:
        """Returns what is to be planned for an edge alone; None where `Conversion.asked` is."""
        key = edge.value.type, edge.source, edge.target, edge.manual_axes
        if key not in self._asked_of:
            mesh, goal = self._mesh_of(edge.source), self._mesh_of(edge.target)
            ends = self._shardings[edge.source], self._shardings[edge.target]
            if mesh is not None and mesh == goal:
                self._asked_of[key] = Asked(edge.value.type, mesh, *ends, edge.manual_axes)
            elif mesh is None or goal is None or edge.manual_axes or (mesh.size, mesh.devices) != (goal.size, goal.devices):
                self._asked_of[key] = None
            else:
                self._asked_of[key] = Asked(edge.value.type, mesh, *ends, target_mesh=goal)
        return self._asked_of[key]

    def _conversion(self, edge: Finding) -> Conversion:
        key = edge.value.type, edge.source, edge.target, edge.manual_axes
        if key not in self._converted:
            source, target = self._shardings[edge.source], self._shardings[edge.target]
            self._converted[key] = self._converted_from(source, target, self._asked(edge))
        return self._converted[key]

    def _converted_from(self, source: Sharding, target: Sharding, asked: Asked | None) -> Conversion:
        facts = _ON_DIFFERENT_MESHES if asked is None else self._record_on_disk.answer(asked.text, asked.facts)
        return Conversion(source, target, asked, facts)

    def _chains_of_constraints(self) -> dict[int, list[Finding]]:
        """Returns for the last site of each chain its edges, in order: constraints of constraints with no other user, on one mesh.

        A chain stays in one block, since a loop runs what is inside it again; and no site inside it has another edge, since
        that edge would look at the value too.
        """
        by_op = {edge.op: edge for edge in self.found.edges if edge.kind == kinds.CONSTRAINT and edge.number == 0}
        edges_of = self.found.by_site()
        chains: dict[int, list[Finding]] = {}
        followed = set()
        for op, edge in by_op.items():
            uses = list(op.results[0].uses)
            if len(edges_of[edge.site]) > 1 or len(uses) != 1 or uses[0].owner not in by_op:
                continue
            meshes = {self._mesh_of(each) for each in (edge.source, edge.target, by_op[uses[0].owner].target)}
            if uses[0].owner.operation.block == op.block and len(meshes) == 1:
                followed.add(op)
        for op, edge in by_op.items():
            if op in followed:
                continue
            chain = [edge]
            while (before := producer_of(chain[0].op.operands[0])) in followed:
                chain.insert(0, by_op[before])
            if len(chain) > 1:
                chains[edge.site] = chain
        return chains

    # Verdicts

    def _groups(self) -> list[list[Finding]]:
        """Returns the edges that are judged together: those of one op."""
        by_op: dict[ir.Operation, list[Finding]] = {}
        for edge in self.found.edges:
            by_op.setdefault(edge.op, []).append(edge)
        return list(by_op.values())

    def _judge_edge(self, edge: Finding, chain: list[Finding]) -> Verdict:
        conversion = self._merged(chain)
        if not conversion.is_planned:
            return Verdict(KEEP, conversion.problem)
        if conversion.asked.target_mesh is not None and conversion.facts["is_empty"]:
            return Verdict(KEEP, "both meshes place the value alike: nothing moves")
        if reason := self._is_miscompiled_around(chain[0], chain[-1]):
            return Verdict(KEEP, reason)
        if self.policy == "always":
            return Verdict(REWRITE, "the policy is always")
        layouts = [conversion.source, *[self._shardings[each.target] for each in chain]]
        kind = str(edge.value.type)
        question = repr(("pair", kind, layouts, conversion.asked.text))
        return self._verdict_on(question, lambda: self._oracle.judge_pair(kind, layouts, conversion.asked.plan))

    def _verdict_on(self, question: str, judge: Callable[[], Verdict]) -> Verdict:
        if question not in self._judged:
            self._judged[question] = Verdict.from_json(self._record_on_disk.answer(question, lambda: judge().as_json()))
        return self._judged[question]

    def _merged(self, chain: list[Finding]) -> Conversion:
        if len(chain) == 1:
            return self.conversions[chain[0].site]
        source, target, edge = self.conversions[chain[0].site].source, self.conversions[chain[-1].site].target, chain[-1]
        mesh = self._mesh_of(edge.target)
        asked = None if mesh is None else Asked(edge.value.type, mesh, source, target, edge.manual_axes)
        return self._converted_from(source, target, asked)

    def _judge_neighbourhood(self, group: list[Finding]) -> Verdict:
        op = group[0].op
        for edge in group:
            if not self.conversions[edge.site].is_planned:
                return Verdict(KEEP, self.conversions[edge.site].problem)
        reasons = (self._is_miscompiled_around(edge, edge) for edge in group)
        if reason := self._is_miscompiled(op, group) or next(filter(None, reasons), ""):
            return Verdict(KEEP, reason)
        if self.policy == "always":
            return Verdict(REWRITE, "the policy is always")
        operands = {e.number: self.conversions[e.site].asked for e in group if e.kind != kinds.RESULT}
        results = {e.number: self.conversions[e.site].asked for e in group if e.kind == kinds.RESULT}
        layouts = self._op_layouts.of(op, self._mesh_of(group[0].target))
        if layouts is None or any(each.target_mesh for each in (*operands.values(), *results.values())):
            return Verdict(KEEP, "the layouts around the op are unknown, or on several meshes")
        alike = _question(op, layouts, operands, results, self._numbers)
        if alike not in self._judged:
            question = _question_text(op, layouts, operands, results)
            judge = functools.partial(self._judged_alone, op, layouts, operands, results)
            self._judged[alike] = self._verdict_on(question, judge)
        return self._judged[alike]

    def _is_miscompiled(self, op: ir.Operation, group: list[Finding]) -> str:
        """Returns why the layouts that a rewrite holds at an op are none to be held there; empty if nothing is known against them."""
        if op.name == "stablehlo.dot_general" and self._op_layouts.scatters_sums(op):
            return miscompilations.SCATTERED_SUMS.reason
        held = {(edge.kind == kinds.RESULT, edge.number): edge.source if edge.kind == kinds.RESULT else edge.target for edge in group}
        return self._met(op, held, self._mesh_of(group[0].target))

    def _is_miscompiled_around(self, first: Finding, last: Finding) -> str:
        """Returns why a conversion is left to XLA: it would hold its ends at an op that XLA computes wrongly in such layouts.

        Such an op may be the producer of the value, which gets the layout `first` starts from, or a user of the constraint `last`.
        """
        producer = producer_of(first.value) if first.kind != kinds.RESULT else None
        if producer is not None:
            held = {(True, ir.OpResult(first.value).result_number): first.source}
            if reason := self._met(producer, held, self._mesh_of(first.source)):
                return f"it takes the result of {_short(producer)}: {reason}"
        users = last.op.results[0].uses if last.op.name in propagation.CONSTRAINTS else ()
        for use in users:
            user = use.owner.operation
            if reason := self._met(user, {(False, use.operand_number): last.target}, self._mesh_of(last.target)):
                return f"its user {_short(user)}: {reason}"
        return ""

    def _met(self, op: ir.Operation, held: dict[tuple[bool, int], ir.Attribute], mesh: Mesh | None) -> str:
        """Returns the reason of the row of the table that an op meets, with some layouts of its results and operands held."""
        if op.name not in miscompilations.OPS:
            return ""
        layouts = self._op_layouts.of(op, mesh)
        if layouts is None:
            return f"XLA partitions {_short(op)} wrongly in some layouts, and those around this one are unknown"
        for (is_result, number), attr in held.items():
            (layouts.results if is_result else layouts.operands)[number] = self._shardings[attr]
        found = miscompilations.miscompilation_of(miscompilations.AtOp(op, mesh, layouts.operands, layouts.results))
        return found.reason if found is not None else ""

    def _mesh_of(self, attr: ir.Attribute) -> Mesh | None:
        if attr not in self._meshes_of:
            self._meshes_of[attr] = mesh_of(attr, self.meshes)
        return self._meshes_of[attr]

    def _judged_alone(self, op: ir.Operation, layouts: Layouts, asked_operands, asked_results) -> Verdict:
        from reshard.dialect_utils.mini_modules import neighbourhood  # with all that writes collectives

        operands, results = ({number: each.plan for number, each in side.items()} for side in (asked_operands, asked_results))
        for number, plan in operands.items():
            layouts.operands[number] = plan.source
        for number, plan in results.items():
            layouts.results[number] = plan.target
        mesh = next(iter((*operands.values(), *results.values()))).mesh
        stock = neighbourhood(op, mesh, layouts.operands, layouts.results, {}, {}, layouts.constrained)
        ours = neighbourhood(op, mesh, layouts.operands, layouts.results, operands, results, layouts.constrained)
        if stock is None or ours is None:
            return Verdict(KEEP, "the op cannot be judged alone: it uses values or symbols from outside")
        return self._oracle.judge_texts(stock, ours, mesh)

    def _where_xla_agrees(self, verdicts: dict[int, Verdict]) -> dict[int, Verdict]:
        """Returns the verdicts with those turned down at whose sites XLA's own propagation finds other layouts (the canary)."""
        if not any(verdict.is_rewrite for verdict in verdicts.values()):
            return verdicts
        from reshard.dialect_utils import canary  # a module without a site to rewrite does without

        found = canary.compare_with_xla(self.module, self._op_layouts.analysis, self._oracle.child)
        self._results_of_xla = found.results
        if found.failure:
            self.session.count("unchecked", sum(verdict.is_rewrite for verdict in verdicts.values()))
            return verdicts
        checked = {}
        for position, verdict in verdicts.items():
            edge = self.found.edges[position]
            reason = found.at(edge.op, edge.number, edge.kind == kinds.RESULT) if verdict.is_rewrite else None
            checked[position] = verdict if reason is None else dataclasses.replace(verdict, action=KEEP, reason=reason)
        return checked

    def _follow_their_chains(self, inside, chains, verdicts, positions) -> dict[int, Verdict]:
        """Returns the verdicts of constraints inside a chain: they go where the chain's last site goes."""
        found = {}
        for edge in self.found.edges:
            if edge.site in inside:
                last = chains[inside[edge.site]][-1]
                verdict = verdicts[positions[id(last)]]
                reason = f"merged into site {last.site}" if verdict.is_rewrite else f"with site {last.site}: {verdict.reason}"
                found[positions[id(edge)]] = Verdict(verdict.action, reason)
        return found

    @functools.cached_property
    def _group_of(self) -> dict[ir.Operation, int]:
        return {group[0].op: number for number, group in enumerate(self._groups())}

    @functools.cached_property
    def _oracle(self) -> LoneOracle:
        return LoneOracle(self.session.options.get("xla_child") or xla_child.shared_child())

    @functools.cached_property
    def _op_layouts(self) -> OpLayouts:
        at_edges = {edge.op for edge in self.found.edges}
        behind = {use.owner.operation for op in at_edges if op.name in propagation.CONSTRAINTS for use in op.results[0].uses}
        before = {op for edge in self.found.edges if (op := producer_of(edge.value)) is not None}
        asked = at_edges | {op for op in behind | before if op.name in miscompilations.OPS}
        return OpLayouts(self.session.analysis or propagation.analyse(self.module), asked)

    # Results

    def _with_verdict(self, edge: Finding, verdict: Verdict, chains) -> Finding:
        chain = chains.get(edge.site, [edge])
        merges = len(chain) > 1
        conversion = self._merged(chain)
        key = id(verdict), id(conversion)  # many sites share both
        if not merges and not edge.extras and key in self._entries:
            return dataclasses.replace(edge, extras=self._entries[key])
        entries: dict[str, ir.Attribute] = {
            "verdict": ir.StringAttr.get(verdict.action),
            "reason": ir.StringAttr.get(verdict.reason),
        }
        if conversion.is_planned:
            entries["chain"] = ir.StringAttr.get(conversion.facts["chain"])
            entries |= {name: int64_attr(conversion.facts[name]) for name in _PLAN_ENTRIES}
        if verdict.stock is not None and verdict.stock.is_ok:
            entries["stock_bytes"] = int64_attr(verdict.stock.bytes_received)
            entries["stock_temp_bytes"] = int64_attr(verdict.stock.temp_bytes)
        if verdict.ours is not None and verdict.ours.is_ok:
            entries["our_bytes"] = int64_attr(verdict.ours.bytes_received)
            entries["our_temp_bytes"] = int64_attr(verdict.ours.temp_bytes)
        if merges and verdict.is_rewrite:
            entries["merges"] = ir.ArrayAttr.get([int64_attr(each.site) for each in chain[:-1]])
        planned = edge.with_extras(entries)
        if not merges and not edge.extras:
            self._entries[key] = planned.extras
        return planned

    def _record(self, planned: list[Finding], last_of: dict[int, int], chains: dict[int, list[Finding]]) -> None:
        """Counts and reports every site by an edge that is rewritten, if one is; remarks on every edge that is not."""
        for site, edges in Findings(tuple(planned)).by_site().items():
            shown = next((each for each in edges if self._facts(each)["verdict"] == REWRITE), edges[0])
            self.session.count("planned", self.conversions[site].is_planned)
            self.session.count(self._facts(shown)["verdict"])
            last = last_of.get(site, site)
            self.session.report_rows.append(self._row(shown, last, chains.get(last, [shown])))
        for edge in planned:
            facts = self._facts(edge)
            if facts["verdict"] == KEEP:
                where = self._line(edge.op) or edge.op
                self.session.remark(where, f"site {edge.site} ({edge.kind}) is left to XLA: {facts['reason']}")

    def _row(self, edge: Finding, last_of_chain: int, chain: list[Finding]) -> dict:
        """Returns what a report says of a site: plain values, bytes per device, None where unknown."""
        conversion = self.conversions[edge.site]
        row = {
            "site": edge.site,
            "group": f"site {last_of_chain}" if _is_data_flow(edge) else self._group_of[edge.op],
            "location": self._place(self._line(edge.op)),
            "kind": edge.kind,
            "op": edge.op.name,
            "type": self._text_of(edge.value.type),
            **conversion.ends,
            "why": edge.why,
        }
        calls = [{"function": frame.function, "location": self._place(frame.place)} for frame in self._frames(edge.op)]
        end = {"problem": self._merged(chain).solved, "provenance": self._provenance(edge), "location_chain": calls}
        return row | self._facts(edge) | end

    def _facts(self, edge: Finding) -> dict[str, Any]:
        """Returns what a report says of the plan and the verdict; sites share it."""
        key = id(edge.extras)
        if key not in self._facts_of:
            extras = dict(edge.extras)
            self._facts_of[key] = edge.extras, {name: _plain(extras.get(name)) for name in _ROW_ENTRIES}
        return self._facts_of[key][1]

    def _text_of(self, kind: ir.Type) -> str:
        if kind not in self._texts:
            self._texts[kind] = str(kind)
        return self._texts[kind]

    def _provenance(self, edge: Finding) -> list[dict]:
        """Returns what asked for each axis of either layout, where the session wants to know; plain values."""
        if self._origins is None:
            return []
        wanted = [edge.value] if edge.kind == kinds.RESULT else list(edge.op.results)
        others = [] if edge.kind == kinds.RESULT else [value for i, value in enumerate(edge.op.operands) if i != edge.number]
        target = {axis: origin for value in (*others, *wanted) for axis, origin in self._origins.of_value(value).items()}
        if edge.op.name in propagation.CONSTRAINTS:
            target = dict.fromkeys(target, self._origins.named("this constraint", edge.op))
        source = self._origins.of_value(edge.value) if edge.kind != kinds.RESULT else {}
        rows = [("source", sharding_from_attr(edge.source), source), ("target", sharding_from_attr(edge.target), target)]
        return [
            {"side": side, "axis": axis, "asked_by": origin.words, "location": self._place(origin.place)}
            for side, sharding, origins in rows
            for axis, origin in sorted(origins.items())
            if any(axis.partition(":")[0] == ref.name for axes in sharding.dims for ref in axes)
        ]

    def _line(self, op: ir.Operation) -> diagnostics.Place | None:
        """Returns the user's line that an op comes from."""
        return self._user_lines.place(self._frames(op))

    def _frames(self, op: ir.Operation) -> tuple[Frame, ...]:
        if op not in self._frames_of:
            self._frames_of[op] = frames_of(op)
        return self._frames_of[op]

    @functools.cached_property
    def _user_lines(self) -> UserLines:
        """Returns the lines of the sites; if some are constraints in a chain of calls, those of all constraints tell helpers."""
        ops = dict.fromkeys(edge.op for edge in self.found.edges)
        if any(op.name in propagation.CONSTRAINTS and len(self._frames(op)) > 1 for op in ops):
            analysis = self.session.analysis
            every = propagation.ops_in(self.module.operation) if analysis is None else analysis.originals
            ops |= dict.fromkeys(op for op in every if op.name in propagation.CONSTRAINTS)
        return UserLines(map(self._frames, ops))

    def _place(self, place: diagnostics.Place | None) -> str:
        if place is not None and place.file == "-":
            place = dataclasses.replace(place, file=self.session.options.get("input", "-"))
        return str(place) if place else ""

    @functools.cached_property
    def _origins(self) -> Origins | None:
        if not self.session.options.get("with_provenance"):
            return None
        from reshard.dialect_utils.origins import Origins  # few reports have it

        origins = Origins(self.module)
        if not origins.is_known:
            self.session.remark(None, "the report does not tell who asked for the layouts: Shardy cannot say where they come from")
        return origins


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
)


def _plain(attr: ir.Attribute | None):
    if isinstance(attr, ir.StringAttr):
        return attr.value
    return None if attr is None else ir.IntegerAttr(attr).value


_PLAN_ENTRIES = ("bytes_received", "bound_bytes", "largest_tile_bytes", "collectives")


class _Numbers:
    """Numbers that tell layouts apart: equal ones have the same. An object is compared once, which takes long.

    State: `known` has the objects that were asked for, so that no other one gets the id of one of them.
    """

    def __init__(self):
        self.known: dict[int, tuple[Sharding | None, int]] = {}
        self.numbers: dict[Sharding | None, int] = {}

    def __getitem__(self, each: Sharding | None) -> int:
        if id(each) not in self.known:
            self.known[id(each)] = each, self.numbers.setdefault(each, len(self.numbers))
        return self.known[id(each)][1]


def _question(op: ir.Operation, layouts: Layouts, operands: dict[int, Asked], results: dict[int, Asked], numbers: _Numbers) -> tuple:
    """Returns what the verdict on an op depends on: ops that ask the same are judged once. An op with regions is like no other."""
    own = op if len(op.regions) else tuple(each for each in op.attributes.items() if _is_its_own(each[0]))
    types = (*(value.type for value in op.operands), *(value.type for value in op.results))
    around = (tuple(numbers[each] for each in side) for side in (layouts.operands, layouts.results))
    plans = (tuple((number, id(each)) for number, each in sorted(side.items())) for side in (operands, results))
    return op.name, own, types, *around, layouts.constrained, *plans


def _question_text(op: ir.Operation, layouts: Layouts, operands: dict[int, Asked], results: dict[int, Asked]) -> str:
    """Returns what the verdict on an op depends on, for a record; of an op with regions all that it says."""
    own = [(name, str(each)) for name, each in op.attributes.items() if _is_its_own(name)]
    body = op.get_asm(print_generic_op_form=True, use_local_scope=True, assume_verified=True) if len(op.regions) else ""
    types = [str(value.type) for value in (*op.operands, *op.results)]
    plans = [[(number, each.text) for number, each in sorted(side.items())] for side in (operands, results)]
    return repr((op.name, own, body, types, layouts.operands, layouts.results, sorted(layouts.constrained), plans))


def _is_its_own(name: str) -> bool:
    return not name.startswith(PREFIX) and name != SHARDING


def _is_data_flow(edge: Finding) -> bool:
    """Returns whether the user of the value hands it on as it is, so that XLA faces the pair alone."""
    return edge.kind != kinds.RESULT and edge.op.name in EDGES_OF_DATA_FLOW


def _short(op: ir.Operation) -> str:
    return op.name.removeprefix("stablehlo.")
