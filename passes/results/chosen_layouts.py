# SPDX-License-Identifier: Apache-2.0
"""Layouts that are chosen between the arguments and the results of a program, where that makes it clearly faster.

Propagation gives most tensors of a program their layouts, and takes the first one that fits. With `layouts=chosen` the
pass assign-layouts looks for better ones: arguments and results stay as they are, and so does what the program itself
constrains, so that callers see no difference. Then the module with these layouts goes through the pipeline and its
checks like any other. What comes out takes the place of the module with the layouts of propagation if it is clearly
faster than that, by the measure of `module_cost`, and needs no more memory than stock XLA's program.

Sums are added up in another order then, as ever where layouts differ. XLA computes some ops wrongly in some layouts,
and nobody has seen these ones. So a module in which an op is left to XLA's partitioner is taken only if the table of
miscompilations doubts none of its ops, and a run of it computes what the module as it came does. Else the module is
written per device as a whole.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.functions import functions_of, has_body
from reshard.dialect_utils.ir.ops import CONSTANTS, CONSTRAINTS
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import comparable_estimates
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.driver.registry import ASSIGNMENT, AUTO, GIVEN
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.results import checks, suspects
from reshard.passes.sites.oracle import BETTER
from reshard.passes.whole_module import check_record
from reshard.passes.whole_module.module_cost import ModuleCriterion, compared, is_clearly_faster
from reshard.passes.whole_module.site_groups import names_sites

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.child import Compiled
    from reshard.passes.whole_module.check_record import Check
    from reshard.passes.whole_module.joint_choice import Outcome

_NO_WORK = ("sdy.manual_computation", "func.return")
_DOUBT = "XLA is not known to be right with chosen layouts"
_STAY = "layouts between arguments and results stay"
_THAN = "with those of propagation"


def problem_of(pipeline: Pipeline, *, compiles: bool, needs_run: bool) -> str:
    """Returns in words why layouts cannot be chosen in a run; empty if they can. The rest is as for
    `checks.run_and_checked`."""
    planning = _planning(pipeline)
    if not compiles:
        return "nothing is measured as a whole"
    if pipeline.emission != AUTO or planning is None or planning.policy != BETTER or names_sites(pipeline):
        return f"they are chosen with emit={AUTO}, policy={BETTER} and no sites named"
    if any(each.name == ASSIGNMENT for each in pipeline.passes):
        return f"the pipeline itself has {ASSIGNMENT}"
    return "passes are watched, which would run twice" if needs_run else ""


def best(
    as_given: Callable[[], ir.Module],
    parse_original: Callable[[], ir.Module],
    pipeline: Pipeline,
    session: Session,
    value_bytes: int | None,
    problem: str,
) -> ir.Module:
    """Returns the module after a pipeline and its checks, with chosen layouts if it is clearly faster with them.

    Args:
      as_given: returns it with the layouts of propagation, and records its results in `session`. If other layouts are
        chosen, the results of the run with them take the place of these.
      parse_original: returns the module before `pipeline`.
      value_bytes: as for `checks.checked`. problem: why layouts are not to be chosen, which is said; empty if they are.
    """
    before = _Before.of(session)
    given = as_given()
    if problem:
        session.remark(given.operation, f"{_STAY}: {problem}")
        return given
    contest = _Contest(parse_original, pipeline, session, value_bytes, before.check_of(session), given)
    try:
        with given.context:
            found = contest.winner()
    except DiagnosedError as error:
        session.remark(given.operation, f"{_STAY}: {error.diagnostics[0].message}")
        return given
    if isinstance(found, str):
        session.remark(given.operation, f"{_STAY}: {found}")
        return given
    before.replace_results(session, found.session)
    session.results.checks[before.checks :] = [contest.check_of(found)]
    said = contest.compared(found)
    session.remark(found.module.operation, f"layouts between arguments and results are chosen: {said}")
    return found.module


def _planning(pipeline: Pipeline) -> PlanSitesPass | None:
    return next((each for each in pipeline.passes if isinstance(each, PlanSitesPass)), None)


@dataclass(frozen=True)
class _Before:
    """What a session had recorded before a module came."""

    rows: int
    checks: int
    value_checks: int
    diagnostics: int
    statistics: Counter[tuple[str, str]]

    @classmethod
    def of(cls, session: Session) -> _Before:
        held = session.results
        said = len(held.diagnostics.diagnostics)
        return cls(len(held.report_rows), len(held.checks), len(held.value_checks), said, Counter(held.statistics))

    def check_of(self, session: Session) -> Check | None:
        """Returns the check of the module, if there is one."""
        return session.results.checks[-1] if len(session.results.checks) > self.checks else None

    def replace_results(self, session: Session, own: Session) -> None:
        """Puts the results of another run in the place of those of the module."""
        held, new = session.results, own.results
        held.report_rows[self.rows :] = new.report_rows
        held.checks[self.checks :] = new.checks
        held.value_checks[self.value_checks :] = new.value_checks
        held.diagnostics.diagnostics[self.diagnostics :] = new.diagnostics.diagnostics
        held.statistics = self.statistics + new.statistics


@dataclass(frozen=True)
class _LaidOut:
    """The module with chosen layouts, before the pipeline, as bytecode; and what the passes said and counted."""

    content: bytes
    context: ir.Context
    session: Session

    def parse(self) -> ir.Module:
        return ir.Module.parse(self.content, self.context)


@dataclass(frozen=True)
class _Chosen:
    """The module with chosen layouts after the pipeline and its checks, compiled, with the session of that run."""

    module: ir.Module
    laid_out: _LaidOut
    session: Session
    compiled: Compiled
    outcome: Outcome

    @property
    def check(self) -> Check | None:
        return self.session.results.checks[-1] if self.session.results.checks else None

    @property
    def constraints(self) -> int:
        return self.session.results.statistics[ASSIGNMENT, "constraints"]


class _Contest:
    """The module with the layouts of propagation, `given`, beside forms with chosen layouts.

    Args:
      check: of `given`; None if nothing was compiled, since nothing could be rewritten in it.
    """

    def __init__(
        self,
        parse_original: Callable[[], ir.Module],
        pipeline: Pipeline,
        session: Session,
        value_bytes: int | None,
        check: Check | None,
        given: ir.Module,
    ):
        self._parse, self._pipeline, self._session, self._value_bytes = parse_original, pipeline, session, value_bytes
        self._network, self._target = _planning(pipeline).network, session.options.compile_for  # pyright: ignore[reportOptionalMemberAccess]
        self._child = session.options.xla_child or xla_child.shared_child()
        self._devices = devices_of(given)
        self._criterion = ModuleCriterion(BETTER, self._network, self._devices)
        self._check = check
        self._stock = check.stock if check else self._compiled(given)
        ours = check.ours if check else self._stock
        self._given = self._criterion.outcome(self._stock, ours, 0)

    def winner(self) -> _Chosen | str:
        """Returns the form with chosen layouts if it may take the place of the given one, else in words why not.

        Layouts are chosen without a limit; if they need more memory than there is, once more with as much as that.
        Raises: DiagnosedError if none can be chosen.
        """
        if self._devices == 1:
            return "the module is for one device"
        laid_out = self._laid_out(None)
        found = self._form_of(laid_out)
        why_not = self._why_not_faster(found)
        if why_not and self._is_faster_with_memory(found):
            with contextlib.suppress(DiagnosedError):
                laid_out = self._laid_out(self._most_bytes)
                found = self._form_of(laid_out)
                why_not = self._why_not_faster(found) and why_not  # what more memory allows is worth more
        if why_not or not (doubt := self._doubt(found)):
            return why_not or found
        found = self._form_of(laid_out, doubt)
        return self._why_not_faster(found) and doubt or self._doubt(found) or found

    @property
    def _most_bytes(self) -> int:
        """Returns the memory that a form may need: as much as stock XLA's program, or the limit if that is higher."""
        return max(self._stock.limited_bytes, self._network.memory_limit or 0)

    def _is_faster_with_memory(self, found: _Chosen) -> bool:
        """Returns whether a form would be taken if it needed less memory."""
        lacks_memory = self._criterion.missing_limit(self._stock, found.compiled) is not None
        return lacks_memory and is_clearly_faster(replace(found.outcome, problem=""), self._given, self._criterion)

    def _why_not_faster(self, found: _Chosen) -> str:
        """Returns in words why a form is not taken for its time or its memory; empty if it may be."""
        if not found.outcome.problem and is_clearly_faster(found.outcome, self._given, self._criterion):
            return ""
        if not self._is_faster_with_memory(found):
            return self.compared(found)
        limit = self._criterion.missing_limit(self._stock, found.compiled)
        free = replace(found, outcome=replace(found.outcome, problem=""))
        return f"{found.outcome.problem}; --memory-limit={limit} allows them: {self.compared(free)}"

    def compared(self, found: _Chosen) -> str:
        """Returns in words how the form with chosen layouts compares with the given one."""
        return compared(found.outcome, self._given, "with chosen layouts", _THAN)

    def check_of(self, found: _Chosen) -> Check:
        """Returns the check of the module as it came, with the form with chosen layouts handed over."""
        both = self._stock, found.compiled
        times = [self._criterion.time(self._stock, each) if each.is_ok else None for each in both]
        own = found.check
        rows = found.session.results.report_rows
        attempts = (own.attempts if own else 1) + (self._check.attempts if self._check else 0)
        traffic = None
        if self._session.options.with_traffic:
            sides = self._parse(), found.module
            traffic = check_record.traffic_of(*sides, self._child, self._network, self._target, rows)
        made = own or check_record.Check(self._stock, found.compiled, (), True, self._target, self._network.text)
        return replace(
            made,
            stock=replace(self._stock, from_cache=False),
            ours=replace(found.compiled, from_cache=False),
            stock_time=times[0],
            our_time=times[1],
            is_rewritten=True,
            attempts=attempts,
            traffic=traffic,
            layouts=found.constraints,
            mesh=check_record.mesh_of(found.module),
            kept=None,
        )

    def _laid_out(self, memory_limit: int | None) -> _LaidOut:
        """Returns the module with the best layouts by the model, before the pipeline."""
        progress.at("choosing layouts between arguments and results")
        options = {"signature": "keep"}
        if self._network.is_known:
            options["topology"] = self._network.text
        if memory_limit is not None:
            options["memory-limit"] = str(memory_limit)
        passes = self._pipeline.with_layouts(options).passes
        module, own = self._parse(), Session(replace(self._session.options, layouts=GIVEN))
        Pipeline(tuple(each for each in passes if each.states_shardings)).run(module, own)
        return _LaidOut(compat.bytecode(module), module.context, own)

    def _form_of(self, laid_out: _LaidOut, doubt: str = "") -> _Chosen:
        """Returns the module with chosen layouts after the pipeline and its checks, whose forms may need as much memory
        as stock XLA's program of the module as it came.

        Args:
          doubt: why ops are not to be left to XLA; empty if they may be.
        """
        pipeline = self._pipeline
        if self._stock.is_ok:
            pipeline = pipeline.with_options({"memory-limit": str(self._most_bytes)})
        own, before = Session(laid_out.session.options), laid_out.session.results
        own.results.diagnostics.diagnostics += before.diagnostics.diagnostics
        own.results.statistics += before.statistics
        module = laid_out.parse()

        def run(part: Pipeline) -> ir.Module:
            part.run(module, own)
            return module

        asked = {"compiles": True, "value_bytes": None, "distrust": doubt}
        handed = checks.run_and_checked(laid_out.parse, run, pipeline, own, **asked)
        compiled = own.results.checks[-1].ours if own.results.checks else self._compiled(handed)
        if comparable_estimates(self._stock, compiled) is None:
            compiled = self._child.estimated(compiled, str(handed), self._devices, self._target)
        return _Chosen(handed, laid_out, own, compiled, self._criterion.outcome(self._stock, compiled, 0))

    def _compiled(self, module: ir.Module) -> Compiled:
        network = self._network
        how = {"target": self._target, "has_final": network.has_final, "stands_in": network.stands_in}
        return self._child.compile(str(module), self._devices, **how)

    def _doubt(self, found: _Chosen) -> str:
        """Returns in words why a form may compute other values than the module; empty if it does not, as far as it is
        known. What runs say is recorded."""
        from reshard.passes.results import values_check

        is_left = _leaves_ops(found.module)
        if is_left and suspects.may_be_wrong(found.laid_out.parse()):
            return f"{_DOUBT}: an op is in the table of miscompilations"
        if not is_left and self._value_bytes is None:
            return ""
        most_bytes = self._value_bytes or checks.MOST_VALUE_BYTES
        asked = self._parse(), found.module, self._pipeline, found.session
        checked = values_check.compared(*asked, most_bytes=most_bytes)
        if checked.status == values_check.WRONG:
            return f"it computes other values with chosen ones: {checked.message}"
        if is_left and checked.status == values_check.NOT_CHECKED:
            return f"{_DOUBT}: {checked.message}"
        if self._value_bytes is not None:
            found.session.results.value_checks.append(checked)
        return ""


def _leaves_ops(module: ir.Module) -> bool:
    """Returns whether ops of a module are left to XLA's partitioner: those outside of manual computations."""
    bodies = [each.regions[0].blocks[0] for each in functions_of(module.operation) if has_body(each)]
    names = {op.operation.name for body in bodies for op in body.operations}
    return not names <= {*_NO_WORK, *CONSTANTS, *CONSTRAINTS}
