# SPDX-License-Identifier: Apache-2.0
"""Advice for a module: its annotations, the candidates for each, and the measurement of every set of changes by XLA.

A constraint may go, take the sharding of another annotation of the same shapes, or change by one edit (`neighbours`);
the sharding of arguments may change likewise. Every set of changes that the search asks about is compiled; nothing is
believed. Advice needs no more memory, changes no sharding of an argument or result that it does not name, and is not
given if XLA computes the changed program wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reshard.dialect_utils.analysis.argument_groups import argument_groups
from reshard.dialect_utils.ir.diagnostics import Place
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.annotations import Annotation, annotations_of, changed
from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S, Compiled, CompileRequest, XlaChild
from reshard.passes.advice.change_search import LEAST_GAIN, Changes, ChangeSearch, Trial
from reshard.passes.advice.source_edits import diff_of
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import values_check
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER
from reshard.passes.traffic.ledger import partitions_of
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.whole_module_check import import_shardings
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.layouts.neighbours import divides, neighbours
from reshard.synthesis.layouts.sharding import Sharding

if TYPE_CHECKING:
    from reshard.synthesis.network.program_time import ProgramTime

MOST_CHANGES = 5
BUDGET, MOST_BUDGET = 400, 10**6  # compilations
MOST_WRONG = 3  # sets of changes that XLA computes wrongly, before the search gives up


@dataclass(frozen=True, slots=True)
class Advised:
    """One change of an annotation.

    Attributes:
      annotation: the line with the sharding that it has. sharding: what it should have; None: no constraint at all.
      seconds_without: the modelled time with all other changes alone; infinite if XLA does not compile that.
      problem_without: why the other changes alone could not be advised; empty if they could.
      source: the line as its file has it; empty if there is no such file.
      diff: the lines of the file that leave and come; empty if the line is not plain enough to be edited.
    """

    annotation: Annotation
    sharding: Sharding | None
    seconds_without: float
    problem_without: str = ""
    source: str = ""
    diff: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A form of the program: what XLA makes of it, and its modelled time."""

    title: str
    compiled: Compiled
    time: ProgramTime


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change in a module, and what each change gives.

    Attributes:
      name: of the module. network: the one that times are modelled on. num_devices: of the module.
      lines: the number of annotations that are lines. arguments: of those that are groups of arguments.
      trials: the number of programs that were compiled.
      stock: the program as it came.
      forms: other forms of it: with the changes, and both after `optimize` where that was asked for.
      changes: the most needed first; empty if nothing is to be gained.
      module: the module with the changes, as bytecode; None without changes.
      problem: why nothing is advised, if there is a reason beside that nothing is to be gained.
      refused: the fastest form that may not be advised, with the reason as its title, if it is faster than what is.
      has_lines: whether the places in the module are those of other files, such as the user's.
    """

    name: str
    network: SiteNetwork
    num_devices: int
    lines: int
    arguments: int
    trials: int
    stock: Measured | None
    forms: tuple[Measured, ...] = ()
    changes: tuple[Advised, ...] = ()
    module: bytes | None = None
    problem: str = ""
    refused: Measured | None = None
    has_lines: bool = True


class Adviser:
    """Advises on one module.

    Args:
      module: is not changed. name: of the module, and of the file of a text, for people.
      most: the largest number of changes. budget: the number of compilations.
      keep_arguments: whether all arguments and results keep their shardings.
    """

    def __init__(
        self,
        module: ir.Module,
        name: str,
        child: XlaChild,
        network: SiteNetwork,
        *,
        most: int = MOST_CHANGES,
        budget: int = BUDGET,
        keep_arguments: bool = False,
    ):
        self._context, self._name, self._child, self._network = module.context, name, child, network
        self._module = ir.Module.parse(compat.bytecode(module), module.context)
        self._pipeline, self._session = Pipeline.default(), Session()
        import_shardings(self._module, self._pipeline, self._session)
        self._devices = partitions_of(self._module)
        self._criterion = ModuleCriterion(BETTER, network, self._devices)
        found = annotations_of(self._module)
        self._has_lines = not any(each.place and each.place.file == _NO_FILE for each in found)
        self._annotations = [_in_file(each, name) for each in found]
        if not keep_arguments:
            self._annotations += argument_groups(self._module, len(found))
        self._most, self._budget = most, budget
        self._stock: Compiled | None = None
        self._count = 0

    def advice(self) -> Advice:
        """Returns the advice; it never raises because of the module."""
        progress.at("advise: the module as it came")
        stock = self.compiled(compat.bytecode(self._module))
        arguments = sum(bool(each.arguments) for each in self._annotations)
        lines = len(self._annotations) - arguments
        empty = Advice(self._name, self._network, self._devices, lines, arguments, 1, None, has_lines=self._has_lines)
        if not stock.is_ok:
            return replace(empty, problem=f"XLA does not compile the module: {stock.status}: {stock.message}")
        self._stock = stock
        empty = replace(empty, stock=self.measured("as it came", stock))
        if not self._annotations:
            return replace(empty, problem="the module has no sharding that could change")
        return self._searched(empty)

    def measured(self, title: str, compiled: Compiled) -> Measured:
        """Returns a form of the program with its modelled time."""
        return Measured(title, compiled, self._network.time_beside(self._stock or compiled, compiled, self._devices))

    def _searched(self, empty: Advice) -> Advice:
        search = ChangeSearch(self._candidates(), self._trial, self._foresee, self._most, self._budget)
        wrong = ""
        for _ in range(MOST_WRONG):
            found = search.run()
            refused = self._refused(search)
            if not found:
                return replace(empty, trials=len(search.trials), problem=wrong, refused=refused)
            changes = self._named(found)
            if not (wrong := self._wrong(changes)):
                break
            key = frozenset(found)
            search.trials[key] = replace(search.trials[key], problem=wrong)
        else:
            return replace(empty, trials=len(search.trials), problem=wrong, refused=self._refused(search))
        others = [search.without(found, each) for each in found]
        advised = [
            Advised(annotation, sharding, trial.seconds, trial.problem, *self._in_source(annotation, sharding))
            for (annotation, sharding), trial in zip(changes.items(), others, strict=True)
        ]
        title = f"with {counted(len(advised), 'change')}"
        form = self.measured(title, search.trials[frozenset(found)].of)
        return replace(
            empty,
            trials=len(search.trials),
            forms=(form,),
            changes=tuple(advised),
            module=changed(self._module, changes),
            refused=self._refused(search),
        )

    def _refused(self, search: ChangeSearch) -> Measured | None:
        """Returns the fastest form that may not be advised, if it is faster than all that may."""
        compiled = [each for each in search.trials.values() if each.of is not None and each.of.is_ok]
        fastest = min(compiled, key=lambda trial: trial.seconds)
        if not fastest.problem or fastest.seconds >= search.trials[frozenset()].seconds * (1 - LEAST_GAIN):
            return None
        return self.measured(fastest.problem, fastest.of)

    def _candidates(self) -> dict[int, list[Sharding | None]]:
        """Returns what may become of each annotation: nothing, a sharding that others of its shapes have, an edit.

        Arguments always have a sharding.
        """
        used = Counter((each.mesh, each.shapes, each.sharding.closed()) for each in self._annotations)
        found = {}
        for each in self._annotations:
            others = [s for (mesh, shapes, s), _ in used.most_common() if (mesh, shapes) == (each.mesh, each.shapes)]
            near = neighbours(each.sharding.closed(), each.mesh, each.shapes)
            able = [s for s in others if all(divides(s, each.mesh, shape) for shape in each.shapes)]
            some = dict.fromkeys([*able, *near])
            some.pop(each.sharding.closed(), None)
            able = [s for s in some if not _axes_of(s) & {*each.bound}]
            found[each.number] = able if each.arguments else [None, *able]
        return found

    def _named(self, changes: Sequence[tuple[int, Sharding | None]]) -> dict[Annotation, Sharding | None]:
        return {self._annotations[number]: new for number, new in changes}

    def _text(self, changes: Changes) -> bytes:
        return changed(self._module, self._named(sorted(changes, key=lambda change: change[0])))

    def _trial(self, changes: Changes) -> Trial:
        stock = self._stock
        assert stock is not None  # it is compiled first
        self._count += 1
        progress.at("advise: programs compiled", self._count, self._budget)
        compiled = self.compiled(self._text(changes)) if changes else stock
        if not compiled.is_ok:
            message = (compiled.message.strip().splitlines() or ["no message"])[0]
            return Trial(float("inf"), problem=f"XLA does not compile that: {compiled.status}: {message}", of=compiled)
        seconds = self._network.time_beside(stock, compiled, self._devices).seconds
        named = [each for each in self._named(sorted(changes, key=lambda change: change[0])) if each.arguments]
        criterion = replace(self._criterion, counts_arguments=bool(named))
        alike = _called_as(stock, compiled, named)
        problem = criterion.problem(alike, compiled, with_time=False) or self._more_work(stock, compiled)
        return Trial(seconds, criterion.excess_memory(stock, compiled), problem, compiled)

    def _more_work(self, stock: Compiled, compiled: Compiled) -> str:
        """Returns in words that the form computes more, if nobody knows the network or what computing takes there."""
        if self._network.is_known and self._network.topology.flops_per_s is not None:
            return ""
        then, now = (sum(work.flops * work.runs for work in each.work) for each in (stock, compiled))
        return f"operations of matrix products per device {then:,} -> {now:,}" if now > then else ""

    def _foresee(self, sets: Sequence[Changes]) -> None:
        self._child.foresee([self._request(self._text(each)) for each in sets if each])

    def _request(self, source: bytes) -> CompileRequest:
        return CompileRequest(source, self._devices, has_final=self._network.has_final)

    def compiled(self, source: bytes) -> Compiled:
        """Returns what XLA makes of a form of the module, as bytecode or text."""
        return self._child.compile(
            source, self._devices, timeout_s=DEFAULT_TIMEOUT_S, has_final=self._network.has_final
        )

    def _in_source(self, annotation: Annotation, sharding: Sharding | None) -> tuple[str, tuple[str, ...]]:
        """Returns the line of an annotation, and its edit as a diff; empty where there is no such file or edit.

        A line that asks for several shardings, or a helper's, is not edited.
        """
        place = annotation.place
        lines = [] if place is None else _text_of(place).split("\n")
        if place is None or not 0 < place.line <= len(lines):
            return "", ()
        is_alone = sum(each.place == place for each in self._annotations) == 1
        may_edit = is_alone and annotation.is_own_call
        diff = diff_of("\n".join(lines), place, annotation.sharding, sharding) if may_edit else ()
        return lines[place.line - 1].strip(), diff

    def _wrong(self, changes: Mapping[Annotation, Sharding | None]) -> str:
        """Returns in words where XLA computes the changed program wrongly, if it computes the program as it came
        rightly."""
        progress.at("advise: the values of the changed program")
        found = self._problem_of(changed(self._module, changes))
        if not found or self._problem_of(compat.bytecode(self._module)):
            return ""
        return f"XLA computes the changed program wrongly: {found}"

    def _problem_of(self, source: bytes) -> str:
        module = ir.Module.parse(source, self._context)
        return values_check.problem_of_stock(module, self._pipeline, self._session)


def _called_as(stock: Compiled, compiled: Compiled, changed_arguments: Sequence[Annotation]) -> Compiled:
    """Returns stock XLA's program as if its arguments had the shardings that were asked for.

    A result that is the new value of an argument may come as the argument does, or as before.
    """
    inputs, outputs = list(stock.input_shardings), list(stock.output_shardings)
    for each in changed_arguments:
        for number in each.arguments:
            inputs[number] = compiled.input_shardings[number]
        for number in each.results:
            if compiled.output_shardings[number] == compiled.input_shardings[each.arguments[0]]:
                outputs[number] = compiled.output_shardings[number]
    return replace(stock, input_shardings=tuple(inputs), output_shardings=tuple(outputs))


_NO_FILE = "-"  # what MLIR calls the file of text that it did not read from a file


def _in_file(annotation: Annotation, file: str) -> Annotation:
    """Returns the annotation with a file in place of the one without a name."""
    place = annotation.place
    return replace(annotation, place=replace(place, file=file)) if place and place.file == _NO_FILE else annotation


def _axes_of(sharding: Sharding) -> set[str]:
    return {axis.name for axes in sharding.dims for axis in axes}


def _text_of(place: Place) -> str:
    """Returns the text of the file of a place; empty if it is no file of text that can be read."""
    try:
        return Path(place.file).read_text(encoding="utf-8") if Path(place.file).is_file() else ""
    except (OSError, ValueError):
        return ""
