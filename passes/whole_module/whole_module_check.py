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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import REMARK, DiagnosedError, Diagnostic
from reshard.dialect_utils.ir.ops import LOOPS, ops_in
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.driver.registry import AUTO
from reshard.passes.overlap_collectives import STABLEHLO, OverlapCollectivesPass
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER, KEEP, REWRITE, micros
from reshard.passes.whole_module.compiled_forms import CompiledForms
from reshard.passes.whole_module.joint_choice import Groups, JointChoice, Outcome
from reshard.passes.whole_module.module_cost import (
    LEAST_GAIN_CONFIRMED,
    LEAST_GAIN_OF_WHOLE,
    ModuleCriterion,
    best_of,
    compared,
    is_better,
    is_clearly_faster,
)
from reshard.passes.whole_module.most_of_sites import MostOfSites
from reshard.passes.whole_module.pipelined import keeps_sums, pipelined, promised_s
from reshard.passes.whole_module.replanned import Replanned
from reshard.passes.whole_module.search import NOT_ASKED, Found, Search, least_of
from reshard.passes.whole_module.site_groups import Group, groups_of, names_sites
from reshard.passes.whole_module.taken_over import (
    ALL_FORMS,
    BYTES,
    FIRST_FORMS,
    LOOPS_STAY,
    PIPELINES,
    TakenOver,
    can_take_over,
    cut_at_sites,
    different,
    pipeline_for,
    take_over,
    take_over_as,
    take_over_beside_loops,
    take_over_releasing,
)

if TYPE_CHECKING:  # loading it loads numpy
    from reshard.synthesis.network.program_time import ProgramTime

MOST_ATTEMPTS = 8  # compilations of rewritten modules, times the effort
LEAST_GAIN = 0.02  # share of the module's time that a compilation must hope to gain, divided by the effort
_RELEASED_SHARES = (1.1, 2, 8)  # of the bytes that a form needs too many: the compiler differs from the model
_MORE_THAN_PROMISED = 2  # so many times what sites gain alone they hardly gain together
Change = tuple[tuple[int, ...], str]  # sites and the reason


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
    asked: str = policy or _option(pipeline, "policy", BETTER)
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
    is_default = _option(pipeline, "policy", BETTER) == BETTER and session.options.effort == 1
    network: SiteNetwork = _option(pipeline, "network", SiteNetwork())
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


def _option(pipeline: Pipeline, name: str, default):
    """Returns an option of the pass plan-sites; the default if the pipeline has no such pass."""
    return next((getattr(each, name) for each in pipeline.passes if isinstance(each, PlanSitesPass)), default)


