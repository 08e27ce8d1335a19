# SPDX-License-Identifier: Apache-2.0
"""The search for the best form of a module, by what the forms are measured to cost, or by what they promise first.

XLA compiles a form for CPU devices in the time of a few passes, so all forms are measured. The compilers of other
targets are slow. There the search goes over promises (`finalists`), and the target's compiler measures what promises
most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.passes.sites.oracle import BETTER, micros
from reshard.passes.whole_module.compiled_forms import CompiledForms
from reshard.passes.whole_module.finalists import Finalists
from reshard.passes.whole_module.joint_choice import Groups, JointChoice, Outcome
from reshard.passes.whole_module.module_cost import LEAST_GAIN_OF_WHOLE, best_of, clearly_less_s, compared, is_better
from reshard.passes.whole_module.taken_over import TakenOver, kind_of

_SLACK_OF_ISLANDS, _SLACK_OF_WHOLES = 0.005, 0.02  # of the promises of forms of one kind, against each other
NOT_ASKED = "the target's compiler was not asked"  # begins a reason that says nothing of what would be worse
MOST_FINALISTS = 3  # of each kind that a target's compiler is asked about, times the effort


@dataclass
class Found:
    """What a search has found.

    Attributes:
      choice: the choice among the sets of sites, as they are measured.
      told: the one whose outcomes say why sites are in the best set: it has more of them if promises were searched.
      outcomes: those of the forms that are written per device.
      finalists, promise: the finalists among these, and what a module with so many changes promises; None if all forms
        are measured.
    """

    choice: JointChoice
    told: JointChoice
    outcomes: list[Outcome]
    finalists: Finalists | None = None
    promise: Callable[[ir.Module, int], Outcome] | None = None

    @property
    def attempts(self) -> int:
        """Returns how many rewritten modules were compiled for the target."""
        return len(self.choice.outcomes) - 1 + sum(each.of is not None for each in self.outcomes)

    @property
    def promised(self) -> int:
        """Returns how many rewritten modules were compared as XLA partitions them; 0 if all were compiled at once."""
        return 0 if self.told is self.choice else len(self.told.outcomes) - 1 + len(self.outcomes)

    @property
    def said_by(self) -> str:
        """Returns the end of a reason that is told by `told`."""
        return "" if self.told is self.choice else ", as XLA partitions it"

    def why_not(self, groups: Groups) -> str:
        """Returns in words why a set of sites is not taken: how it compares with the best one, as both are measured, or
        as both are promised if it promises no more."""
        best, measured, promised = self.choice.best, self.choice.outcomes, self.told.outcomes
        if groups in measured:
            return compared(measured[groups], measured[best])
        if groups in promised and best in promised and not is_better(promised[groups], promised[best]):
            return compared(promised[groups], promised[best]) + self.said_by
        best_of_them = micros(measured[best].seconds)
        return f"{NOT_ASKED} about that set; with the best one of those it was, {best_of_them}"

    def why(self, without: Groups) -> str:
        """Returns in words how the best set of sites compares with another one if that is measured, else with none."""
        measured = self.choice.outcomes
        return compared(measured[self.choice.best], measured.get(without, measured[frozenset()]))

    def unless_asked_in_vain(self, form: TakenOver) -> Outcome | None:
        """Returns the outcome of one more form that promises too little for the target's compiler to be asked about it;
        None for one to ask about."""
        if self.finalists is None or self.promise is None:
            return None
        promised, scale = self.promise(present(form.module), len(form.rows)), self.finalists.scale(kind_of(form))
        is_vain = float("inf") > promised.seconds * scale >= self.choice.outcome.seconds
        return _not_asked(promised, self.finalists.before, scale) if is_vain else None


@dataclass
class Search:
    """The search over the forms of one module.

    Args:
      forms: those with rewritten sites, and what compiles any form. wholes: those that are written per device.
      none: the outcome of the module as it came.
      starts: the sets that the policies propose. gains: of each group in seconds, as it is promised alone.
      budget: the most sets to search. effort: see `--effort`. least_s: what a set has to hope for.
      most_s: no set of sites gains more.
      meanwhile: called while the compiler for CPU devices is busy with sets, with the outcomes of `wholes`; returns
        modules that will be asked for behind the search.
    """

    forms: CompiledForms
    wholes: Sequence[TakenOver]
    none: Outcome
    starts: Sequence[Groups]
    gains: Sequence[float]
    budget: int
    effort: int
    least_s: float
    most_s: float
    meanwhile: Callable[[Sequence[Outcome]], Sequence[ir.Module]] = lambda outcomes: ()

    def found(self) -> Found:
        return self._by_promise() or self._by_measurement()

    def _by_measurement(self) -> Found:
        """Measures all forms that are written per device, and then sets of sites, if one may be better than these."""
        outcomes = [self._measured_whole(each) for each in self.wholes]
        goal_s = self._goal_s(outcomes)
        choice = self._choice(self.budget, self.least_s, goal_s=goal_s)
        if self._needs_no_islands(outcomes):
            return Found(choice, choice, outcomes)
        if self.forms.target is None and self.starts:
            self._begin_sets(outcomes)
        choice.run(self.starts)
        estimated = map(self.forms.estimated_whole, self.wholes, outcomes, [choice.outcome] * len(outcomes))
        return Found(choice, choice, list(estimated))

    def _measured_whole(self, form: TakenOver) -> Outcome:
        return self.forms.measured_whole(form) if self.forms.left > 0 else Outcome(f"{NOT_ASKED} about it", math.inf)

    def _begin_sets(self, outcomes: Sequence[Outcome]) -> None:
        """Has the first sets compiled at the same time, and what is behind them while the search goes on."""
        first = self._first_sets()
        self.forms.begin(first)
        behind = self.meanwhile(outcomes)
        if len(first) > 1:
            self.forms.foresee(first)
        if behind:
            self.forms.begin(behind)

    def _needs_no_islands(self, outcomes: list[Outcome]) -> bool:
        """Returns whether a form that is written per device is clearly faster than any with islands can be, by its
        estimate too, for which it asks. Then no set of sites has to be compiled."""
        if self.forms.criterion.policy != BETTER or not self.forms.stock.is_ok:
            return False
        least = least_of(self.none, self.most_s)
        if (winner := best_of(outcomes, least)) is None:
            return False
        outcomes[winner] = self.forms.estimated_whole(self.wholes[winner], outcomes[winner], self.none)
        return is_better(outcomes[winner], least)

    def _goal_s(self, outcomes: Sequence[Outcome]) -> float:
        """Returns the time above which a set of sites is clearly slower than a form that is written per device;
        infinite if the gains of sets are not known."""
        if self.forms.criterion.policy != BETTER or self.forms.target is not None or not self.forms.stock.is_ok:
            return math.inf
        if not all(each.is_known for each in self.forms.groups):
            return math.inf
        winner = best_of(outcomes, self.none)
        return math.inf if winner is None else outcomes[winner].seconds / (1 - LEAST_GAIN_OF_WHOLE)

    def _by_promise(self) -> Found | None:
        """Searches with the forms as XLA partitions them for CPU devices, and has the target's compiler measure the
        finalists; None where that says nothing or is no faster.

        The sets of sites have finalists unless a form that is written per device is clearly better than they may be,
        however far their promises are off.
        """
        forms = self.forms
        if forms.criterion.policy != BETTER or not forms.is_slow or not forms.stock.is_ok:
            return None
        progress.at("whole-module check: what rewritten modules promise")
        forms.foresee([forms.original, *(present(each.module) for each in self.wholes), *self._first_sets()])
        partitioned = forms.partitioned(forms.original)
        if not partitioned.is_ok:
            return None

        criterion = replace(forms.criterion, compares_shardings=False)

        def promise(module: ir.Module, sites: int) -> Outcome:
            return criterion.outcome(partitioned, forms.partitioned(module), sites)

        none, most = self.none, min(MOST_FINALISTS * self.effort, forms.left)
        before = forms.criterion.outcome(partitioned, partitioned, 0)
        of_wholes = [promise(present(each.module), len(each.rows)) for each in self.wholes]
        wholes = Finalists(of_wholes, before, none, most, _SLACK_OF_WHOLES, list(map(kind_of, self.wholes)))
        wholes.measure(lambda at: forms.measured_whole(self.wholes[at]))
        for each in wholes.outcomes.values():  # all forms are estimated in one way, also those behind these
            if each.of is not None and each.of.lacks_estimate and not each.problem:
                forms.note_schedule(each.of)
        told = JointChoice(
            self.gains,
            lambda groups: promise(forms.module(groups), len(forms.sites(groups))),
            before,
            is_better,
            self.budget,
            self.least_s / none.seconds * before.seconds if none.seconds else 0.0,
            forms.foresee_sets,
        )
        told.run(self.starts)
        most = min(most, forms.left)
        choice, sets = self._choice(most, with_estimate=False), [each for each in told.outcomes if each]
        islands = Finalists([told.outcomes[each] for each in sets], before, none, most, _SLACK_OF_ISLANDS)
        if not self._is_beaten(islands, wholes):
            goal_s = self._goal_beside(wholes)
            islands.measure(lambda at: choice.attempted(sets[at]), goal_s)
            self._estimate_best(choice)
            tried = 1 if goal_s >= none.seconds else len(choice.outcomes)
            while not choice.best and tried < len(choice.outcomes):  # none will do: other sets, while there is room
                tried = len(choice.outcomes)
                choice.run(())
                self._estimate_best(choice)
        outcomes = [
            forms.estimated_whole(each, wholes.outcomes[at], choice.outcome)
            if at in wholes.outcomes
            else _not_asked(of_wholes[at], before, wholes.scale(kind_of(each)))
            for at, each in enumerate(self.wholes)
        ]
        return Found(choice, told, outcomes, wholes, promise)

    def _is_beaten(self, islands: Finalists, wholes: Finalists) -> bool:
        """Returns whether a form that is written per device is clearly better than any set of sites may be."""
        least = replace(self.none, seconds=(1 - LEAST_GAIN_OF_WHOLE) * islands.least_possible_s)
        return self._best_of_wholes(wholes, least) is not None

    def _goal_beside(self, wholes: Finalists) -> float:
        """Returns the time above which a set of sites is clearly slower than the best form that is written per device;
        infinite if none is better than the module as it came."""
        best = self._best_of_wholes(wholes, self.none)
        return math.inf if best is None else best.seconds / (1 - LEAST_GAIN_OF_WHOLE)

    def _best_of_wholes(self, wholes: Finalists, least: Outcome) -> Outcome | None:
        """Returns the outcome of the best form that is written per device, if that is better than another one, by its
        estimate too, for which it asks."""
        numbers = list(wholes.outcomes)
        if (winner := best_of(list(wholes.outcomes.values()), least)) is None:
            return None
        number = numbers[winner]
        wholes.outcomes[number] = self.forms.estimated_whole(self.wholes[number], wholes.outcomes[number], self.none)
        return wholes.outcomes[number] if is_better(wholes.outcomes[number], least) else None

    def _estimate_best(self, choice: JointChoice) -> None:
        """Asks for the estimate of the best set, and if that is against it, for that of the next one."""
        estimated: Groups = frozenset()
        while choice.best and choice.best != estimated:
            estimated, module = choice.best, self.forms.module(choice.best)
            outcome = self.forms.estimated(choice.outcome, module, len(self.forms.sites(choice.best)), self.none)
            choice.revise(estimated, outcome)

    def _choice(
        self, budget: int, least_s: float = 0.0, *, with_estimate: bool = True, goal_s: float = math.inf
    ) -> JointChoice:
        """Returns the choice among sets that are measured."""
        forms = self.forms

        def measured(groups: Groups) -> Outcome:
            progress.at("whole-module check: rewritten module", len(choice.outcomes), budget)
            if not with_estimate:
                return forms.measured(forms.module(groups), len(forms.sites(groups)))
            return forms.outcome_of_set(groups, choice.outcome)

        foresee = forms.foresee_sets if forms.target is None else lambda sets: None
        choice = JointChoice(self.gains, measured, self.none, is_better, budget, least_s, foresee, goal_s)
        return choice

    def _first_sets(self) -> list[ir.Module]:
        return list(map(self.forms.module, self.starts[: self.budget]))


def least_of(none: Outcome, most_s: float) -> Outcome:
    """Returns the outcome that a form written per device has to beat, so that no set of sites has to be compiled.

    Args:
      none: the outcome of the module as it came, than which the form has to be clearly faster.
      most_s: the most seconds that a set of sites gains.
    """
    return replace(none, seconds=min(none.seconds - most_s, clearly_less_s(none)))


def _not_asked(promised: Outcome, before: Outcome, scale: float) -> Outcome:
    """Returns what is known of a form about which the target's compiler was not asked."""
    if promised.seconds == float("inf"):
        return Outcome(f"for CPU devices {promised.problem}", promised.seconds)
    said = compared(replace(promised, problem=""), before, "so", "as it came")
    return Outcome(f"{said}, as XLA partitions it: too little", promised.seconds * scale)
