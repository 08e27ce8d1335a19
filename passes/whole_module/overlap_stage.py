# SPDX-License-Identifier: Apache-2.0
"""The last stage of the whole-module check: collectives next to products as pipelines, where the target's compiler
agrees.

It is for targets of compilation ahead of time alone: their compilers say what runs beside what. The pass
overlap-collectives proposes pipelines by its model. Those of one pattern are alike to a compiler: it fuses what they
make with what comes next, or it does not. So the patterns are tried one after the other, each with what has been taken
before: first products whose sums are scattered, which leave no whole product behind, last those that are put together,
and behind all what promises less than the model may be wrong. Those that are refused are tried again at the end,
together and beside what was taken since: in a layer that gathers its rows and scatters its sums, the whole array is
gone only when both are pipelines.

A pattern is taken if the modelled time of the compiler's schedule is shorter, neither its own estimate nor the time by
its code generator is longer, and no more memory is needed than stock XLA's. A compiler at hand is asked about fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.xla import at_hand
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import comparable_estimates
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER, KEEP, micros_of_both
from reshard.passes.whole_module.check_record import Check, with_ours
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.pipelined import by_pattern, keeps_sums, pipelined, promised_s, promises_little
from reshard.synthesis.common.numbers import counted

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.child import Compiled

LEAST_GAIN = 0.005  # share of the module's modelled time
MOST_ATTEMPTS = 4  # compilations
SAME_ESTIMATE = 0.001  # the part by which the compiler's estimate may be longer and count as the same
_BESIDE = frozenset(f"stablehlo.{kind}" for kind in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"))


def may_overlap(module: ir.Module, check: Check) -> bool:
    """Returns whether there is something to try: collectives that are written, and a compiler that can be asked."""
    is_asked = check.target is not None and check.target.is_ahead_of_time and bool(check.topology)
    return is_asked and check.ours.is_ok and any(op.name in _BESIDE for op in ops_in(module.operation))


def overlapped(original: ir.Module, module: ir.Module, pipeline: Pipeline, session: Session) -> ir.Module:
    """Returns the module with pipelines, and updates the last check of the session; or the module as it is.

    Args:
      original: as it came; `module` is the form of it that the check hands over. pipeline: the passes before the check.
    """
    if any(getattr(each, "policy", BETTER) != BETTER for each in pipeline.passes):
        return module
    stage = _Stage(original, module, session, pipeline)
    most = MOST_ATTEMPTS * session.options.effort
    at_hand.allow_pipelines(stage.child)
    for tried, numbers in enumerate(stage.attempts()):
        progress.at("whole-module check: products beside collectives", tried + 1, MOST_ATTEMPTS)
        stage.attempt(numbers, may_compile=tried < most and at_hand.left_of(stage.child) > 0)
    return stage.result()


class _Stage:
    """The attempts at one module.

    State: `taken`, the numbers of the pipelines that are written, `written` the module with them, `compiled` what the
    compiler makes of it; `refused`, the numbers of those that the compiler was asked about in vain, by pattern, and how
    many were taken then; `why_not` the reason why one is not taken, or was not at first.
    """

    def __init__(self, original: ir.Module, module: ir.Module, session: Session, pipeline: Pipeline):
        self.original, self.module, self.session = original, module, session
        self.keeps_sums = keeps_sums(pipeline)
        self.check = session.results.checks[-1]
        self.child = at_hand.asked(session.options.at_hand, session.options.xla_child)
        self.first = 1 + max((row["site"] for row in session.results.report_rows), default=-1)
        limits = (each.network.memory_limit for each in pipeline.passes if isinstance(each, PlanSitesPass))
        network = SiteNetwork(self.check.topology, next(limits, None))
        self.criterion = ModuleCriterion(BETTER, network, devices_of(module))
        self.taken: list[int] = []
        self.refused: list[tuple[list[int], int]] = []
        self.why_not: dict[int, str] = {}
        self.written, self.compiled = module, self.check.ours
        _, self.rows = self._with([])

    def attempts(self) -> Iterator[list[int]]:
        """Yields the numbers of the pipelines to try next: pattern by pattern, then again those that were refused."""
        yield from self._promising()
        tried: list[int] = []
        for may_be_weak in (False, True):
            again = self._again(may_be_weak)
            if again and again != tried:
                yield (tried := again)

    def _again(self, may_be_weak: bool) -> list[int]:
        """Returns the numbers of all pipelines that were refused, if they are part of another form together, or beside
        what was taken since; none otherwise.

        Args:
          may_be_weak: whether those that gain less than the model may be wrong are among them.
        """
        weak = {row["site"] for row in self.rows if promises_little(row)}
        refused = [each for each in self.refused if may_be_weak or not weak.intersection(each[0])]
        is_other = len(refused) > 1 or any(before < len(self.taken) for _, before in refused)
        return sorted(number for numbers, _ in refused for number in numbers) if is_other else []

    def _promising(self) -> list[list[int]]:
        """Returns the numbers of the pipelines that the pass would write, by pattern; none if all of them together
        promise too little, and none of a pattern that promises less than half of what it has to gain."""
        least_s = LEAST_GAIN * self._seconds(self.compiled)
        if promised_s(self.rows) < least_s:
            problem = f"all pipelines together promise less than {LEAST_GAIN:.1%} of the module's time"
            self.why_not = {row["site"]: problem for row in self.rows}
            return []
        found = []
        for numbers in by_pattern(self.rows):
            if promised_s([row for row in self.rows if row["site"] in numbers]) >= least_s / 2:
                found.append(numbers)
            else:
                problem = f"its pattern promises less than {LEAST_GAIN / 2:.2%} of the module's time"
                self.why_not.update(dict.fromkeys(numbers, problem))
        return found

    def attempt(self, numbers: list[int], *, may_compile: bool) -> None:
        """Takes pipelines beside those that are taken, if that is better."""
        is_again = any(set(each) <= set(numbers) for each, _ in self.refused)
        problem = "not tried: --effort lets more be compiled"
        if may_compile:
            written, rows = self._with(self.taken + numbers)
            compiled, problem = self._compiled(written, rows)
            if compiled is not None and not problem:
                self.written, self.compiled, self.rows = written, compiled, rows
                self.taken += numbers
                self.refused = [each for each in self.refused if not set(each[0]) <= set(numbers)]
                return
            if compiled is not None and compiled.is_ok and not is_again:
                self.refused.append((numbers, len(self.taken)))
        if is_again:  # the reason why each is refused alone stays
            return
        self.why_not.update(dict.fromkeys(numbers, problem))

    def _compiled(self, written: ir.Module, rows: list[dict]) -> tuple[Compiled | None, str]:
        """Returns what the compiler makes of a form of the module, and why it may not be taken; empty if it may."""
        if self.taken and _written(rows) == _written(self.rows):
            return None, "pipelines that are taken gain more"
        text, devices, target = str(written), devices_of(written), self.check.target
        timeout_s = xla_child.patience_s(target, self.compiled)
        compiled = self.child.compile(text, devices, target=target, timeout_s=timeout_s, with_estimate=False)
        if problem := self._problem(compiled):
            return compiled, problem
        if comparable_estimates(self.compiled, compiled) is not None:
            return compiled, ""
        if self.compiled.lacks_estimate:
            self.compiled = self.child.estimated(self.compiled, str(self.written), devices, target)
        if not self.check.is_rewritten and not self.taken:
            self.check = replace(self.check, stock=self.compiled, ours=self.compiled)
        compiled = self.child.estimated(compiled, text, devices, target)
        return compiled, self._problem(compiled)

    def result(self) -> ir.Module:
        """Returns the module with the pipelines that are taken, and hands it over to the session."""
        results = self.session.results
        for row in self.rows:
            if (number := row["site"]) not in self.taken:
                row["verdict"], row["is_rewritten"] = KEEP, False
                row["reason"] = f"left as it is: {self.why_not[number]}"
        results.report_rows += self.rows
        if not self.taken:
            return self.module
        self.session.remark(
            self.original.operation, f"{counted(len(_written(self.rows)), 'collective')} overlap with products"
        )
        sites = [row["site"] for row in results.report_rows if row["is_rewritten"]]
        results.checks[-1] = with_ours(self.check, self.compiled, self.original, self.written, sites, self.child)
        return self.written

    def _problem(self, compiled: Compiled) -> str:
        """Returns in words why a form of the module may not take the place of the best one; empty if it may."""
        stock = self.check.stock if self.check.stock.is_ok else self.check.ours
        if problem := self.criterion.problem(stock, compiled, with_time=False):
            return problem
        then, now = (self._seconds(each) for each in (self.compiled, compiled))
        if now > (1 - LEAST_GAIN) * then:
            return f"modelled time {micros_of_both(then, now)}"
        then, now = self.criterion.estimates_us(self.compiled, compiled)
        if now > (1 + SAME_ESTIMATE) * then:
            return f"the compiler's own estimate in us {then:,} -> {now:,}"
        # Estimates have prices of products of blocks from before there is code for them.
        generated = self.criterion.generated(self.compiled, compiled)
        if generated and generated[1] > (1 + SAME_ESTIMATE) * generated[0]:
            return f"time by the compiler's code generator {micros_of_both(*generated)}"
        return ""

    def _seconds(self, compiled: Compiled) -> float:
        return self.criterion.time(self.check.ours, compiled).seconds

    def _with(self, numbers: list[int]) -> tuple[ir.Module, list[dict]]:
        """Returns a copy of the module with some pipelines, all that promise something if none are named, and rows."""
        how = {"first": self.first, "only": numbers, "keeps_sums": self.keeps_sums, "any_gain": True}
        return pipelined(self.module, self.session, self.criterion.network, **how)


def _written(rows: list[dict]) -> list[int]:
    """Returns the numbers of the pipelines that are written, from their rows."""
    return [row["site"] for row in rows if row["is_rewritten"]]
