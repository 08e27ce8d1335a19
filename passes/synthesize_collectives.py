# SPDX-License-Identifier: Apache-2.0
"""The pass synthesize-collectives: islands of collectives in place of the conversions that were chosen."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from reshard.dialect_utils.ir.ops import CONSTRAINTS, LOOPS, parent_of
from reshard.dialect_utils.platform.bindings import ir, sdy
from reshard.dialect_utils.shardings.sdy_shardings import (
    SHARDING,
    mesh_of,
    module_meshes,
    per_value,
    sharding_from_attr,
)
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.findings import (
    Finding,
    Findings,
    hand_on_findings,
    pin_results,
    read_findings,
    write_findings,
)
from reshard.passes.sites.network import (
    NetworkOptions,
    SiteNetwork,
    memory_limit_option,
    platform_option,
    topology_option,
)
from reshard.passes.sites.oracle import KEEP, REWRITE
from reshard.passes.sites.site_numbers import SiteNumbers, leave_option, only_option
from reshard.synthesis.forms.platforms import FORMS

if TYPE_CHECKING:
    from reshard.synthesis.planner.entry import Plan


@dataclasses.dataclass(frozen=True)
class SynthesizeCollectivesPass(SiteNumbers, NetworkOptions, Pass):
    """Rewrites the sites whose verdict is "rewrite"; the rest of the module stays."""

    name = "synthesize-collectives"
    summary = "replace the chosen conversions by chains of collectives"
    description = """
    Inserts an `sdy.manual_computation` (an island) whose body is the planned chain on one device's tile. Its
    in_shardings are the layout that the analysis found at the value, its out_shardings the layout that the user needs.
    A constraint that asked for this layout is erased. A chain of constraints whose values have no other user becomes
    one island. If a dimension does not divide into equal tiles, the value is padded to whole tiles before the island
    and cut after it, as XLA stores it. Inside another manual computation the island has the axes that are left. Runs
    after plan-sites.

    Before ==> after:
    ```mlir
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]>
        {reshard.operand_sites = [{..., verdict = "rewrite"}]} : tensor<8x8xf32>
    ```
    ```mlir
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
        manual_axes={"x"} (%arg1: tensor<4x8xf32>) {
      %1 = stablehlo.reshape %arg1 : (tensor<4x8xf32>) -> tensor<4x2x4xf32>
      ...
      %3 = "stablehlo.all_to_all"(%2) <{...}> : (tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
      ...
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    ```
    """
    guarantees = (
        "no site with the verdict rewrite is left, except those that the option leave names",
        "the types, functions and arguments of the module are what they were",
        "where a site is rewritten, results that the caller left open have the sharding that stock XLA gives them",
    )
    takes_findings = True
    statistics = {
        "islands": "chains of collectives inserted",
        "merged": "constraints that vanished in the chain behind them",
        "left": "sites left to XLA",
    }

    emit: str = option(
        "auto",
        "write StableHLO collectives on tiles (manual), or Shardy's collectives, which XLA does not read (sdy); auto "
        "writes as manual does, and the whole-module check then also tries convert-to-local on the whole module",
        choices=("manual", "sdy", "auto"),
    )
    platform: str = platform_option()
    topology: str = topology_option()
    memory_limit: int = memory_limit_option()
    only: str = only_option()
    leave: str = leave_option()

    def run(self, module: ir.Module, session: Session) -> None:
        found = session.handed_on.findings or read_findings(module)
        if found is None:
            session.running.is_module_valid = True
            session.remark(
                module.operation, "nothing is rewritten: the module has no findings; run find-mismatches first"
            )
            return
        left_alone = self.numbers_left
        rewriter = _Rewriter(module, session, self.emit, self.written_for, self.network, self.numbers_only)
        rewriter.rewrite([edge for edge in found.edges if edge.site not in left_alone])
        done = {id(edge) for edge in rewriter.rewritten}
        remaining = [edge for edge in found.edges if id(edge) not in done]
        if rewriter.rewritten:
            pin_results(module, found.open_results)
            _keep_apart(module, self.emit, self.written_for)
        left = dataclasses.replace(found, edges=tuple(remaining))
        if rewriter.rewritten or session.handed_on.findings is None:  # ops with older findings may be erased
            write_findings(module, left)
        else:
            hand_on_findings(module, left, session)
        if not rewriter.rewritten:
            session.running.is_module_valid = all(_verdict(edge) != REWRITE for edge in found.edges)
        session.count("left", len({edge.site for edge in remaining}))
        _note_in_report(session, found, {edge.site for edge in rewriter.rewritten}, left_alone)


def _keep_apart(module: ir.Module, emit: str, platform: str) -> None:
    if emit != "sdy":
        from reshard.dialect_utils.emission.island_barriers import separate_islands  # only if there are islands
        from reshard.dialect_utils.emission.shared_windows import separate_users
        from reshard.dialect_utils.emission.slice_starts import put_starts_in_range

        if FORMS[platform].has_barriers:
            separate_islands(module)
        separate_users(module)
        put_starts_in_range(module.operation)


class _Rewriter:
    """Inserts islands into one module.

    State: `rewritten` has the edges that are done; constraints among them are erased. An edge reads its operand when
    its turn comes. So, after a site of a result, later sites on that value convert the result of its island.
    """

    def __init__(
        self,
        module: ir.Module,
        session: Session,
        emit: str,
        platform: str,
        network: SiteNetwork,
        only: frozenset[int] = frozenset(),
    ):
        self.session = session
        self.emit = emit
        self.platform = platform
        self.network = network
        self.only = only
        self.meshes = module_meshes(module)
        self.module = module
        self.rewritten: list[Finding] = []

    @functools.cached_property
    def channels(self) -> Iterator[int]:
        """Yields channel handles that no collective of the module uses."""
        from reshard.dialect_utils.emission.tile_emission import (
            unused_channels,  # loads the writers of collectives, as below
        )

        return unused_channels(self.module)

    def rewrite(self, edges: list[Finding]) -> None:
        by_site: dict[int, list[Finding]] = {}
        for edge in edges:
            if self._is_chosen(edge):
                by_site.setdefault(edge.site, []).append(edge)
            elif _verdict(edge) is None:
                self.session.remark(
                    edge.op, f"site {edge.site} is left to XLA: it has no verdict; run plan-sites first"
                )
        sites = list(by_site.values())
        absorbed = {number for site in sites for edge in site for number in _merges(edge)}
        sources = {(edge.op, edge.number): edge.source for edge in edges if edge.kind != kinds.RESULT}
        for edge in (
            edge for site in sites for edge in site if edge.kind == kinds.CONSTRAINT and edge.site not in absorbed
        ):
            self._feed_from_constraint(edge, sources)
        for site in sorted(sites, key=lambda site: site[0].kind != kinds.RESULT):
            if site[0].site in absorbed:
                continue
            if site[0].kind == kinds.RESULT:
                self._convert_result(site[0])
            elif _merges(site[0]):
                self._convert_chain(site[0], by_site)
            else:
                self._convert_uses(site)

    def _is_chosen(self, edge: Finding) -> bool:
        if self.only:
            return edge.site in self.only and (_verdict(edge) == REWRITE or edge.extra("possible") is not None)
        return _verdict(edge) == REWRITE

    def _feed_from_constraint(self, constraint: Finding, sources: dict[tuple[ir.Operation, int], ir.Attribute]) -> None:
        """Makes users of a value use the constraint on it, if they convert from its layout or ask for its layout again.

        Propagation and XLA do this themselves for a value that a loop or barrier hands on, but not after the constraint
        has become an island. If the constraint comes after such a user, the constraint moves in front of the user.

        Args:
          sources: the sources of all sites, by user and operand number.
        """
        for user, number in [(use.owner.operation, use.operand_number) for use in constraint.value.uses]:
            if (user, number) in sources:
                is_fed = sources[user, number] == constraint.target
            else:
                is_fed = (
                    user.name in CONSTRAINTS and user.attributes["sharding"] == constraint.op.attributes["sharding"]
                )
            around = _op_around(user, constraint.op.block) if is_fed else None
            if around is None:
                continue
            if not _is_behind(around, constraint.op):
                constraint.op.move_before(around)
            user.operands[number] = constraint.op.results[0]

    def _convert_result(self, edge: Finding) -> None:
        value = edge.op.results[edge.number]
        users = [(use.owner, use.operand_number) for use in value.uses]
        with _insertion_after(value):
            island = self._island(edge, value, edge.source)
        if island is not None:
            for user, number in users:
                user.operands[number] = island
            _state_result_sharding(edge.op, edge.number, edge.source)
            self.rewritten.append(edge)

    def _convert_chain(self, last: Finding, by_site) -> None:
        """Replaces the chain of constraints that ends at `last` by one island."""
        chain = [by_site[number][0] for number in _merges(last) if number in by_site] + [last]
        value = chain[0].op.operands[0]
        with _insertion_before(value, [last.op]):
            result = self._island(last, value, chain[0].source)
        if result is None:
            return
        for edge in reversed(chain):
            self._replace_constraint(edge.op, result)
        self.rewritten += chain
        self.session.count("merged", len(chain) - 1)

    def _convert_uses(self, edges: list[Finding]) -> None:
        """Converts one value for all edges of a site at once."""
        first = edges[0]
        value = first.op.operands[first.number]
        with _insertion_before(value, [edge.op for edge in edges]):
            result = self._island(first, value, first.source)
        if result is None:
            return
        for edge in edges:
            if edge.op.name in CONSTRAINTS:
                self._replace_constraint(edge.op, result)
            else:
                edge.op.operands[edge.number] = result
        self.rewritten += edges

    def _replace_constraint(self, constraint: ir.Operation, result: ir.Value) -> None:
        constraint.results[0].replace_all_uses_with(result)
        constraint.erase()

    def _island(self, edge: Finding, value: ir.Value, source: ir.Attribute) -> ir.Value | None:
        """Inserts the conversion of an edge and returns its result; None, with a remark, if there is no chain."""
        try:
            chain = self._plan(edge, value.type, source)
        except ValueError as problem:  # NoPlanError is one
            self.session.remark(edge.op, f"site {edge.site} is left to XLA: no chain: {problem}")
            return None
        if not chain.steps:  # both ends of a merged chain have the same layout: a constraint keeps this layout
            return sdy.ShardingConstraintOp(value, edge.target, loc=edge.op.location).result
        name = f"reshard/{edge.site}"
        if self.emit == "sdy":
            return self._shardy_chain(edge, chain, value, source, name)
        from reshard.dialect_utils.emission.tile_emission import Mark, emit_plan

        self.session.count("islands")
        mark = Mark(self.channels, name, edge.op.location, self.platform)
        around = mesh_of(edge.target, self.meshes) if edge.manual_axes else None
        return emit_plan(chain, value, source, edge.target, mark, around)

    def _shardy_chain(
        self, edge: Finding, best: Plan, value: ir.Value, source: ir.Attribute, name: str
    ) -> ir.Value | None:
        """Inserts a chain of Shardy's collectives and returns its result; None, with a remark, if there is no chain."""
        from reshard.dialect_utils.emission.sdy_chains import emit_sdy_chain  # for this form only
        from reshard.synthesis.programs.blocked_chains import blocked_chain

        is_plain = not edge.manual_axes and best.target_mesh is None and _divides(best)
        chain = blocked_chain(best.mesh, best.shape, best.source, best.target) if is_plain else None
        if chain is None:
            why = f"Shardy's collectives do not express the chain {best.chain_text}; --emit=manual does"
            self.session.remark(edge.op, f"site {edge.site} is left to XLA: {why}")
            return None
        self.session.count("islands")
        received = -(-chain.received_elements * best.bits // 8)
        if received > best.bytes_received:
            more = (
                f"receives {received:,} bytes per device, {best.bytes_received:,} with --emit=manual: {best.chain_text}"
            )
            self.session.remark(edge.op, f"site {edge.site}: the chain of Shardy's collectives {more}")
        return emit_sdy_chain(chain, value, source, edge.target, name, edge.op.location)

    def _plan(self, edge: Finding, value_type: ir.Type, source: ir.Attribute) -> Plan:
        from reshard.passes.sites.site_plans import site_plan

        mesh, goal = mesh_of(source, self.meshes), mesh_of(edge.target, self.meshes)
        if mesh is None or goal is None:
            raise ValueError(f"unknown mesh in {source if mesh is None else edge.target}")
        ends = sharding_from_attr(source), sharding_from_attr(edge.target)
        return site_plan(value_type, mesh, *ends, edge.manual_axes, None if mesh == goal else goal, self.network)


def _divides(plan: Plan) -> bool:
    """Returns whether all dimensions divide among the shards of both ends."""
    return all(
        size % count == 0
        for side in (plan.source, plan.target)
        for size, count in zip(plan.shape, side.shards(plan.mesh))
    )


def _state_result_sharding(op: ir.Operation, number: int, sharding: ir.Attribute) -> None:
    """Sets the sharding of a result on the op, if the op states shardings.

    With the old sharding on the op, propagation would convert the result before the island.
    """
    stated = per_value(op)
    if stated is not None:
        stated[number] = sharding
        op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(stated)


def _insertion_after(value: ir.Value) -> ir.InsertionPoint:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return ir.InsertionPoint.at_block_begin(owner)
    return ir.InsertionPoint.after(owner)


def _insertion_before(value: ir.Value, users: list[ir.Operation]) -> ir.InsertionPoint:
    """Returns the point before the first of the users, in the innermost block that holds them all.

    The point is never inside a loop that the value enters from outside: the conversion runs once before such a loop,
    not in every iteration.
    """
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    paths = [_path(user, block) for user in users]
    while all(len(path) > 1 for path in paths) and _share_a_block(paths):
        paths = [path[1:] for path in paths]
    first, *others = (path[0] for path in paths)
    for op in others:
        first = op if op.is_before_in_block(first) else first
    return ir.InsertionPoint(first)


def _op_around(op: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """Returns the op of `block` that is `op` or contains it; None if there is no such op."""
    around = op.operation
    while around is not None and around.block != block:
        around = around.parent.operation if around.parent is not None else None
    return around


def _is_behind(op: ir.Operation, other: ir.Operation) -> bool:
    """Returns whether `op` comes after `other` in their block."""
    return other.operation.is_before_in_block(op.operation)


def _path(op: ir.Operation, block: ir.Block) -> list[ir.Operation]:
    """Returns the ops that contain `op`, outermost first, from the one in `block` down to `op` itself."""
    path = [op.operation]
    while path[0].block != block:
        path.insert(0, parent_of(path[0]))
    return path


def _share_a_block(paths: list[list[ir.Operation]]) -> bool:
    """Returns whether the next ops of all paths are in the same block of one op, and this op is not a loop."""
    return paths[0][0].name not in LOOPS and all(path[1].block == paths[0][1].block for path in paths)


def _verdict(edge: Finding) -> str | None:
    attr = edge.extra("verdict")
    return None if attr is None else ir.StringAttr(attr).value


def _merges(edge: Finding) -> list[int]:
    attr = edge.extra("merges")
    return [] if attr is None else [ir.IntegerAttr(each).value for each in ir.ArrayAttr(attr)]


def _note_in_report(session: Session, found: Findings, rewritten: Set[int], left_alone: Set[int]) -> None:
    """Writes into the newest report row of each site whether it was rewritten."""
    unnoted = {edge.site for edge in found.edges}
    for row in reversed(session.results.report_rows):
        if row["site"] in unnoted:
            unnoted.discard(row["site"])
            row["is_rewritten"] = row["site"] in rewritten
            if row["site"] in left_alone:
                row["verdict"] = KEEP
