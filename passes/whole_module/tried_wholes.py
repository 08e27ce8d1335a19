# SPDX-License-Identifier: Apache-2.0
"""The forms of a module that are written per device, as they are tried, and those that are worth a try after these.

The first forms are tried in any case (`search`). Each of the others is written only if no form so far is clearly faster
than the best one with islands:

- *fewest bytes*: if a form would be clearly faster, but lacks memory;
- *beside loops*, which stay with XLA: if there are any;
- *pipelines* around what the fastest form sends: if they promise enough, and the target's compiler is asked for; all of
  them, and if these will not do, those of one pattern.

The last ones are tried in any case:

- *more memory*: the fastest form, with what loops would convert or reduce in each turn held in memory, as far as there
  is some, or as a limit would have to allow;
- *none joined*: the form that would be the fastest of all if it did not lack memory, with each small collective alone;
- *less memory*: likewise, with conversions repeated where their results are needed late.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from reshard.dialect_utils.ir.ops import LOOPS, ops_in
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.typed import present
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.oracle import BETTER, micros
from reshard.passes.whole_module.compiled_forms import CompiledForms
from reshard.passes.whole_module.joint_choice import Outcome
from reshard.passes.whole_module.module_cost import (
    LEAST_GAIN_CONFIRMED,
    best_of,
    clearly_less_s,
    compared,
    is_clearly_faster,
)
from reshard.passes.whole_module.pipelined import by_pattern, keeps_sums, pipelined, promised_s
from reshard.passes.whole_module.taken_over import (
    BYTES,
    LEAN,
    LOOPS_STAY,
    UNJOINED,
    TakenOver,
    different,
    has_pipelines,
    take_over_as,
    take_over_beside_loops,
    take_over_holding,
    take_over_releasing,
    with_pipelines,
)

_ALL = 2**62  # bytes: as many as there are to hold
_MOST_PATTERNS = 2  # of pipelines that are tried alone, times the effort
_RELEASED_SHARES = (1.1, 2, 8)  # of the bytes that a form needs too many: the compiler differs from the model


@dataclass(frozen=True, slots=True)
class Tried:
    """A form that is written per device, and what it costs."""

    form: TakenOver
    outcome: Outcome


class TriedWholes:
    """The forms of one module that are written per device.

    Args:
      forms: what compiles them. source: returns the module of which they are made, as bytecode.
      pipeline, session: what rewrites sites.
      written: forms that were written before, by their names; those that are written here are added.
    State: `tried`, in the order in which they were tried.
    """

    def __init__(
        self,
        forms: CompiledForms,
        source: Callable[[], bytes],
        pipeline: Pipeline,
        session: Session,
        written: dict[str, TakenOver] | None = None,
    ):
        self.forms, self.criterion = forms, forms.criterion
        self._source, self._pipeline, self._session = source, pipeline, session
        self._written = {} if written is None else written
        self.tried: list[Tried] = []

    def add(self, tried: Iterable[Tried]) -> None:
        self.tried += tried

    def try_one(self, form: TakenOver | None, islands: Outcome) -> None:
        """Adds a form with its outcome, beside the best one with islands; nothing for None."""
        if form is not None:
            self.tried.append(Tried(form, self.forms.outcome_of_whole(form, islands)))

    # The winner

    def best(self, than: Outcome) -> Tried | None:
        """Returns the best one that is better than another outcome by as much as is asked of such a form, or that the
        target's compiler confirms; None if there is none."""
        return self._at(best_of([each.outcome for each in self.tried], than))

    def clearly_best(self, islands: Outcome) -> Tried | None:
        """Returns the best one among those that are clearly faster than the best form with islands."""
        outcomes = [
            each.outcome if self._is_clear(each.outcome, islands) else replace(each.outcome, problem="not clearly")
            for each in self.tried
        ]
        return self._at(best_of(outcomes, islands))

    def in_place_of_wrong(self, islands: Outcome, wrong: Callable[[], str]) -> tuple[Tried, str] | None:
        """Returns the fastest one that may take the place of a program with wrong values, and what is wrong; None if
        nothing is, or if there is no such form. Those that nobody has measured are measured then."""
        unknown = [at for at, each in enumerate(self.tried) if each.outcome.of is None]
        if self._best_in_place_of_wrong() is None and not unknown:
            return None
        if not (said := wrong()):
            return None
        if self._best_in_place_of_wrong() is None:
            for at in unknown:
                form = self.tried[at].form
                self.tried[at] = Tried(form, self.forms.outcome_of_whole(form, islands))
        able = self._best_in_place_of_wrong()
        return None if able is None else (able, said)

    def _best_in_place_of_wrong(self) -> Tried | None:
        stock, may_replace = self.forms.stock, self.criterion.may_replace_wrong
        able = [each for each in self.tried if each.outcome.of and may_replace(stock, each.outcome.of)]
        return min(able, key=lambda each: each.outcome.seconds, default=None)

    def _at(self, number: int | None) -> Tried | None:
        return None if number is None else self.tried[number]

    # More forms

    def with_fewest_bytes(self, islands: Outcome) -> TakenOver | None:
        """Returns the form with the plans of fewest bytes, if others lack nothing but memory."""
        forms = [each.form for each in self.tried]
        is_there = any(each.form == BYTES for each in forms)
        if is_there or not self.criterion.network.is_known or not self._lacking_memory(islands):
            return None
        form = self._write(BYTES, "with fewest bytes")
        return form if any(each is form for each in different([*forms, form])) else None

    @functools.cached_property
    def beside_loops(self) -> TakenOver | None:
        """Returns the form in which the loops alone stay with XLA; None if there are none, or if nothing was written
        per device at all."""
        if not any(op.name in LOOPS for op in ops_in(self.forms.original.operation)):
            return None
        return take_over_beside_loops(functools.partial(self._write, words="beside its loops"))

    def with_pipelines(self, islands: Outcome) -> Iterator[TakenOver]:
        """Yields the fastest form with pipelines of products and the collectives behind them, if those promise that it
        is clearly faster than the best form with islands: with all of them, and then with those of a single pattern,
        first the one that promises most. They take less memory, and a compiler may fuse those of another pattern less.

        Only in a form that is written per device XLA's own collectives are there to be cut.
        """
        usable = [each for each in self.tried if each.outcome.of is None or each.outcome.of.is_ok]
        is_asked = self.criterion.policy == BETTER and self.forms.is_slow and self.criterion.network.is_known
        if not usable or not is_asked:
            return
        fastest = min(usable, key=lambda each: each.outcome.seconds)
        whole, seconds = fastest.form, fastest.outcome.seconds
        first = 1 + max((row["site"] for row in whole.rows), default=-1)
        how = {"first": first, "keeps_sums": keeps_sums(self._pipeline), "sends_only": True}
        write = functools.partial(pipelined, present(whole.module), self._session, self.criterion.network, **how)

        def is_promising(rows: list[dict]) -> bool:
            return bool(rows) and seconds - promised_s(rows) <= (1 - LEAST_GAIN_CONFIRMED) * islands.seconds

        written, rows = write()
        if not is_promising(rows):
            return
        progress.at("whole-module check: written per device, with pipelines")
        yield with_pipelines(whole, written, rows)
        patterns = [[row for row in rows if row["site"] in numbers] for numbers in by_pattern(rows)]
        promising = sorted(filter(is_promising, patterns), key=promised_s, reverse=True)
        for alone in promising[: _MOST_PATTERNS * self._session.options.effort] if len(patterns) > 1 else ():
            numbers = [row["site"] for row in alone]
            written, rows = write(only=numbers)
            progress.at("whole-module check: written per device, with pipelines of one pattern")
            kept = [row for row in rows if row["is_rewritten"]]
            yield with_pipelines(whole, written, kept, [each - first for each in numbers])

    def with_lean_ops(self, winner: Tried | None, islands: Outcome) -> TakenOver | None:
        """Returns the form that would be the best one if it needed less memory, with each op split in the way that
        needs little; None if there is none, or if that changes nothing."""
        lacking, _ = self._lacking_memory_alone(winner, islands)
        named = (LEAN, UNJOINED, LOOPS_STAY)
        if lacking is None or not self.criterion.network.is_known or lacking.form.form.endswith(named):
            return None
        return self._written_as(lacking.form.form + LEAN, "in little memory")

    def with_none_joined(self, winner: Tried | None, islands: Outcome) -> TakenOver | None:
        """Returns the form that would be the best one if it needed less memory, with no collectives joined, which lie
        in one buffer until the last of them is used; None if there is none, or if none are joined in it."""
        lacking, _ = self._lacking_memory_alone(winner, islands)
        if lacking is None or not lacking.form.joined or lacking.form.form.endswith(LOOPS_STAY):
            return None
        return self._written_as(lacking.form.form + UNJOINED, "none joined")

    def _written_as(self, name: str, words: str) -> TakenOver | None:
        """Returns the form with a name; None if it is like one that was tried."""
        form = self._write(name, words)
        return form if any(each is form for each in different([*(each.form for each in self.tried), form])) else None

    def _write(self, name: str, words: str) -> TakenOver:
        """Returns the form with a name, which is written once.

        Args:
          words: of what is done meanwhile.
        """
        if name not in self._written:
            progress.at(f"whole-module check: written per device, {words}")
            with self.forms.original.context:
                self._written[name] = take_over_as(name, self._source(), self._pipeline, self._session)
        return self._written[name]

    def with_more_memory(self, winner: Tried | None, islands: Outcome) -> Tried | None:
        """Returns the form that is fastest with more in memory while loops run, if that is the best one; None if it is
        not.

        First all is held, so that it is known what a limit would have to allow, then what there is memory for, and if
        that is still too much, as much less as it is.
        """
        confirmed_s = (1 - LEAST_GAIN_CONFIRMED) * (islands if winner is None else winner.outcome).seconds
        goal_s = clearly_less_s(islands) if winner is None and not self.forms.is_slow else confirmed_s
        able = [each for each in self.tried if each.outcome.of and each.outcome.of.is_ok and _could_hold(each.form)]
        if not able or not self.criterion.network.is_known:
            return None
        fastest = min(
            able, key=lambda each: (bool(each.outcome.problem), each.outcome.seconds - each.form.holding_saves_s)
        )
        forms = self._holding_forms(fastest, goal_s)
        for form in itertools.chain(forms, self._holding_less(fastest.form, forms)):
            self.try_one(form, islands)
            outcome = self.tried[-1].outcome
            if not outcome.problem and self._is_clear(outcome, islands) and outcome.seconds < goal_s:
                return self.tried[-1]
        return None

    def _holding_forms(self, fastest: Tried, goal_s: float) -> list[TakenOver]:
        """Returns the fastest form with all held that loops could hold, and with as much as there is memory for, if
        they may take less than some seconds. The first one is compiled while the other one is written."""
        saved_s = fastest.form.holding_saves_s
        if fastest.outcome.seconds - saved_s > goal_s or (all_held := self._holding_form(fastest.form, _ALL)) is None:
            return []
        forms = [all_held]
        spare = self.criterion.spare_bytes(self.forms.stock, present(fastest.outcome.of))
        if 0 < spare < all_held.held_bytes:
            self.forms.begin([present(all_held.module)])
            forms += filter(None, [self._holding_form(fastest.form, spare)])
        other_s = fastest.outcome.seconds - fastest.form.chains_s
        return [each for each in forms if other_s + each.chains_s <= goal_s]

    def _holding_less(self, whole: TakenOver, forms: Sequence[TakenOver]) -> Iterator[TakenOver]:
        """Yields a form once more, which holds less than the last of some that were tried by as much memory as that one
        lacks; nothing if it lacks none, or something else."""
        if forms and (last := self.tried[-1]).form is forms[-1] and self._limit_for(last.outcome) is not None:
            held = last.form.held_bytes - self.criterion.excess_bytes(self.forms.stock, present(last.outcome.of))
            if held > 0 and (form := self._holding_form(whole, held)):
                yield form

    def _holding_form(self, whole: TakenOver, held: int) -> TakenOver | None:
        """Returns a form once more, with up to so many bytes held; None if there is nothing to hold."""
        return take_over_holding(whole, held, functools.partial(self._write, words="for more memory"))

    def with_less_memory(self, winner: Tried | None, islands: Outcome) -> Tried | None:
        """Returns the form that would be the best one if it needed less memory, with conversions repeated where their
        results are needed late; None if there is none, or if that is not enough."""
        fastest, least_s = self._lacking_memory_alone(winner, islands)
        if fastest is None:
            return None
        excess = self.criterion.excess_bytes(self.forms.stock, present(fastest.outcome.of))
        rows = 0
        for share in _RELEASED_SHARES:
            write = functools.partial(self._write, words="for less memory")
            form = take_over_releasing(fastest.form, int(share * excess), write)
            if form is None or len(form.rows) == rows:  # nothing is left to release
                return None
            rows, outcome = len(form.rows), self.forms.outcome_of_whole(form, islands)
            if not outcome.problem and self._is_clear(outcome, islands) and outcome.seconds < least_s:
                return Tried(form, outcome)
        return None

    def _lacking_memory_alone(self, winner: Tried | None, islands: Outcome) -> tuple[Tried | None, float]:
        """Returns the fastest form that would be the best one if it needed less memory, None if there is none, and the
        seconds that it has to stay below."""
        least_s = islands.seconds if winner is None else (1 - LEAST_GAIN_CONFIRMED) * winner.outcome.seconds
        lacking = [each for each in self._lacking_memory(islands) if each.outcome.seconds < least_s]
        return min(lacking, key=lambda each: each.outcome.seconds, default=None), least_s

    def _lacking_memory(self, islands: Outcome) -> list[Tried]:
        """Returns the forms that would be clearly faster than the best one with islands and lack nothing but memory."""
        return [
            each
            for each in self.tried
            if each.outcome.of is not None
            and not has_pipelines(each.form)
            and not each.form.held_bytes
            and self._limit_for(each.outcome) is not None
            and self._is_clear(replace(each.outcome, problem=""), islands)
        ]

    # Words

    def why_not(self, islands: Outcome) -> str:
        """Returns in words why the module is not written per device, with the option that would allow it if there is
        one; empty if no form was tried."""
        outcomes = [each.outcome for each in self.tried]
        if not outcomes:
            return ""
        lacking = [each for each in outcomes if self._limit_for(each) is not None and each.seconds < islands.seconds]
        fastest = min(lacking, key=lambda outcome: outcome.seconds, default=None)
        allowed = "" if fastest is None else self._allowed(fastest, islands)
        if fastest is not None and self._is_clear(fastest, islands):
            return allowed
        if (winner := self.best(islands)) is not None:
            said = self.compared(winner.outcome, islands)
            if winner.outcome.seconds == islands.seconds:
                return said
            least = 100 * (1 - clearly_less_s(islands) / islands.seconds)
            return f"{said}; less than {least:.3g}% faster, the model may be wrong"
        first = outcomes[0]
        return allowed or first.problem or self.compared(first, islands)

    def _is_clear(self, whole: Outcome, islands: Outcome) -> bool:
        return is_clearly_faster(whole, islands, self.criterion)

    def compared(self, whole: Outcome, islands: Outcome) -> str:
        """Returns in words how a module written per device compares with the best form with islands."""
        if whole.seconds == islands.seconds:
            return f"modelled time {micros(whole.seconds)} either way"
        than = "as it came" if islands.of == self.forms.stock else "with rewritten sites"
        return compared(whole, islands, "so", than)

    def allowed_beside(self, winner: Tried) -> str:
        """Returns in words what a memory limit would allow in place of a form that is taken, if that is clearly faster;
        empty if nothing."""
        islands = replace(winner.outcome, problem="")
        allowed = [
            each.outcome
            for each in self.tried
            if self._limit_for(each.outcome) is not None and self._is_clear(each.outcome, islands)
        ]
        if not allowed:
            return ""
        fastest = min(allowed, key=lambda outcome: outcome.seconds)
        return f"; {self._limit_text(fastest)} allows a form that takes {micros(fastest.seconds)}"

    def _allowed(self, whole: Outcome, islands: Outcome) -> str:
        said = self.compared(replace(whole, problem=""), islands)
        return f"{whole.problem}; {self._limit_text(whole)} allows it: {said}"

    def _limit_text(self, whole: Outcome) -> str:
        """Returns the flag that allows the memory of a form, also as what a device has if that is enough."""
        limit, has = present(self._limit_for(whole)), self.criterion.network.topology.device_memory_bytes
        return f"--memory-limit={limit}" + (", or device," if has is not None and limit <= has else "")

    def _limit_for(self, whole: Outcome) -> int | None:
        """Returns the memory limit under which a form would not be refused for its memory; None if that is not why."""
        return self.criterion.missing_limit(self.forms.stock, whole.of) if whole.of else None


def _could_hold(form: TakenOver) -> bool:
    """Returns whether a form is one of a whole module whose loops could hold what they convert in each turn."""
    is_whole = not has_pipelines(form) and not form.form.endswith(LOOPS_STAY)
    return is_whole and form.holding_saves_s > 0 and not form.held_bytes