class WholeModuleCheck:
    """The check of one module.

    Args:
      original: the module before `pipeline` runs, which has the passes that say how it is sharded behind it.
      takes_over: whether it may be written per device as a whole.
    State: `forms`, the forms of the module, as they are compiled; `are_sites_planned`, and once they are, the `groups`
      and report `rows`, and the module `rewritten` by the pipeline. From before that: `_first`, forms that were
      written; `_numbered`, the module as it came, compiled with numbers for its ops; `_least_local_s`, the time of the
      forms' local work; and `said_importing`, what the passes said that state how the module is sharded.
    """

    def __init__(self, original: ir.Module, pipeline: Pipeline, session: Session, policy: str, takes_over: bool):
        self.original, self.pipeline, self.session = original, pipeline, session
        self.policy, self.takes_over = policy, takes_over
        self.problem_of_stock: Callable[[], str] = lambda: ""
        self.distrust = ""
        self.child = self.session.options.xla_child or xla_child.shared_child()
        self.target: Target | None = self.session.options.compile_for
        network = _option(self.pipeline, "network", SiteNetwork())
        self.criterion = ModuleCriterion(self.policy, network, devices_of(self.original))
        self.replanned = Replanned(self.original, self.pipeline, self.session)
        self.are_sites_planned = False
        self.rows: list[dict] = []
        self.groups: list[Group] = []
        self.rewritten = original
        self.proposed: Groups = frozenset()
        self._first: dict[str, TakenOver] = {}
        self._numbered: Compiled | None = None
        self._least_local_s: float | None = None
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
        if self.groups and not self._first:  # else nothing may be compiled at all, or it is known what is better
            self.forms.begin([self.original, *self.forms.first_and_last(self._starts())])
        progress.at("whole-module check: writing the module per device")
        with self.original.context:
            return take_over(self._source, self.pipeline, self.session, self._form_names, self._first)

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
        outcomes = list(map(self.forms.measured_whole, forms))
        compiled = [present(each.of) for each in outcomes if each.of and each.of.is_ok]
        self._least_local_s = min((self._local_s(each) for each in compiled), default=None)
        if (least := self._least_with_sites()) is None:
            return None
        winner = best_of(outcomes, least)
        if (thin := self._with_less_memory(forms, outcomes, winner, none)) is not None and is_better(thin[1], least):
            winner, forms = len(forms), [*forms, thin[0]]
            outcomes.append(thin[1])
        if winner is None:
            return None
        found = [each for each in self.replanned.said_finding if each.severity != REMARK]
        self.session.results.diagnostics.diagnostics += [*self.said_importing, *found]
        sites = f"; no set of sites takes less than {micros(least.seconds)}" if self.replanned.found.edges else ""
        attempts = len(self.forms.compiled) - 1
        return self._handed_over_whole(forms[winner], outcomes[winner], none, reason=sites, attempts=attempts)

    def _first_forms(self) -> list[TakenOver]:
        """Returns the forms to try first, those of least time; compiles the module as it came."""
        self.child.prepare(devices_of(self.original))  # it starts meanwhile
        source = self._source
        self.forms.begin_numbered()
        forms: list[TakenOver] = []
        for name in self._form_names:
            form = take_over_as(name, source, self.pipeline, self.session)
            if not self.replanned.found.open_results:  # else the layouts of results are not settled
                self._first[name] = form
            if form.module is None:
                return []
            forms = different([*forms, form])
            if any(each is form for each in forms):
                self.forms.begin([form.module])
        progress.at("whole-module check: the module as it came")
        self._numbered = self.forms.compile_numbered()
        self.forms.stock = self.forms.compile(self.original, with_estimate=False)
        return forms

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
        from reshard.dialect_utils.xla.hlo_collectives import collectives_in

        if self._numbered is None or self._numbered.hlo_text is None:
            return None
        topology = self.criterion.network.topology.fitted(devices_of(self.original))
        collectives = collectives_in(self._numbered.hlo_text)
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
        wholes = [each for each in self.taken_over if each.module is not None]
        why_not = "".join(each.problem for each in self.taken_over)
        if not self.groups and not wholes and not self.forms.is_slow:
            return self.rewritten
        progress.at("whole-module check: the module as it came")
        search = self._search(wholes)
        if not self.groups and not wholes:
            self._record(self.forms.stock, frozenset(), self.original, not_taken_over=why_not)
            return self.rewritten
        found = search.found()
        choice, outcomes = found.choice, found.outcomes
        winner = self._clearly_best(outcomes, choice)
        if winner is None and (fewest := self._with_fewest_bytes(wholes, outcomes, choice.outcome)) is not None:
            wholes = [*wholes, fewest]
            outcomes.append(self.forms.outcome_of_whole(fewest, choice.outcome))
            winner = self._clearly_best(outcomes, choice)
        if winner is None and wholes and not self.distrust and (beside := self._beside_loops) is not None:
            wholes = [*wholes, beside]
            in_vain = found.unless_asked_in_vain(beside)
            outcomes.append(in_vain or self.forms.outcome_of_whole(beside, choice.outcome))
            winner = self._clearly_best(outcomes, choice)
        if winner is None and (piped := self._with_pipelines(wholes, outcomes, choice.outcome)) is not None:
            wholes = [*wholes, piped]
            outcomes.append(self.forms.outcome_of_whole(piped, choice.outcome))
            winner = self._clearly_best(outcomes, choice)
        if (thin := self._with_less_memory(wholes, outcomes, winner, choice.outcome)) is not None:
            winner, wholes = len(wholes), [*wholes, thin[0]]
            outcomes.append(thin[1])
        wrong = ""
        if winner is None and (able := self._in_place_of_wrong(wholes, outcomes, choice.outcome)) is not None:
            winner, wrong = able
        if winner is not None:
            return self._handed_over_whole(wholes[winner], outcomes[winner], choice.outcome, found, wrong=wrong)
        if outcomes:
            why_not = self._why_not_whole(outcomes, choice.outcome)
        if self._is_unmeasurable(choice):
            return self.rewritten
        dropped, added = list(self._dropped(found)), list(self._added(found))
        self._tell(dropped, KEEP, "with it the whole module is worse", "left to XLA:")
        self._tell(added, REWRITE, "alone it is not better; the whole module is", "rewritten:")
        module = self.forms.module(choice.best) if choice.best else self.original
        self._record(choice.outcome.of, choice.best, module, dropped, added, found, not_taken_over=why_not)
        return module

    def _search(self, wholes: Sequence[TakenOver]) -> Search:
        """Returns the search over the forms of the module, which itself is compiled now as it came.

        For CPU devices what is asked for next is compiled at the same time: the module written per device, or else the
        sets to start with. The compiler of another target takes all cores and most of the memory for one module.
        """
        effort, starts = self.session.options.effort, self._starts()
        budget = MOST_ATTEMPTS * effort
        if self.target is None:
            first = [present(each.module) for each in wholes] or list(map(self.forms.module, starts[:budget]))
            self.forms.foresee([self.original, *first])
        stock = self.forms.stock = self.forms.compile(self.original, with_estimate=False)
        none = self.criterion.outcome(stock, stock, 0)
        gains = [group.gain_s if self.policy == BETTER else 0.0 for group in self.groups]
        least_s = LEAST_GAIN / effort * none.seconds if stock.is_ok else 0.0
        most_s = self._most_promised_s() if stock.is_ok else none.seconds
        return Search(self.forms, wholes, none, starts, gains, budget, effort, least_s, most_s, self._written_meanwhile)

    def _written_meanwhile(self, outcomes: Sequence[Outcome]) -> list[ir.Module]:
        """Returns the form beside its loops, if none of the forms with these outcomes is clearly faster than the module
        as it came; it will hardly be written in vain then."""
        none = self.criterion.outcome(self.forms.stock, self.forms.stock, 0)
        if not outcomes or self.distrust:
            return []
        if any(not each.problem and is_clearly_faster(each, none) for each in outcomes):
            return []
        return [] if self._beside_loops is None else [present(self._beside_loops.module)]

    def _most_promised_s(self) -> float:
        """Returns what no set of sites gains, by what they gain alone, and where that is not known by the bound."""
        known_s = _MORE_THAN_PROMISED * sum(max(0.0, group.most_s) for group in self.groups if group.is_known)
        unknown = {site for group in self.groups if not group.is_known for site in group.sites}
        rest_s = self._most_gain_s(unknown) if unknown else 0.0
        return math.inf if rest_s is None else known_s + rest_s

    def _clearly_best(self, outcomes: Sequence[Outcome], choice: JointChoice) -> int | None:
        """Returns the number of the best form that is clearly faster than the one with islands; None if none is.

        The module as it came has an estimate from now on if any form has one.
        """
        nothing: Groups = frozenset()
        choice.outcomes[nothing] = replace(choice.outcomes[nothing], of=self.forms.stock)
        islands = choice.outcome
        clear = [
            each if is_clearly_faster(each, islands) else replace(each, problem="not clearly") for each in outcomes
        ]
        return best_of(clear, islands)

    def _in_place_of_wrong(
        self, wholes: Sequence[TakenOver], outcomes: list[Outcome], best: Outcome
    ) -> tuple[int, str] | None:
        """Returns the number of the fastest form that may take the place of a program with wrong values, and what is
        wrong; None if stock's is right, or if there is no such form. Those that nobody has measured are measured."""
        unknown = [at for at, each in enumerate(outcomes) if each.of is None]
        if self._best_in_place_of_wrong(outcomes) is None and not unknown:
            return None
        if not (wrong := self.distrust or self.problem_of_stock()):
            return None
        if self._best_in_place_of_wrong(outcomes) is None:
            for at in unknown:
                outcomes[at] = self.forms.outcome_of_whole(wholes[at], best)
        able = self._best_in_place_of_wrong(outcomes)
        return None if able is None else (able, wrong)

    def _best_in_place_of_wrong(self, outcomes: Sequence[Outcome]) -> int | None:
        """Returns the number of the fastest form that may take the place of a program with wrong values."""
        stock, may_replace = self.forms.stock, self.criterion.may_replace_wrong
        able = [i for i, each in enumerate(outcomes) if each.of and may_replace(stock, each.of)]
        return min(able, key=lambda i: outcomes[i].seconds, default=None)

    @functools.cached_property
    def _beside_loops(self) -> TakenOver | None:
        """Returns the form in which the loops alone stay with XLA, if there are any."""
        if not any(op.name in LOOPS for op in ops_in(self.original.operation)):
            return None
        progress.at("whole-module check: writing the module per device, beside its loops")
        with self.original.context:
            return take_over_beside_loops(self._source, self.pipeline, self.session)

    def _with_pipelines(
        self, wholes: Sequence[TakenOver], outcomes: Sequence[Outcome], best: Outcome
    ) -> TakenOver | None:
        """Returns the fastest form written per device with pipelines of products and the sums behind them, if those
        promise that it is clearly faster than the best form with islands; None if it would not be.

        Only in that form XLA's own collectives are there to be cut.
        """
        usable = [at for at, each in enumerate(outcomes) if each.of is None or each.of.is_ok]
        if self.policy != BETTER or not usable or not self.forms.is_slow or not self.criterion.network.is_known:
            return None
        fastest = min(usable, key=lambda at: outcomes[at].seconds)
        whole, seconds = wholes[fastest], outcomes[fastest].seconds
        how = {
            "first": 1 + max((row["site"] for row in whole.rows), default=-1),
            "keeps_sums": keeps_sums(self.pipeline),
            "sends_only": True,
        }
        written, rows = pipelined(present(whole.module), self.session, self.criterion.network, **how)
        if not rows or seconds - promised_s(rows) > (1 - LEAST_GAIN_CONFIRMED) * best.seconds:
            return None
        progress.at("whole-module check: written per device, with pipelines")
        return replace(whole, module=written, form=whole.form + PIPELINES, rows=(*whole.rows, *rows))

    def _lacking_memory(self, wholes: Sequence[TakenOver], outcomes: Sequence[Outcome], best: Outcome) -> list[int]:
        """Returns the numbers of the forms that would be clearly faster than the best one and lack nothing but
        memory."""
        return [
            at
            for at, each in enumerate(outcomes)
            if each.of is not None
            and not wholes[at].form.endswith(PIPELINES)
            and self._limit_for(each) is not None
            and is_clearly_faster(replace(each, problem=""), best)
        ]

    def _with_fewest_bytes(
        self, wholes: Sequence[TakenOver], outcomes: Sequence[Outcome], best: Outcome
    ) -> TakenOver | None:
        """Returns the form with the plans of fewest bytes, if others lack nothing but memory."""
        is_there = any(each.form == BYTES for each in wholes)
        if is_there or not self.criterion.network.is_known or not self._lacking_memory(wholes, outcomes, best):
            return None
        progress.at("whole-module check: written per device, with fewest bytes")
        with self.original.context:
            form = take_over_as(BYTES, self._source, self.pipeline, self.session)
        return form if any(each is form for each in different([*wholes, form])) else None

    def _with_less_memory(
        self, wholes: Sequence[TakenOver], outcomes: Sequence[Outcome], winner: int | None, best: Outcome
    ) -> tuple[TakenOver, Outcome] | None:
        """Returns the form that would be the best one if it needed less memory, with conversions repeated where their
        results are needed late, and its outcome; None if there is none, or if that is not enough."""
        least_s = best.seconds if winner is None else (1 - LEAST_GAIN_CONFIRMED) * outcomes[winner].seconds
        lacking = [at for at in self._lacking_memory(wholes, outcomes, best) if outcomes[at].seconds < least_s]
        if not lacking:
            return None
        fastest = min(lacking, key=lambda at: outcomes[at].seconds)
        excess = self.criterion.excess_bytes(self.forms.stock, present(outcomes[fastest].of))
        rows = 0
        for share in _RELEASED_SHARES:
            progress.at("whole-module check: written per device, for less memory")
            with self.original.context:
                form = take_over_releasing(
                    wholes[fastest], int(share * excess), self._source, self.pipeline, self.session
                )
            if form is None or len(form.rows) == rows:  # nothing is left to release
                return None
            rows, outcome = len(form.rows), self.forms.outcome_of_whole(form, best)
            if not outcome.problem and is_clearly_faster(outcome, best) and outcome.seconds < least_s:
                return form, outcome
        return None

    def _handed_over_whole(
        self,
        winner: TakenOver,
        whole: Outcome,
        islands: Outcome,
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
        module, results = present(winner.module), self.session.results
        results.report_rows[len(results.report_rows) - len(self.rows) :] = winner.rows
        replaced = {*winner.said, *(each for each in self.replanned.said if each.severity == REMARK)}
        kept = [each for each in results.diagnostics.diagnostics if each not in replaced]
        results.diagnostics.diagnostics[:] = [*kept, *winner.remarks]
        said = "XLA compiles no other form" if islands.problem else self._compared_whole(whole, islands)
        said += reason
        if wrong:
            said = self.distrust or f"stock XLA computes wrong values: {wrong}"
        has_sites = self.groups or not self.are_sites_planned and self.replanned.found.edges
        place = "in place of its sites the" if has_sites else "the"
        loops = " but its loops" if LOOPS_STAY in winner.form else ""
        self.session.remark(self.original.operation, f"{place} whole module{loops} is written per device: {said}")
        self._record(
            whole.of,
            frozenset(),
            module,
            found=found,
            attempts=attempts,
            taken_over=winner.form,
            wrong_stock="" if self.distrust else wrong,
            rows=winner.rows,
        )
        return module

    def _why_not_whole(self, outcomes: Sequence[Outcome], islands: Outcome) -> str:
        """Returns in words why the module is not written per device, with the option that would allow it if there is
        one."""
        lacking = [each for each in outcomes if self._limit_for(each) is not None and each.seconds < islands.seconds]
        fastest = min(lacking, key=lambda outcome: outcome.seconds, default=None)
        allowed = "" if fastest is None else self._allowed(fastest, islands)
        if fastest is not None and is_clearly_faster(fastest, islands):
            return allowed
        if (winner := best_of(outcomes, islands)) is not None:
            said = self._compared_whole(outcomes[winner], islands)
            return f"{said}; less than {LEAST_GAIN_OF_WHOLE:.0%} faster, the model may be wrong"
        first = outcomes[0]
        return allowed or first.problem or self._compared_whole(first, islands)

    def _limit_for(self, whole: Outcome) -> int | None:
        """Returns the memory limit under which a form would not be refused for its memory; None if that is not why."""
        return self.criterion.missing_limit(self.forms.stock, whole.of) if whole.of else None

    def _allowed(self, whole: Outcome, islands: Outcome) -> str:
        said = self._compared_whole(replace(whole, problem=""), islands)
        return f"{whole.problem}; --memory-limit={self._limit_for(whole)} allows it: {said}"

    def _compared_whole(self, whole: Outcome, islands: Outcome) -> str:
        """Returns in words how the module written per device compares with the best form with islands."""
        if whole.seconds == islands.seconds:
            return f"modelled time {micros(whole.seconds)} either way"
        than = "as it came" if islands.of == self.forms.stock else "with rewritten sites"
        return compared(whole, islands, "so", than)

    def _is_unmeasurable(self, choice: JointChoice) -> bool:
        """Returns whether XLA refuses the module both ways, as a library without a main function; then says so.

        The sites stay as the oracle judged them.
        """
        stock = self.forms.stock
        refusals = {stock.message, *(outcome.of.message for outcome in choice.outcomes.values())}
        if stock.status != "error" or any(each.of.status != "error" for each in choice.outcomes.values()):
            return False
        if not self.groups and not self.forms.is_slow:
            return True
        said = min(refusals).strip().splitlines() or ["no message"]
        self.session.remark(
            self.original.operation, f"nothing is measured as a whole: XLA compiles the module neither way: {said[0]}"
        )
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
            )
        )

    def _traffic(self, rewritten: ir.Module | None, rows: Sequence[dict]) -> dict[str, Any] | None:
        """Returns the longest collectives of the original and of the module that is handed over, if asked for."""
        if not self.session.options.with_traffic:
            return None
        return traffic_of(self.original, rewritten, self.child, self.criterion.network, self.target, rows)

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
    network, policy = _option(pipeline, "network", SiteNetwork()), _option(pipeline, "policy", BETTER)
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
    )


def traffic_of(
    original: ir.Module,
    rewritten: ir.Module | None,
    child: xla_child.XlaChild,
    network: SiteNetwork,
    target: Target | None,
    rows: Sequence[dict] = (),
) -> dict[str, Any] | None:
    """Returns the longest collectives of a module and of its rewritten form, as `passes.traffic.summary` has them; None
    if it has no function main."""
    from reshard.passes.traffic.summary import summary_of  # reports alone need it

    progress.at("whole-module check: listing collectives")
    try:
        return summary_of(original, rewritten, child, network.topology, target=target, rows=rows)
    except DiagnosedError:  # the module has no function main
        return None
