# SPDX-License-Identifier: Apache-2.0
"""The last stage of the whole-module check: collectives next to products as pipelines, where the target's compiler
agrees.

It is for targets of compilation ahead of time alone: their compilers say what runs beside what. The pass
overlap-collectives proposes pipelines by its model. All of them together, or the half that promises more, and so on,
are compiled, and written if the modelled time of the compiler's schedule is shorter, and neither its own estimate nor
the memory is worse. Memory is what is allocated: blocks that travel lie in the memory of the chip, of which there is
always as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.xla import child as xla_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER, KEEP, micros
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.whole_module_check import Check, with_ours
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.forms.platforms import platform_of

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.child import Compiled

PASS = "overlap-collectives"
LEAST_GAIN = 0.005  # share of the module's modelled time
MOST_ATTEMPTS = 3  # compilations
_BESIDE = frozenset({"stablehlo.all_gather", "stablehlo.reduce_scatter", "stablehlo.all_to_all"})


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
    progress.at("whole-module check: products beside collectives")
    keeps_sums = any(getattr(each, "keep_sums", False) for each in pipeline.passes)
    stage = _Stage(original, module, session, keeps_sums)
    numbers = stage.promising()
    for _ in range(MOST_ATTEMPTS):
        if not numbers:
            break
        written, rows, problem = stage.tried(numbers)
        if not problem:
            stage.hand_over(written, rows)
            return written
        numbers = numbers[: len(numbers) // 2]
    stage.tell_why_not()
    return module


class _Stage:
    """The attempts at one module.

    State: `rows` are those of all pipelines, the last `problem` is what spoke against some; `compiled` the last form.
    """

    rows: list[dict]
    problem: str = ""
    compiled: Compiled

    def __init__(self, original: ir.Module, module: ir.Module, session: Session, keeps_sums: bool):
        self.original, self.module, self.session, self.keeps_sums = original, module, session, keeps_sums
        self.check = session.results.checks[-1]
        self.child = session.options.xla_child or xla_child.shared_child()
        self.first = 1 + max((row["site"] for row in session.results.report_rows), default=-1)
        self.criterion = ModuleCriterion(
            BETTER, SiteNetwork(self.check.topology), devices_of(module), counts_chip=False
        )

    def promising(self) -> list[int]:
        """Returns the numbers of the pipelines that the pass would write, those that promise most first; none if all of
        them together promise too little."""
        _, self.rows = self._run("")
        gains = {row["site"]: row["stock_us"] - row["our_us"] for row in self.rows}
        self.problem = f"all pipelines together promise less than {LEAST_GAIN:.1%} of the module's time"
        if sum(gains.values()) < LEAST_GAIN * 1e6 * self.criterion.time(self.check.ours, self.check.ours).seconds:
            return []
        return sorted(gains, key=lambda number: (-gains[number], number))

    def tried(self, numbers: list[int]) -> tuple[ir.Module, list[dict], str]:
        """Returns the module with some pipelines, their rows, and why they may not be written; empty if they may."""
        written, rows = self._run("+".join(map(str, sorted(numbers))))
        target = self.check.target
        self.compiled = self.child.compile(str(written), devices_of(written), target=target, with_estimate=True)
        before = self.check.ours
        self.problem = self.criterion.problem(before, self.compiled)
        if not self.problem:
            then, now = (self.criterion.time(before, each).seconds for each in (before, self.compiled))
            if now > (1 - LEAST_GAIN) * then:
                self.problem = f"modelled time {micros(then)} -> {micros(now)}"
        return written, rows, self.problem

    def hand_over(self, written: ir.Module, rows: list[dict]) -> None:
        results = self.session.results
        results.report_rows += rows
        count = sum(row["is_rewritten"] for row in rows)
        self.session.remark(self.original.operation, f"{counted(count, 'collective')} overlap with products")
        sites = [row["site"] for row in results.report_rows if row["is_rewritten"]]
        results.checks[-1] = with_ours(self.check, self.compiled, self.original, written, sites, self.child)

    def tell_why_not(self) -> None:
        for row in self.rows:
            row["verdict"], row["is_rewritten"] = KEEP, False
            row["reason"] = f"left as it is: {self.problem}"
        self.session.results.report_rows += self.rows

    def _run(self, only: str) -> tuple[ir.Module, list[dict]]:
        """Returns a copy of the module after the pass, and the report rows of the pass."""
        session = Session(self.session.options)
        assert self.check.target is not None
        options = {
            "topology": self.check.topology,
            "platform": platform_of(self.check.target.platform),
            "first": str(self.first),
            "only": only,
            "keep-sums": str(self.keeps_sums).lower(),
        }
        with self.module.context:
            written = ir.Module.parse(compat.bytecode(self.module))
            Pipeline.parse(PASS).with_options(options).run(written, session)
        return written, session.results.report_rows
