# SPDX-License-Identifier: Apache-2.0
"""The judge: decides for a site, by the policy, whether our chain is written or the site is left to XLA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from reshard.dialect_utils.analysis import miscompilations
from reshard.dialect_utils.ir.index_ranges import Ranges
from reshard.dialect_utils.ir.ops import CONSTRAINTS, LOOPS, producer_of, short_name
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.shardings.sdy_shardings import SHARDING
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.conversions import Asked, Conversion, Conversions
from reshard.passes.sites.findings import PREFIX, Finding
from reshard.passes.sites.op_layouts import Layouts, OpLayouts
from reshard.passes.sites.oracle import (
    ALWAYS,
    KEEP,
    REWRITE,
    Answer,
    Criterion,
    LoneOracle,
    Question,
    Verdict,
    pair_question,
)
from reshard.passes.sites.site_records import SiteRecord
from reshard.synthesis.layouts.mesh import Mesh

_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
_DATA_FLOW_OPS = CONSTRAINTS | LOOPS | _RETURNS | {"func.call", "sdy.manual_computation"}


def is_data_flow(edge: Finding) -> bool:
    """Returns whether the user passes the value on unchanged, so that XLA sees only the two layouts."""
    return edge.kind != kinds.RESULT and edge.op.name in _DATA_FLOW_OPS


@dataclass(frozen=True)
class Case:
    """What the verdict on a site, or on an op with all its sites, depends on.

    Attributes:
      key: equal for cases that get the same verdict; any key.
      text: returns the same as a text, under which the answer is in the record on disk.
      write: returns the question; None if the op cannot be asked about alone.
      devices: the number of devices.
    """

    key: Hashable
    text: Callable[[], str]
    write: Callable[[], Question | None]
    devices: int

    @functools.cached_property
    def question(self) -> Question | None:
        return self.write()


class Verdicts:
    """The verdicts so far, in memory by the key of the case. The answers behind them are in the record on disk, by the
    text of the case; they do not depend on the policy.

    Args:
      oracle: returns the oracle; called only if a question is new.
    """

    def __init__(self, record: SiteRecord, criterion: Criterion, oracle: Callable[[], LoneOracle]):
        self._record, self._criterion, self._oracle = record, criterion, oracle
        self._by_key: dict[Hashable, Verdict] = {}

    def on(self, case: Case) -> Verdict:
        """Returns the verdict under the key of a case, else the one under its text, else that on a new answer."""
        if case.key not in self._by_key:
            text = case.text()
            if text not in self._by_key:
                self._by_key[text] = self._judged(text, case)
            self._by_key[case.key] = self._by_key[text]
        return self._by_key[case.key]

    def foresee(self, cases: Iterable[Case]) -> None:
        """Has the questions of cases answered together, if no answer is there yet, before `on` asks for them."""
        by_key: dict[Hashable, Case] = {}
        for case in cases:
            if case.key not in self._by_key:
                by_key.setdefault(case.key, case)  # the first, which `on` will ask, so that it is written once
        by_text: dict[str, Case] = {}
        for case in by_key.values():
            by_text.setdefault(case.text(), case)
        new = [case.question for text, case in by_text.items() if not self._record.has(text)]
        if questions := list(filter(None, new)):
            self._oracle().foresee(questions)

    def _judged(self, text: str, case: Case) -> Verdict:
        def asked() -> dict | None:
            return case.question and self._oracle().ask(case.question).as_json()

        written = self._record.answer(text, asked)
        if written is None:
            return _not_alone("it uses values or symbols from outside")
        return self._criterion.verdict(Answer.from_json(written), case.devices)


def _not_alone(why: str) -> Verdict:
    return Verdict(KEEP, f"the op cannot be judged alone: {why}", is_possible=True)


class SiteJudge:
    """Decides about conversions by a policy, one of `oracle.POLICIES`.

    Args:
      policy: ALWAYS rewrites wherever there is a chain; the others ask the oracle.
      conversions: the planned conversions of the module's sites.
      op_layouts: returns the layouts around ops; called only if they matter.
      oracle: returns the oracle; called only if a question is new.
    """

    def __init__(
        self,
        policy: str,
        conversions: Conversions,
        op_layouts: Callable[[], OpLayouts],
        oracle: Callable[[], LoneOracle],
    ):
        self.policy = policy
        self.conversions = conversions
        self._op_layouts = op_layouts
        self._oracle = oracle
        self._ranges = Ranges()
        self._verdicts = Verdicts(conversions.record, Criterion(policy, conversions.network), oracle)

    def verdicts(self, brought: Sequence[Verdict | Case]) -> list[Verdict]:
        """Returns the verdict on each site that was brought by `chain` or `op`; questions are answered together."""
        progress.at(f"plan-sites: asking about {len(brought)} ops")
        self._verdicts.foresee(each for each in brought if isinstance(each, Case))
        found = []
        for number, each in enumerate(brought, 1):
            progress.at("plan-sites: judging op", number, len(brought))
            found.append(self._verdicts.on(each) if isinstance(each, Case) else each)
        return found

    def chain(self, chain: list[Finding]) -> Verdict | Case:
        """Brings a chain of constraints or one edge of data flow, which is judged as a pair of layouts."""
        conversion = self.conversions.of_chain(chain)
        if (settled := self._settled_pair(chain, conversion)) is not None:
            return settled
        layouts = [conversion.source, *[self.conversions.shardings[each.target] for each in chain]]
        kind = str(chain[-1].value.type)
        asked = conversion.planned
        text = repr(("pair", kind, layouts, asked.text))
        size = asked.mesh.size
        return Case(text, lambda: text, lambda: pair_question(kind, layouts, asked.plan, asked.network, size), size)

    def _settled_pair(self, chain: list[Finding], conversion: Conversion) -> Verdict | None:
        """Returns the verdict on a pair if it is known without XLA; else None."""
        if not conversion.is_planned:
            return Verdict(KEEP, conversion.problem)
        if conversion.planned.target_mesh is not None and conversion.facts["is_empty"]:
            return Verdict(KEEP, "both meshes place the value alike: nothing moves")
        if reason := self._miscompiled_around(chain[0], chain[-1]):
            return Verdict(KEEP, reason)
        return Verdict(REWRITE, "the policy is always", is_possible=True) if self.policy == ALWAYS else None

    def op(self, group: list[Finding]) -> Verdict | Case:
        """Brings all edges of one op together, since XLA may partition the op in another way."""
        if (settled := self._settled_op(group)) is not None:
            return settled
        op = group[0].op
        converted = [(edge.kind == kinds.RESULT, edge.number, self.conversions.of_site(edge.site)) for edge in group]
        mesh = self._mesh(group[0].target)
        layouts = self._op_layouts().of(op, mesh)
        if layouts is None or any(each.planned.target_mesh for _, _, each in converted):
            return _not_alone("the layouts around it are unknown, or on several meshes")
        operands, results = (
            {number: each.planned for is_result, number, each in converted if is_result == side}
            for side in (False, True)
        )
        return Case(
            (*_key_of_op(op, layouts), *_conversion_keys(converted)),
            lambda: _text_of_op(op, layouts, operands, results),
            lambda: _op_question(op, layouts, operands, results),
            mesh.size,
        )

    def _settled_op(self, group: list[Finding]) -> Verdict | None:
        """Returns the verdict on the edges of an op if it is known without XLA; else None."""
        conversions = (self.conversions.of_site(edge.site) for edge in group)
        if (missing := next((each for each in conversions if not each.is_planned), None)) is not None:
            return Verdict(KEEP, missing.problem)
        around = (self._miscompiled_around(edge, edge) for edge in group)
        if reason := self._miscompiled(group) or next(filter(None, around), ""):
            return Verdict(KEEP, reason)
        return Verdict(REWRITE, "the policy is always", is_possible=True) if self.policy == ALWAYS else None

    # Ops that XLA computes wrongly in some layouts

    def _miscompiled(self, group: list[Finding]) -> str:
        """Returns why XLA would compute an op wrongly in the layouts that a rewrite fixes; empty if it is right."""
        op = group[0].op
        if op.name == "stablehlo.dot_general" and self._op_layouts().scatters_sums(op):
            return miscompilations.SCATTERED_SUMS.reason
        fixed = {
            (edge.kind == kinds.RESULT, edge.number): edge.source if edge.kind == kinds.RESULT else edge.target
            for edge in group
        }
        return self._miscompiled_with(op, fixed, self._mesh(group[0].target))

    def _miscompiled_around(self, first: Finding, last: Finding) -> str:
        """Returns why XLA would compute a neighbour of a conversion wrongly in a layout that it fixes; empty if right.

        The neighbours are the producer of the value, from whose layout `first` starts, and the users of the constraint
        `last`.
        """
        producer = producer_of(first.value) if first.kind != kinds.RESULT else None
        if producer is not None:
            fixed = {(True, ir.OpResult(first.value).result_number): first.source}
            if reason := self._miscompiled_with(producer, fixed, self._mesh(first.source)):
                return f"it takes the result of {short_name(producer)}: {reason}"
        for use in last.op.results[0].uses if last.op.name in CONSTRAINTS else ():
            user, fixed = use.owner.operation, {(False, use.operand_number): last.target}
            if reason := self._miscompiled_with(user, fixed, self._mesh(last.target)):
                return f"its user {short_name(user)}: {reason}"
        return ""

    def _mesh(self, sharding: ir.Attribute) -> Mesh:
        """Returns the mesh of one end of a planned conversion, which the module declares."""
        return present(self.conversions.mesh(sharding))

    def _miscompiled_with(self, op: ir.Operation, fixed: dict[tuple[bool, int], ir.Attribute], mesh: Mesh) -> str:
        """Returns the reason from the table of miscompilations that applies to an op; empty if XLA is right there.

        Args:
          fixed: layouts by (is a result, number), in place of those that propagation found.
        """
        if op.name not in miscompilations.OPS:
            return ""
        layouts = self._op_layouts().of(op, mesh)
        if layouts is None:
            return f"XLA partitions {short_name(op)} wrongly in some layouts, and those around this one are unknown"
        for (is_result, number), attr in fixed.items():
            (layouts.results if is_result else layouts.operands)[number] = self.conversions.shardings[attr]
        at = miscompilations.AtOp(op, mesh, layouts.operands, layouts.results, self._ranges)
        found = miscompilations.miscompilation_of(at)
        return found.reason if found is not None else ""


def _conversion_keys(converted: list[tuple[bool, int, Conversion]]) -> list[tuple]:
    """Returns a key for the conversions at an op, sorted by side and number."""
    ordered = sorted(converted, key=lambda each: each[:2])
    return [(is_result, number, conversion.key) for is_result, number, conversion in ordered]


def _op_question(
    op: ir.Operation, layouts: Layouts, asked_operands: dict[int, Asked], asked_results: dict[int, Asked]
) -> Question | None:
    """Returns the question about an op with all its conversions; None if it uses values from outside."""
    from reshard.dialect_utils.emission.mini_modules import neighbourhood  # loads the writers of collectives

    operands = {number: each.plan for number, each in asked_operands.items()}
    results = {number: each.plan for number, each in asked_results.items()}
    before, after = list(layouts.operands), list(layouts.results)
    for number, plan in operands.items():
        before[number] = plan.source
    for number, plan in results.items():
        after[number] = plan.target
    mesh = next(iter((*operands.values(), *results.values()))).mesh
    stock = neighbourhood(op, mesh, before, after, {}, {}, layouts.constrained)
    ours = neighbourhood(op, mesh, before, after, operands, results, layouts.constrained)
    return None if stock is None or ours is None else Question(stock, lambda: ours, mesh)


def _key_of_op(op: ir.Operation, layouts: Layouts) -> tuple:
    """Returns a key for an op and the layouts around it: ops with the same key get the same verdict.

    An op with regions has a key of its own.
    """
    own = op if len(op.regions) else tuple(each for each in op.attributes.items() if _is_own(each[0]))
    types = (*(value.type for value in op.operands), *(value.type for value in op.results))
    return op.name, own, types, layouts.attributes, layouts.constrained


def _text_of_op(op: ir.Operation, layouts: Layouts, operands: dict[int, Asked], results: dict[int, Asked]) -> str:
    """Returns a text with everything on which the verdict on an op depends, for a record on disk."""
    own = [(name, str(each)) for name, each in op.attributes.items() if _is_own(name)]
    body = op.get_asm(print_generic_op_form=True, use_local_scope=True, assume_verified=True) if len(op.regions) else ""
    types = [str(value.type) for value in (*op.operands, *op.results)]
    plans = [[(number, each.text) for number, each in sorted(side.items())] for side in (operands, results)]
    return repr((op.name, own, body, types, layouts.operands, layouts.results, sorted(layouts.constrained), plans))


def _is_own(name: str) -> bool:
    """Returns whether an attribute is part of the op itself: it is not one of ours, and not a sharding."""
    return not name.startswith(PREFIX) and name != SHARDING
