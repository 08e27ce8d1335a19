# SPDX-License-Identifier: Apache-2.0
"""The forms of one module for the whole-module check: each is written once, compiled, and compared with stock XLA's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla import at_hand
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Compiled, CompileRequest
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.whole_module.joint_choice import Groups, Outcome
from reshard.passes.whole_module.module_cost import ModuleCriterion, is_better
from reshard.passes.whole_module.site_groups import Group
from reshard.passes.whole_module.taken_over import TakenOver


@dataclass
class CompiledForms:
    """Writes, compiles and compares the forms of one module.

    Args:
      original: the module as it came.
      written: the rewritten modules, by the groups that are rewritten in them; those that are not here are added.
      groups: of sites. with_sites: returns the module in which some sites are rewritten.
      criterion: what decides between two forms. target: the target of compilation.
      refuse: raises an error if there are no such devices.
    State: `texts`, by the `id` of a module, with the module, so that no other one gets its id; `compiled`, likewise,
      what was asked for without an estimate; `as_partitioned`, what was asked for of CPU devices beside a
      target; `stock`, the original as the target's compiler compiles it, with its estimate once another form needs one
      to compare with; `asks`, whether estimates take another compilation.
    """

    original: ir.Module
    written: dict[Groups, ir.Module]
    groups: Sequence[Group]
    with_sites: Callable[[Sequence[int]], ir.Module]
    criterion: ModuleCriterion
    child: xla_child.XlaChild
    target: Target | None
    refuse: Callable[[str], None]
    texts: dict[int, tuple[ir.Module, str]] = field(default_factory=dict)
    compiled: dict[int, Compiled] = field(default_factory=dict)
    as_partitioned: dict[int, Compiled] = field(default_factory=dict)
    stock: Compiled = field(init=False)
    asks: bool = False

    @property
    def is_slow(self) -> bool:
        """Returns whether the target's compiler is another one than XLA's for CPU devices."""
        return self.target is not None and self.target.is_ahead_of_time

    @property
    def left(self) -> int:
        """Returns how many more forms the target's compiler may be asked about."""
        return at_hand.left_of(self.child) if self.is_slow else at_hand.UNLIMITED

    def sites(self, groups: Groups) -> tuple[int, ...]:
        return tuple(sorted(site for i in groups for site in self.groups[i].sites))

    def module(self, groups: Groups) -> ir.Module:
        """Returns the module in which some groups are rewritten; each is made once."""
        if groups not in self.written:
            self.written[groups] = self.with_sites(self.sites(groups))
        return self.written[groups]

    # Compiled

    def compile(self, module: ir.Module, *, with_estimate: bool = True) -> Compiled:
        if not with_estimate and id(module) in self.compiled:
            return self.compiled[id(module)]
        compiled = self.child.compile(
            self._text(module),
            devices_of(module),
            target=self.target,
            timeout_s=xla_child.patience_s(self.target, getattr(self, "stock", None)),
            has_final=self.criterion.network.has_final,
            stands_in=self.criterion.network.stands_in,
            with_estimate=with_estimate,
        )
        if compiled.status == "target":
            self.refuse(compiled.message)
        if not with_estimate:
            self.compiled[id(module)] = compiled
        return compiled

    @functools.cached_property
    def numbered(self) -> NumberedOps:
        """Returns the original with numbers for its ops."""
        return NumberedOps(self.original)

    def compile_numbered(self) -> Compiled:
        """Returns the original as it is compiled for the target, with its HLO, in which ops have their numbers."""
        request = self._numbered_request
        compiled = self.child.compile(
            request.module,
            request.num_devices,
            target=self.target,
            keeps_hlo=request.keeps_hlo,
            keeps_locations=request.keeps_locations,
            has_final=request.has_final,
            stands_in=request.stands_in,
            with_estimate=False,
        )
        if compiled.status == "target":
            self.refuse(compiled.message)
        self.compiled[id(self.original)] = replace(compiled, hlo_text=None)
        return compiled

    @functools.cached_property
    def _numbered_request(self) -> CompileRequest:
        return CompileRequest(
            self.numbered.text,
            devices_of(self.original),
            keeps_hlo=True,
            keeps_locations=True,
            has_final=self.criterion.network.has_final,
            stands_in=self.criterion.network.stands_in,
        )

    def partitioned(self, module: ir.Module) -> Compiled:
        """Returns a form as XLA compiles it for CPU devices, whatever the target is."""
        if id(module) not in self.as_partitioned:
            how = {"has_final": self.criterion.network.has_final, "stands_in": self.criterion.network.stands_in}
            self.as_partitioned[id(module)] = self.child.compile(self._text(module), devices_of(module), **how)
        return self.as_partitioned[id(module)]

    def foresee(self, modules: Sequence[ir.Module]) -> None:
        """Compiles modules for CPU devices at the same time, which are asked for soon."""
        known = {*self.compiled, *self.as_partitioned}
        self.child.foresee([self._request(each) for each in modules if id(each) not in known])

    def begin(self, modules: Sequence[ir.Module]) -> None:
        """Compiles large modules for CPU devices while the caller goes on."""
        new = [each for each in modules if id(each) not in self.compiled]
        if self.target is None and all(xla_child.is_large(self._text(each)) for each in new):
            self.child.begin([self._request(each) for each in new])

    def begin_numbered(self) -> None:
        """Compiles the original for CPU devices, if it is large, while the caller goes on; see `compile_numbered`."""
        if xla_child.is_large(self._numbered_request.module):
            self.child.begin([self._numbered_request])

    def first_and_last(self, starts: Sequence[Groups]) -> list[ir.Module]:
        """Returns the modules of the first and the last of some sets."""
        return list(map(self.module, dict.fromkeys((*starts[:1], *starts[-1:]))))

    def foresee_sets(self, sets: Sequence[Groups]) -> None:
        """Compiles sets at the same time, of which the first is measured next, and the others perhaps."""
        if len(sets) > 1 and xla_child.is_large(self._text(self.module(sets[0]))):
            self.foresee([self.module(groups) for groups in sets])

    def _request(self, module: ir.Module) -> CompileRequest:
        network = self.criterion.network
        has_final, stands_in = network.has_final, network.stands_in
        return CompileRequest(self._text(module), devices_of(module), has_final=has_final, stands_in=stands_in)

    def _text(self, module: ir.Module) -> str:
        """Returns the text of one of the forms, written once."""
        if id(module) not in self.texts:
            self.texts[id(module)] = module, str(module)
        return self.texts[id(module)][1]

    # Compared

    def measured(self, module: ir.Module, sites: int) -> Outcome:
        """Returns the outcome of a form of the module in which a number of sites are rewritten, without an estimate."""
        return self.criterion.outcome(self.stock, self.compile(module, with_estimate=False), sites)

    def measured_whole(self, form: TakenOver) -> Outcome:
        return self.measured(present(form.module), len(form.rows))

    def estimated_whole(self, form: TakenOver, outcome: Outcome, best: Outcome) -> Outcome:
        return self.estimated(outcome, present(form.module), len(form.rows), best)

    def outcome_of_set(self, groups: Groups, best: Outcome) -> Outcome:
        return self.outcome_of(self.module(groups), len(self.sites(groups)), best)

    def outcome_of_whole(self, form: TakenOver, best: Outcome) -> Outcome:
        return self.estimated_whole(form, self.measured_whole(form), best)

    def outcome_of(self, module: ir.Module, sites: int, best: Outcome) -> Outcome:
        """Returns the outcome of a form of the module in which a number of sites are rewritten, beside the best one.

        The compiler's estimate is asked for only if the form is the best one but for it.
        """
        return self.estimated(self.measured(module, sites), module, sites, best)

    def note_schedule(self, compiled: Compiled) -> None:
        """Has estimates asked for from now on if the schedule of a form, or of stock's program, says no time."""
        self.asks |= None in (self.stock.scheduled_seconds, compiled.scheduled_seconds)

    def estimated(self, outcome: Outcome, module: ir.Module, sites: int, best: Outcome) -> Outcome:
        """Returns an outcome with the compiler's estimate if it is the best one but for it.

        If the schedules of all programs say how long they take, that counts from the first. Else all of them take
        another compilation, and a form is not asked for it if stock's program has no estimate even then.
        """
        compiled = outcome.of
        if compiled is None or not compiled.lacks_estimate or not is_better(outcome, best):
            return outcome
        self.note_schedule(compiled)
        if not self.asks:
            return outcome
        self.stock = self.child.estimated(self.stock, self._text(self.original), devices_of(self.original), self.target)
        if self.stock.is_ok and self.stock.estimated_seconds is None:
            return outcome
        compiled = self.child.estimated(compiled, self._text(module), devices_of(module), self.target)
        return self.criterion.outcome(self.stock, compiled, sites)
