# SPDX-License-Identifier: Apache-2.0
"""The whole-module check: what the rewritten module costs as a whole decides which sites are rewritten.

A rewrite that is better at its site may make the program worse elsewhere, and one that is worse alone may make it
better. So stock XLA compiles the module as it came, and some of its rewritten forms, in a child process, and
`JointChoice` searches the set of sites whose module is best by the policy:

- `better`: the shortest modelled time (`module_cost`); memory, and on an unknown network received bytes, not above
  stock XLA's. Neither the sites that the oracle prefers, nor those of `strict`, nor all of them are better.
- `strict`: the sites that the oracle prefers, fewer if they make any cost of the module worse.
- `always`: all sites that have a chain, fewer only if XLA does not compile the module with them.

Under `better`, `emit=auto` has one more candidate: the module taken over as a whole (`taken_over`). It has to be faster
by a tenth: on the two-level network of `step_times` such modules were faster as promised, while on CPU devices of one
process one that promised 4 % was slower. Where the target's own compiler estimates a shorter time, too, that is enough.
No gain is asked for where stock XLA computes wrong values. On CPU devices it is tried first, before anything is known
about single sites: planning them and asking XLA about each takes longer than all the rest. If it is faster by a tenth
than the module as it came, and than any set of sites can make that (`most_of_sites`), no site is planned.

For a target of compilation ahead of time, its compiler compiles the module as it came and the finalists among its
forms (`search`). Then its final program and its estimate of the time count as well.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import REMARK, DiagnosedError, Diagnostic
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla import at_hand
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.driver.registry import AUTO
from reshard.passes.overlap_collectives import STABLEHLO, OverlapCollectivesPass
from reshard.passes.sites.oracle import BETTER, FAILURES, KEEP, REWRITE, UNMEASURED, micros
from reshard.passes.whole_module.check_record import Change, Check, mesh_of, network_of, option_of, traffic_of
from reshard.passes.whole_module.compiled_forms import CompiledForms
from reshard.passes.whole_module.joint_choice import Groups, JointChoice, Outcome
from reshard.passes.whole_module.module_cost import EITHER_WAY, ModuleCriterion, compared, is_better, is_clearly_faster
from reshard.passes.whole_module.most_of_sites import MostOfSites
from reshard.passes.whole_module.replanned import Replanned
from reshard.passes.whole_module.search import NOT_ASKED, Found, Search, least_of
from reshard.passes.whole_module.site_groups import Group, groups_of, names_sites
from reshard.passes.whole_module.taken_over import (
    ALL_FORMS,
    FIRST_FORMS,
    LOOPS_STAY,
    TakenOver,
    can_take_over,
    cut_at_sites,
    different,
    take_over,
    take_over_as,
)
from reshard.passes.whole_module.tried_wholes import Tried, TriedWholes

MOST_ATTEMPTS = 8  # compilations of rewritten modules, times the effort
LEAST_PROMISE = 0.005  # share of the module's time for which the compiler of devices at hand is asked
LEAST_GAIN = 0.02  # share of the module's time that a compilation must hope to gain, divided by the effort
_MORE_THAN_PROMISED = 2  # so many times what sites gain alone they hardly gain together


def check(
    original: ir.Module,
    rewritten: ir.Module,
    pipeline: Pipeline,
    session: Session,
    rows: Sequence[dict],
    *,
    policy: str | None = None,
    problem_of_stock: Callable[[], str] = lambda: "",
    distrust: str = "",
    begun: WholeModuleCheck | None = None,
) -> ir.Module:
    """Returns the module with the best set of sites rewritten, and records a `Check`.

    Args:
      original: the module before `pipeline` ran, which made `rewritten` of it in `session`.
      rows: the last rows of `session.results.report_rows`, which belong to this module. If the module is taken over as
        a whole, the session has the rows of that form in their place.
      policy: None for that of the pass plan-sites.
      problem_of_stock: says in words where stock XLA computes the module wrongly; empty if it does not. It is asked if
        the module would stay with XLA and can be taken over.
      distrust: why it is taken over then without that question; empty if it is asked.
      begun: the check of `original` that has looked at the module before its sites were planned.
    If there is nothing to choose, nothing is compiled for CPU devices; for another target, the module is compiled and
    recorded.

    Raises: DiagnosedError if the module is for another number of devices than the session's option `compile_for`, a
      `Target`, or if there are no such devices.
    """
    target = session.options.compile_for
    asked: str = policy or option_of(pipeline, "policy", BETTER)
    groups = groups_of(rows, pipeline, asked)
    takes_over = asked == BETTER and _may_take_over(original, pipeline, target)
    if not groups and not takes_over and not (target and target.is_ahead_of_time):
        return rewritten
    if begun is None:
        import_shardings(original, pipeline, session)
        devices = target.devices if target else devices_of(original)
        if devices != devices_of(original):
            _refuse(original, session, f"the module is for {devices_of(original)} devices, the target has {devices}")
        begun = WholeModuleCheck(original, pipeline, session, asked, takes_over)
    begun.problem_of_stock, begun.distrust = problem_of_stock, distrust
    return begun.run(rewritten, rows, groups)


def begin(original: ir.Module, pipeline: Pipeline, session: Session) -> WholeModuleCheck | None:
    """Returns the check of a module whose form written per device may be tried before its sites are planned; None if
    that may not be, or if the module is refused, which the pipeline will say.

    More effort than 1 asks for all forms. Other targets than CPU devices take longer for one form than the planning of
    sites does, and are asked in another order.
    """
    is_default = option_of(pipeline, "policy", BETTER) == BETTER and session.options.effort == 1
    network = network_of(pipeline)
    if not is_default or session.options.compile_for is not None or not network.is_known:
        return None
    try:
        if not _may_take_over(original, pipeline, None) or _has_kernels(pipeline):
            return None
        said = import_shardings(original, pipeline, session)
    except DiagnosedError:
        return None
    begun = WholeModuleCheck(original, pipeline, session, BETTER, takes_over=True)
    begun.said_importing = said
    return begun


def _has_kernels(pipeline: Pipeline) -> bool:
    return any(isinstance(each, OverlapCollectivesPass) and each.fuse != STABLEHLO for each in pipeline.passes)


def _may_take_over(module: ir.Module, pipeline: Pipeline, target: Target | None) -> bool:
    """Returns whether a pipeline asks for modules to be taken over as a whole, and this one has devices for that."""
    if not can_take_over(pipeline) or pipeline.emission != AUTO or names_sites(pipeline):
        return False
    devices = devices_of(module)
    return devices > 1 and (target is None or target.devices == devices)


def _refuse(module: ir.Module, session: Session, problem: str) -> NoReturn:
    session.error(module.operation, problem)
    raise DiagnosedError(session.errors[-1:])


def import_shardings(original: ir.Module, pipeline: Pipeline, session: Session) -> tuple[Diagnostic, ...]:
    """Runs the passes of the pipeline that say how a module is sharded, such as the import of GSPMD's shardings, and
    returns what they say.

    XLA ignores those in a module with Shardy.
    """
    imports, own = tuple(each for each in pipeline.passes if each.states_shardings), Session(session.options)
    Pipeline(imports).run(original, own)
    return tuple(own.results.diagnostics.diagnostics)


class WholeModuleCheck:
    """The check of one module.

    Args:
      original: the module before `pipeline` runs, which has the passes that say how it is sharded behind it.
      takes_over: whether it may be written per device as a whole.
    State: `forms`, the forms of the module, as they are compiled; `are_sites_planned`, and once they are, the `groups`
      and report `rows`, and the module `rewritten` by the pipeline. From before that: `_written`, the forms per device
      by their names; `_numbered`, the module as it came, compiled with numbers for its ops; `_least_local_s`, the time
      of the forms' local work; and `said_importing`, what the passes said that state how the module is sharded.
      `_listed`, the module as it came, compiled so for another target, if a report is to list what it sends.
      `_not_judged`, why the compiler of devices at hand does not decide, in words; empty if it does, or if none is.
    """

    def __init__(self, original: ir.Module, pipeline: Pipeline, session: Session, policy: str, takes_over: bool):
        self.original, self.pipeline, self.session = original, pipeline, session
        self.policy, self.takes_over = policy, takes_over
        self.problem_of_stock: Callable[[], str] = lambda: ""
        self.distrust = ""
        options = self.session.options
        self.child = at_hand.asked(options.at_hand, options.xla_child)
        self.target: Target | None = options.compile_for
        network = network_of(pipeline)
        self.criterion = ModuleCriterion(self.policy, network, devices_of(self.original))
        self.replanned = Replanned(self.original, self.pipeline, self.session)
        self.are_sites_planned = False
        self.rows: list[dict] = []
        self.groups: list[Group] = []
        self.rewritten = original
        self.proposed: Groups = frozenset()
        self._written: dict[str, TakenOver] = {}
        self._numbered: Compiled | None = None
        self._listed: Compiled | None = None
        self._least_local_s: float | None = None
        self._not_judged = ""
        self.said_importing: tuple[Diagnostic, ...] = ()
        self.forms = CompiledForms(
            self.original,
            {},
            self.groups,
            self.replanned.with_sites,
            self.criterion,
            self.child,
            self.target,
            lambda problem: _refuse(self.original, self.session, problem),
        )

    @functools.cached_property
    def taken_over(self) -> list[TakenOver]:
        """Returns the forms in which the module is written per device; none if nobody asks for them."""
        if not self.takes_over:
            return []
        if self.groups and not self._written:  # else nothing may be compiled at all, or it is known what is better
            self.forms.begin([self.original, *self.forms.first_and_last(self._starts())])
        progress.at("whole-module check: writing the module per device")
        with self.original.context:
            return take_over(self._source, self.pipeline, self.session, self._form_names, self._written)

    @property
    def _form_names(self) -> tuple[str, ...]:
        """Returns the names of the forms that are tried in any case: more of them where the target's compiler, or the
        copies of XLA's final program, may decide otherwise than the plans."""
        is_to_be_sure = self.forms.is_slow or self.criterion.network.has_final or self.session.options.effort > 1
        return ALL_FORMS if is_to_be_sure else FIRST_FORMS

    @property
    def _source(self) -> bytes:
        """Returns the module with its findings, of which forms are made: with plans, once sites are planned."""
        return self.replanned.planned if self.are_sites_planned else self.replanned.bytes_found

    # Before sites are planned

    def before_sites(self) -> ir.Module | None:
        """Returns the module written per device, if no set of sites can be as good, and records a `Check`; else None,
        and `run` goes on with what is known then."""
        progress.at("whole-module check: writing the module per device")
        try:
            with self.original.context:
                forms = self._first_forms()
        except DiagnosedError:  # the pipeline will say so at its place
            return None
        if not forms or not self.forms.stock.is_ok or self._most_of_sites is None:
            return None
        none = self.criterion.outcome(self.forms.stock, self.forms.stock, 0)
        wholes = self._wholes()
        wholes.add(Tried(each, self.forms.measured_whole(each)) for each in forms)
        compiled = [each.outcome.of for each in wholes.tried if each.outcome.of and each.outcome.of.is_ok]
        self._least_local_s = min(map(self._local_s, compiled), default=None)
        if (least := self._least_with_sites()) is None:
            return None
        winner = wholes.best(least)
        for with_less in (wholes.with_lean_ops, wholes.with_none_joined):
            if (form := with_less(winner, none)) is not None:
                wholes.try_one(form, none)
                winner = wholes.best(least)
        if (held := wholes.with_more_memory(winner, none)) is not None and is_better(held.outcome, least):
            winner = held
        if (thin := wholes.with_less_memory(winner, none)) is not None and is_better(thin.outcome, least):
            winner = thin
        if winner is None:
            return None
        found = [each for each in self.replanned.said_finding if each.severity != REMARK]
        self.session.results.diagnostics.diagnostics += [*self.said_importing, *found]
        sites = f"; no set of sites takes less than {micros(least.seconds)}" if self.replanned.found.edges else ""
        attempts = len(self.forms.compiled) - 1
        return self._handed_over_whole(winner, none, wholes, reason=sites, attempts=attempts)

    def _wholes(self) -> TriedWholes:
        """Returns the forms that are written per device, none yet; each is written once, unless the layouts of results
        were not settled then."""
        return TriedWholes(self.forms, lambda: self._source, self.pipeline, self.session, self._written)

    def _first_forms(self) -> list[TakenOver]:
        """Returns the forms to try first, those of least time; compiles the module as it came."""
        self.child.prepare(devices_of(self.original))  # it starts meanwhile
        forms = self._written_first(self.forms.begin_numbered)
        if not forms:
            return []
        progress.at("whole-module check: the module as it came")
        self._numbered = self.forms.compile_numbered()
        self.forms.stock = self.forms.compile(self.original, with_estimate=False)
        return self._written_first() if self._settles_results() else forms

    def _written_first(self, meanwhile: Callable[[], None] = lambda: None) -> list[TakenOver]:
        """Returns the forms of least time, which are begun to be compiled; none if the module cannot be written so.

        Args:
          meanwhile: called once the module of which they are made is known.
        """
        source = self._source
        meanwhile()
        forms: list[TakenOver] = []
        for name in self._form_names:
            form = self._written[name] = take_over_as(name, source, self.pipeline, self.session)
            if form.module is None:
                return []
            forms = different([*forms, form])
            if any(each is form for each in forms):
                self.forms.begin([form.module])
        return forms

    def _settles_results(self) -> bool:
        """Gives results that the caller left open the layouts that stock XLA's program has, and returns whether that
        changes any; forms that were written before are to be written anew then."""
        stock = self.forms.stock
        are_planned = self.are_sites_planned
        if not stock.is_ok or not self.replanned.settle_results(stock.output_shardings, are_planned=are_planned):
            return False
        self._written.clear()
        self.forms.written.clear()
        self.__dict__.pop("taken_over", None)
        return True

    def _least_with_sites(self) -> Outcome | None:
        """Returns an outcome that no set of sites is better than, and that is clearly better than the module as it
        came; None if there is no such bound."""
        if (gain_s := self._most_gain_s()) is None:
            return None
        none = self.criterion.outcome(self.forms.stock, self.forms.stock, 0)
        return least_of(none, gain_s)

    def _most_gain_s(self, sites: Collection[int] | None = None) -> float | None:
        """Returns the most seconds that some sites gain, or all; None if that is not known.

        Where layouts do not fit, XLA may do the work of an op whole on each device. No set of sites has less work than
        the module written per device.
        """
        if self._most_of_sites is None or self._least_local_s is None:
            return None
        edges = [each for each in self._most_of_sites.edges if sites is None or each.site in sites]
        stock, network, devices = self.forms.stock, self.criterion.network, devices_of(self.original)
        partitioned_s = network.time_of(stock, devices).seconds
        if not partitioned_s:
            return None
        final_s = self.criterion.time(stock, stock).seconds  # it counts where it is known
        work_s = max(0.0, self._local_s(stock) - self._least_local_s) if edges else 0.0
        return self._most_of_sites.gain_s(edges) * final_s / partitioned_s + work_s

    def _local_s(self, compiled: Compiled) -> float:
        return self.criterion.time(self.forms.stock, compiled).local_s

    @functools.cached_property
    def _most_of_sites(self) -> MostOfSites | None:
        from reshard.dialect_utils.hlo.accelerators import as_run_by
        from reshard.dialect_utils.hlo.collectives import collectives_in
        from reshard.dialect_utils.hlo.text import parse_module

        if self._numbered is None or self._numbered.hlo_text is None:
            return None
        topology = self.criterion.network.topology.fitted(devices_of(self.original))
        program = parse_module(self._numbered.hlo_text)
        collectives = as_run_by(self._numbered.run_by, collectives_in(self._numbered.hlo_text), program)
        found, edges = self.replanned.module_found, self.replanned.found.edges
        with self.original.context, contextlib.suppress(ValueError):
            return MostOfSites(found, edges, self.forms.numbered, collectives, topology)
        return None

    # With sites

    def planned_and_rewritten(self, run: Callable[[Pipeline], ir.Module]) -> ir.Module:
        """Returns the module after the pipeline, of which `run` runs a part on the module and returns it; what has been
        planned is kept for other forms."""
        planning, rewriting = cut_at_sites(self.pipeline)
        said = self.session.results.diagnostics.diagnostics
        before = len(said)
        planned = compat.bytecode(run(planning))
        once = [each for each in self.replanned.said_finding if each.severity != REMARK and each not in said[before:]]
        said[before:before] = once  # of what MLIR says once in a process
        self.replanned.take(planned, [each for each in said[before:] if each not in self.said_importing])
        return run(rewriting)

    def run(self, rewritten: ir.Module, rows: Sequence[dict], groups: Sequence[Group]) -> ir.Module:
        """Returns the best form of the module; the arguments are the module, its rows and its groups with the sites
        that the pipeline rewrote."""
        self.are_sites_planned, self.rewritten, self.rows = True, rewritten, list(rows)
        self.groups += groups
        self.proposed = frozenset(i for i, group in enumerate(self.groups) if group.is_proposed)
        self.forms.written[self.proposed] = rewritten
        wholes = self._wholes_beside_stock()
        if not self.groups and not wholes and not self.forms.is_slow:
            return self.rewritten
        why_not = "".join(each.problem for each in self.taken_over)
        tried = self._wholes()
        search = self._search(wholes, lambda outcomes: self._written_meanwhile(outcomes, tried))
        if not self.groups and not wholes:
            self._record(self.forms.stock, frozenset(), self.original, not_taken_over=why_not)
            return self.rewritten
        found = search.found()
        choice = found.choice
        tried.add(map(Tried, wholes, found.outcomes))
        winner = self._best_whole(tried, found)
        wrong = ""
        if winner is None and (able := tried.in_place_of_wrong(choice.outcome, self._what_is_wrong)) is not None:
            winner, wrong = able
        if winner is not None:
            return self._handed_over_whole(winner, choice.outcome, tried, found, wrong=wrong)
        why_not = tried.why_not(choice.outcome) or why_not
        if self._is_unmeasurable(choice):
            return self.rewritten
        dropped, added = list(self._dropped(found)), list(self._added(found))
        no_better = [each for each in dropped if EITHER_WAY in each[1]]
        self._tell(no_better, KEEP, "with it the whole module is no better", "left to XLA:")
        worse = [each for each in dropped if each not in no_better]
        self._tell(worse, KEEP, "with it the whole module is worse", "left to XLA:")
        self._tell(added, REWRITE, "alone it is not better; the whole module is", "rewritten:")
        module = self.forms.module(choice.best) if choice.best else self.original
        self._record(choice.outcome.of, choice.best, module, dropped, added, found, not_taken_over=why_not)
        return module

    def _wholes_beside_stock(self) -> list[TakenOver]:
        """Returns the forms written per device, with the results of the module as it came, which is compiled; nothing
        is compiled for CPU devices if there is nothing to compare."""
        is_at_hand = self.session.options.at_hand is not None
        if is_at_hand and (why_not := self._why_not_at_hand()):
            self._ask_for_cpu_devices(why_not)
        if self.forms.is_slow:
            self._compile_as_it_came()
            if is_at_hand and not self.forms.stock.is_ok:
                self._ask_for_cpu_devices(f"the compiler of {{}} refuses it as it came: {self.forms.stock.reason}")
            elif self.groups or self.takes_over:
                self._settles_results()
        wholes = [each for each in self.taken_over if each.module is not None]
        if self.forms.is_slow or not (self.groups or wholes):
            return wholes
        self._compile_as_it_came(wholes)
        if not (self.takes_over and self._settles_results()):  # else nobody may need the module with its plans
            return wholes
        return [each for each in self.taken_over if each.module is not None]

    def _ask_for_cpu_devices(self, why: str) -> None:
        """Has the forms compared as XLA compiles them for CPU devices, not for those at hand, for a reason in words, in
        which these are `{}`."""
        self._not_judged = why.replace("{}", str(self.target))
        self.target = self.forms.target = None
        self.forms.compiled = dict(self.forms.as_partitioned)

    def _why_not_at_hand(self) -> str:
        """Returns in words why the compiler of devices at hand, `{}`, is not asked; empty if it is: if a form of the
        module is better than the module as it came, as XLA partitions both for CPU devices, whatever memory it needs.

        A module that fails for CPU devices, as one with kernels of a TPU does, may have better forms."""
        if self.policy != BETTER:
            return f"under the policy {self.policy} the compiler of {{}} is not asked"
        if not self.groups and all(each.module is None for each in self.taken_over):
            return "there is nothing to rewrite"
        forms = self.forms
        forms.stock = forms.partitioned(self.original)
        if forms.stock.status == "error":
            return ""
        if not forms.stock.is_ok:
            return f"for them XLA {FAILURES[forms.stock.status]} already: {forms.stock.reason}"
        self._settles_results()
        wholes = [present(each.module) for each in self.taken_over if each.module is not None]
        modules = [*wholes, *map(forms.module, self._starts()[: self._budget])]
        forms.foresee(modules)
        criterion = replace(self.criterion, compares_shardings=False)
        before = criterion.outcome(forms.stock, forms.stock, 0)
        goal = replace(before, seconds=(1 - LEAST_PROMISE) * before.seconds)
        promised = (criterion.outcome(forms.stock, forms.partitioned(each), 0) for each in modules)
        if any(is_better(replace(each, problem=""), goal) for each in promised if each.of and each.of.is_ok):
            return ""
        return "no form of the module promises enough there to ask the compiler of {}"

    def _best_whole(self, tried: TriedWholes, found: Found) -> Tried | None:
        """Returns the best form that is written per device, if it is clearly faster than the best one with islands;
        tries those that are worth it after the first ones, as long as the target's compiler may be asked."""
        winner = self._clearly_best(tried, found.choice)
        for more in (self._with_other_plans, self._with_pipelines, self._with_less_at_once, self._with_other_memory):
            if self.forms.left > 0:
                winner = more(tried, found, winner)
        return winner

    def _with_other_plans(self, tried: TriedWholes, found: Found, winner: Tried | None) -> Tried | None:
        choice = found.choice
        if winner is None:
            tried.try_one(tried.with_fewest_bytes(choice.outcome), choice.outcome)
            winner = self._clearly_best(tried, choice)
        if winner is None and tried.tried and not self.distrust and (beside := tried.beside_loops) is not None:
            in_vain = found.unless_asked_in_vain(beside)
            tried.add([Tried(beside, in_vain or self.forms.outcome_of_whole(beside, choice.outcome))])
            winner = self._clearly_best(tried, choice)
        return winner

    def _with_pipelines(self, tried: TriedWholes, found: Found, winner: Tried | None) -> Tried | None:
        for form in tried.with_pipelines(found.choice.outcome) if winner is None else ():
            tried.try_one(form, found.choice.outcome)
            winner = self._clearly_best(tried, found.choice)
            if winner is not None or self.forms.left <= 0:
                break
        return winner

    def _with_less_at_once(self, tried: TriedWholes, found: Found, winner: Tried | None) -> Tried | None:
        for with_less in (tried.with_lean_ops, tried.with_none_joined):
            if self.forms.left > 0 and (form := with_less(winner, found.choice.outcome)) is not None:
                tried.try_one(form, found.choice.outcome)
                winner = self._clearly_best(tried, found.choice)
        return winner

    def _with_other_memory(self, tried: TriedWholes, found: Found, winner: Tried | None) -> Tried | None:
        winner = tried.with_more_memory(winner, found.choice.outcome) or winner
        if self.forms.left <= 0:
            return winner
        if (thin := tried.with_less_memory(winner, found.choice.outcome)) is not None:
            winner = thin
            tried.add([thin])
        return winner

    def _what_is_wrong(self) -> str:
        return self.distrust or self.problem_of_stock()

    def _compile_as_it_came(self, wholes: Sequence[TakenOver] = ()) -> None:
        """Compiles the module as it came.

        For CPU devices what is asked for next is compiled at the same time: the module written per device, or else the
        sets to start with. The compiler of another target takes all cores and most of the memory for one module.
        """
        progress.at("whole-module check: the module as it came")
        if self.target is None:
            sets = self._starts()[: self._budget]
            first = [present(each.module) for each in wholes] or list(map(self.forms.module, sets))
            self.forms.foresee([self.original, *first])
        lists_for_target = self.forms.is_slow and self.session.options.at_hand is None
        if lists_for_target and self.session.options.with_traffic:  # once, for its costs and for what it sends
            self._listed = self.forms.compile_numbered()
        self.forms.stock = self.forms.compile(self.original, with_estimate=False)

    @property
    def _budget(self) -> int:
        return MOST_ATTEMPTS * self.session.options.effort

    def _search(self, wholes: Sequence[TakenOver], meanwhile: Callable[[Sequence[Outcome]], list[ir.Module]]) -> Search:
        """Returns the search over the forms of the module, which was compiled as it came."""
        effort, stock = self.session.options.effort, self.forms.stock
        none = self.criterion.outcome(stock, stock, 0)
        gains = [group.gain_s if self.policy == BETTER else 0.0 for group in self.groups]
        least_s = LEAST_GAIN / effort * none.seconds if stock.is_ok else 0.0
        most_s = self._most_promised_s() if stock.is_ok else none.seconds
        starts, budget = self._starts(), self._budget
        return Search(self.forms, wholes, none, starts, gains, budget, effort, least_s, most_s, meanwhile)

    def _written_meanwhile(self, outcomes: Sequence[Outcome], wholes: TriedWholes) -> list[ir.Module]:
        """Returns the form beside its loops, if none of the forms with these outcomes is clearly faster than the module
        as it came; it will hardly be written in vain then."""
        none = self.criterion.outcome(self.forms.stock, self.forms.stock, 0)
        if not outcomes or self.distrust:
            return []
        if any(not each.problem and is_clearly_faster(each, none, self.criterion) for each in outcomes):
            return []
        return [] if wholes.beside_loops is None else [present(wholes.beside_loops.module)]

    def _most_promised_s(self) -> float:
        """Returns what no set of sites gains, by what they gain alone, and where that is not known by the bound."""
        known_s = _MORE_THAN_PROMISED * sum(max(0.0, group.most_s) for group in self.groups if group.is_known)
        unknown = {site for group in self.groups if not group.is_known for site in group.sites}
        rest_s = self._most_gain_s(unknown) if unknown else 0.0
        return math.inf if rest_s is None else known_s + rest_s

    def _clearly_best(self, wholes: TriedWholes, choice: JointChoice) -> Tried | None:
        """Returns the best form that is clearly faster than the one with islands; None if none is.

        The module as it came has an estimate from now on if any form has one.
        """
        nothing: Groups = frozenset()
        choice.outcomes[nothing] = replace(choice.outcomes[nothing], of=self.forms.stock)
        return wholes.clearly_best(choice.outcome)

    def _handed_over_whole(
        self,
        winner: Tried,
        islands: Outcome,
        wholes: TriedWholes,
        found: Found | None = None,
        *,
        wrong: str = "",
        reason: str = "",
        attempts: int = 0,
    ) -> ir.Module:
        """Returns the module written per device. Its rows and remarks take the place of those of the sites.

        Args:
          wrong: where stock XLA computes wrong values, if that is the reason.
          reason: what else to say for it. attempts: how many forms were compiled, if there was no search.
        """
        form, whole = winner.form, winner.outcome
        module, results = present(form.module), self.session.results
        results.report_rows[len(results.report_rows) - len(self.rows) :] = form.rows
        replaced = {*form.said, *(each for each in self.replanned.said if each.severity == REMARK)}
        kept = [each for each in results.diagnostics.diagnostics if each not in replaced]
        results.diagnostics.diagnostics[:] = [*kept, *form.remarks]
        said = "XLA compiles no other form" if islands.problem else wholes.compared(whole, islands)
        said += reason
        if wrong:
            said = self.distrust or f"stock XLA computes wrong values: {wrong}"
        said += wholes.allowed_beside(winner)
        has_sites = self.groups or not self.are_sites_planned and self.replanned.found.edges
        place = "in place of its sites the" if has_sites else "the"
        loops = " but its loops" if LOOPS_STAY in form.form else ""
        self.session.remark(self.original.operation, f"{place} whole module{loops} is written per device: {said}")
        self._record(
            whole.of,
            frozenset(),
            module,
            found=found,
            attempts=attempts,
            taken_over=form.form,
            wrong_stock="" if self.distrust else wrong,
            rows=form.rows,
        )
        return module

    def _is_unmeasurable(self, choice: JointChoice) -> bool:
        """Returns whether XLA refuses the module both ways, as a library without a main function; then says so.

        The sites stay as the oracle judged them.
        """
        stock = self.forms.stock
        reasons = {stock.reason, *(outcome.of.reason for outcome in choice.outcomes.values())}
        if stock.status != "error" or any(each.of.status != "error" for each in choice.outcomes.values()):
            return False
        if not self.groups and not self.forms.is_slow:
            return True
        said = f"{UNMEASURED}XLA compiles the module neither way: {min(reasons)}"
        self.session.remark(self.original.operation, said)
        return True

    def _starts(self) -> list[Groups]:
        """Returns the sets to measure first: those that the policies propose."""
        starts = [self.proposed]
        if self.policy == BETTER:
            uneven = frozenset(i for i, group in enumerate(self.groups) if not group.is_even)
            strict = frozenset(i for i, group in enumerate(self.groups) if group.is_strict)
            starts += [uneven, strict, frozenset(range(len(self.groups)))]
        return [each for each in dict.fromkeys(starts) if each]

    def _record(
        self,
        ours: Compiled,
        best: Groups,
        module: ir.Module,
        dropped: Sequence[Change] = (),
        added: Sequence[Change] = (),
        found: Found | None = None,
        *,
        attempts: int = 0,
        taken_over: str = "",
        not_taken_over: str = "",
        wrong_stock: str = "",
        rows: Sequence[dict] = (),
    ) -> None:
        is_rewritten = bool(best) or bool(taken_over)
        stock, ours = (replace(each, from_cache=False) for each in (self.forms.stock, ours))  # the same either way
        then, now = (self.criterion.time(stock, each) if each.is_ok else None for each in (stock, ours))
        self.session.results.checks.append(
            Check(
                stock,
                ours,
                tuple(dropped),
                is_rewritten,
                self.target,
                self.criterion.network.text,
                then,
                now,
                tuple(added),
                found.attempts if found else attempts,
                found.promised if found else 0,
                self._traffic(module if is_rewritten else None, rows or self.rows),
                taken_over,
                not_taken_over,
                wrong_stock,
                not_judged=self._not_judged,
                mesh=mesh_of(self.original),
            )
        )

    def _traffic(self, rewritten: ir.Module | None, rows: Sequence[dict]) -> dict[str, Any] | None:
        """Returns the longest collectives of the original and of the module that is handed over, if asked for."""
        if not self.session.options.with_traffic:
            return None
        listed = self._numbered if self.target is None else self._listed
        has_hlo = listed is not None and listed.hlo_text is not None
        compiled = (self.forms.numbered, present(listed)) if has_hlo else None
        return traffic_of(self.original, rewritten, self.child, self.criterion.network, self.target, rows, compiled)

    # Words

    def _dropped(self, found: Found) -> Iterator[Change]:
        """Yields the sites that were proposed and are not in the best set, with the reason."""
        best = found.choice.best
        left = self.proposed - best
        for flip in found.told.flips if found.told.best == best else ():
            if flip.is_removal and (block := flip.block & left):
                left -= block
                yield self.forms.sites(block), compared(flip.before, flip.after) + found.said_by
        if left:
            yield self.forms.sites(left), found.why_not(self.proposed)

    def _added(self, found: Found) -> Iterator[Change]:
        """Yields the sites in the best set that were not proposed, with the reason."""
        best = found.choice.best
        if added := best - self.proposed:
            yield self.forms.sites(added), found.why(best & self.proposed)

    def _tell(self, changes: Sequence[Change], action: str, in_row: str, in_remark: str) -> None:
        """Writes the reasons of changes into the rows of their sites, and emits a remark for each change."""
        for sites, reason in changes:
            for_row = reason if reason.startswith(NOT_ASKED) else f"{in_row}: {reason}"
            for row in self.rows:
                if row["site"] in sites:
                    row["verdict"], row["is_rewritten"] = action, action == REWRITE
                    row["reason"] = for_row
            noun = "site" if len(sites) == 1 else "sites"
            numbers = ", ".join(map(str, sites))
            self.session.remark(self.original.operation, f"{noun} {numbers} {in_remark} {reason}")
