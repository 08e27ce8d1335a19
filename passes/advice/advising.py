# SPDX-License-Identifier: Apache-2.0
"""Advice for a module: its annotations, the candidates for each, and the measurement of every set of changes by XLA.

A constraint may go, take the sharding of another annotation of the same shapes, or change by one edit (`neighbours`);
the sharding of arguments may change likewise, a line without a constraint may get one, and the axes of the mesh may get
other sizes. Every set of changes that the search asks about is compiled; nothing is believed. Advice needs no more
memory, changes no sharding of an argument or result that it does not name, and is not given if XLA computes the changed
program wrongly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.analysis.argument_groups import argument_groups
from reshard.dialect_utils.analysis.open_lines import open_lines
from reshard.dialect_utils.ir.diagnostics import Place
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.annotations import Annotation, annotations_of
from reshard.dialect_utils.shardings.explicit_types import disagreements, has_types
from reshard.dialect_utils.shardings.layout_changes import (
    Changed,
    MeshShape,
    changed,
    mesh_shape_of,
    stated_positions,
    uneven_in,
)
from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S, Compiled, CompileRequest, XlaChild
from reshard.passes.advice.change_search import LEAST_GAIN, Changes, ChangeSearch, Trial
from reshard.passes.advice.source_edits import added_to, diff_of, says_out_sharding
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import values_check
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER
from reshard.passes.traffic.ledger import partitions_of
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.whole_module_check import import_shardings
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.neighbours import divides, mesh_shapes, neighbours
from reshard.synthesis.layouts.sharding import Sharding

if TYPE_CHECKING:
    from reshard.synthesis.network.program_time import ProgramTime

CONSTRAINTS, LINES, STATE, ARGUMENTS, MESH = "constraints", "lines", "state", "arguments", "mesh"
MAY_CHANGE = {
    CONSTRAINTS: "the lines with a sharding constraint",
    LINES: "lines without a constraint, which may get one",
    STATE: "arguments that the program returns as new values, such as parameters and their momentum",
    ARGUMENTS: "all arguments; whoever makes the others has to make them in that sharding",
    MESH: "the sizes of the mesh's axes; unless all arguments may change, only if most of their elements are state",
}
BY_DEFAULT = (CONSTRAINTS, LINES, STATE, MESH)
MOST_CHANGES = 5
BUDGET, MOST_BUDGET = 400, 10**6  # compilations
MOST_SHAPES = 40  # of the mesh
MOST_LINES = 12  # without a constraint
MOST_WRONG = 3  # sets of changes that XLA computes wrongly, before the search gives up


@dataclass(frozen=True, slots=True)
class Advised:
    """One change of an annotation, or of the mesh.

    Attributes:
      annotation: the line or the arguments, with the sharding that they have; or the mesh.
      sharding: what it should be; None: no constraint at all. A line without a constraint gets one.
      seconds_without: the modelled time with all other changes alone; infinite if XLA does not compile that.
      problem_without: why the other changes alone could not be advised; empty if they could.
      source: the line as its file has it; empty if there is no such file.
      diff: the lines of the file that leave and come; empty if the line is not plain enough to be edited.
    """

    annotation: Changed
    sharding: Sharding | Mesh | None
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
class OtherMesh:
    """The program on another shape of its mesh, without other changes; `problem` is why that may not be advised."""

    mesh: Mesh
    form: Measured
    problem: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change in a module, and what each change gives.

    Attributes:
      name: of the module. network: the one that times are modelled on. num_devices: of the module.
      lines: the number of annotations that are lines. arguments: of those that are groups of arguments. open_lines: of
        lines without a constraint that were tried.
      trials: the number of programs that were compiled.
      stock: the program as it came.
      forms: other forms of it: with the changes, and both after `optimize` where that was asked for.
      changes: the most needed first; empty if nothing is to be gained.
      module: the module with the changes, as bytecode; None without changes.
      problem: why nothing is advised, if there is a reason beside that nothing is to be gained.
      refused: the fastest form that may not be advised, with the reason as its title, if it is faster than what is.
      refused_limit: the memory limit in bytes that would allow it; None if memory is not all that it lacks.
      meshes: the program on other shapes of its mesh, the fastest first.
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
    refused_limit: int | None = None
    meshes: tuple[OtherMesh, ...] = ()
    has_lines: bool = True
    open_lines: int = 0


class Adviser:
    """Advises on one module.

    Args:
      module: is not changed. name: of the module, and of the file of a text, for people.
      most: the largest number of changes. budget: the number of compilations.
      may_change: some of `MAY_CHANGE`.
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
        may_change: Collection[str] = BY_DEFAULT,
    ):
        self._context, self._name, self._child, self._network = module.context, name, child, network
        self._module = ir.Module.parse(compat.bytecode(module), module.context)
        self._pipeline, self._session = Pipeline.default(), Session()
        import_shardings(self._module, self._pipeline, self._session)
        self._devices = partitions_of(self._module)
        self._criterion = ModuleCriterion(BETTER, network, self._devices)
        every = annotations_of(self._module, _says_out_sharding)
        self._stated_ops = frozenset(number for each in every for number in each.ops)
        self._has_types = has_types(self._module)
        self._disagree_before = frozenset(disagreements(self._module)) if self._has_types else frozenset()
        self._refused_by_jax: dict[Changes, str] = {}
        found = every if CONSTRAINTS in may_change else []
        self._has_lines = not any(map(_is_unnamed, found))
        self._annotations = [_in_file(each, name) for each in found]
        groups = argument_groups(self._module, len(found))
        owned = groups if ARGUMENTS in may_change else [each for each in groups if each.results]
        if ARGUMENTS in may_change or STATE in may_change:
            self._annotations += [replace(each, number=len(found) + at) for at, each in enumerate(owned)]
        if LINES in may_change:
            opened = open_lines(self._module, len(self._annotations), MOST_LINES)
            self._has_lines = self._has_lines and not any(_is_unnamed(each) for each in opened)
            self._annotations += [_in_file(each, name) for each in opened]
        may_reshape = MESH in may_change and 2 * _elements(owned) >= _elements(groups) > 0
        self._mesh = mesh_shape_of(self._module, len(self._annotations)) if may_reshape else None
        self._uneven = set(uneven_in(self._module)) if self._mesh else set()
        self._stated = stated_positions(self._module) if self._mesh else ([], [])
        self._most, self._budget = most, budget
        self._stock: Compiled | None = None
        self._count = 0

    def advice(self) -> Advice:
        """Returns the advice; it never raises because of the module."""
        progress.at("advise: the module as it came")
        stock = self.compiled(compat.bytecode(self._module))
        arguments = sum(bool(each.arguments) for each in self._annotations)
        opened = sum(bool(each.values) for each in self._annotations)
        lines, how = len(self._annotations) - arguments - opened, {"has_lines": self._has_lines, "open_lines": opened}
        empty = Advice(self._name, self._network, self._devices, lines, arguments, 1, None, **how)
        if not stock.is_ok:
            return replace(empty, problem=f"XLA does not compile the module: {stock.status}: {stock.message}")
        self._stock = stock
        empty = replace(empty, stock=self.measured("as it came", stock))
        if not self._annotations and self._mesh is None:
            return replace(empty, problem="the module has no sharding that could change")
        return self._searched(empty)

    def measured(self, title: str, compiled: Compiled) -> Measured:
        """Returns a form of the program with its modelled time."""
        return Measured(title, compiled, self._network.time_beside(self._stock or compiled, compiled, self._devices))

    def _searched(self, empty: Advice) -> Advice:
        weighty = [self._mesh.number] if self._mesh else []
        search = ChangeSearch(self._candidates(), self._trial, self._foresee, self._most, self._budget, weighty)
        wrong = ""
        for _ in range(MOST_WRONG):
            found = search.run()
            empty = replace(empty, meshes=self._meshes(search))
            if not found:
                return replace(empty, trials=len(search.trials), problem=wrong, **self._refused(search))
            changes = self._named(found)
            if not (wrong := self._wrong(changes)):
                break
            key = frozenset(found)
            search.trials[key] = replace(search.trials[key], problem=wrong)
        else:
            return replace(empty, trials=len(search.trials), problem=wrong, **self._refused(search))
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
            module=self._changed(changes),
            **self._refused(search),
        )

    def _refused(self, search: ChangeSearch) -> dict[str, Any]:
        """Returns the fastest form that may not be advised, and the limit it needs, if it is faster than all others."""
        compiled = [key for key, trial in search.trials.items() if trial.of is not None and trial.of.is_ok]
        key = min(compiled, key=lambda key: search.trials[key].seconds)
        fastest = search.trials[key]
        if not fastest.problem or fastest.seconds >= search.trials[frozenset()].seconds * (1 - LEAST_GAIN):
            return {}
        criterion, alike = self._judged(key, fastest.of)
        limit = criterion.missing_limit(alike, fastest.of)
        return {"refused": self.measured(fastest.problem, fastest.of), "refused_limit": limit}

    def _meshes(self, search: ChangeSearch) -> tuple[OtherMesh, ...]:
        """Returns what was measured of other shapes of the mesh alone."""
        found = []
        for key, trial in search.trials.items():
            mesh = next(iter(key))[1] if len(key) == 1 else None
            if isinstance(mesh, Mesh) and trial.of is not None and trial.of.is_ok:
                found.append(OtherMesh(mesh, self.measured(sizes_text(mesh), trial.of), trial.problem))
        return tuple(sorted(found, key=lambda each: each.form.time.seconds))

    def _candidates(self) -> dict[int, list[Sharding | Mesh | None]]:
        """Returns what may become of each annotation: nothing, a sharding that others of its shapes have, an edit.

        Arguments always have a sharding.
        """
        stated = [each for each in self._annotations if not each.values]
        used = Counter((each.mesh, each.shapes, each.sharding.closed()) for each in stated)
        found: dict[int, list[Sharding | Mesh | None]] = {}
        if self._mesh is not None:
            found[self._mesh.number] = [*mesh_shapes(self._mesh.mesh)[:MOST_SHAPES]]
        for each in self._annotations:
            others = [s for (mesh, shapes, s), _ in used.most_common() if (mesh, shapes) == (each.mesh, each.shapes)]
            near = neighbours(each.sharding.closed(), each.mesh, each.shapes)
            able = [s for s in others if all(divides(s, each.mesh, shape) for shape in each.shapes)]
            some = dict.fromkeys([*able, *near])
            some.pop(each.sharding.closed(), None)
            able = [s for s in some if not _axes_of(s) & {*each.bound}]
            must_have = bool(each.arguments or each.values or each.is_out_sharding)
            found[each.number] = [*able] if must_have else [None, *able]
        return found

    def _named(self, changes: Sequence[tuple[int, Any]]) -> dict[Changed, Sharding | Mesh | None]:
        every: list[Changed] = [*self._annotations, *([self._mesh] if self._mesh else [])]
        return {every[number]: new for number, new in changes}

    def _text(self, changes: Changes) -> bytes:
        return self._changed(self._named(sorted(changes, key=lambda change: change[0])))

    def _changed(self, changes: Mapping[Changed, Sharding | Mesh | None]) -> bytes:
        return changed(self._module, changes, self._stated_ops)

    def _trial(self, changes: Changes) -> Trial:
        stock = self._stock
        assert stock is not None  # it is compiled first
        self._count += 1
        progress.at("advise: programs compiled", self._count, self._budget)
        text = self._text(changes)
        is_reshaped = any(self._mesh is not None and number == self._mesh.number for number, _ in changes)
        if is_reshaped and (problem := self._unevenness(text)):
            return Trial(float("inf"), problem=problem)
        if problem := self._disagreement(changes):
            return Trial(float("inf"), problem=problem)
        compiled = self.compiled(text) if changes else stock
        if not compiled.is_ok:
            problem = f"XLA does not compile that: {compiled.status}: {compiled.reason}"
            return Trial(float("inf"), problem=problem, of=compiled)
        seconds = self._network.time_beside(stock, compiled, self._devices).seconds
        criterion, alike = self._judged(changes, compiled)
        problem = criterion.problem(alike, compiled, with_time=False) or self._more_work(stock, compiled)
        return Trial(seconds, criterion.excess_memory(stock, compiled), problem, compiled)

    def _judged(self, changes: Changes, compiled: Compiled) -> tuple[ModuleCriterion, Compiled]:
        """Returns what decides about a set of changes, and stock XLA's program as if it were called as the set says."""
        assert self._stock is not None
        named = list(self._named(sorted(changes, key=lambda change: change[0])))
        calls_otherwise = any(isinstance(each, MeshShape) or each.arguments for each in named)
        criterion = replace(self._criterion, counts_arguments=calls_otherwise)
        return criterion, _called_as(self._stock, compiled, named, *self._stated)

    def _unevenness(self, text: bytes) -> str:
        """Returns in words which array another shape of the mesh does not divide; empty if it divides all that it
        divided before."""
        try:
            module = ir.Module.parse(text, self._context)
        except ir.MLIRError as error:
            return f"the module does not hold on that mesh: {str(error).splitlines()[0]}"
        uneven = [each for each in uneven_in(module) if each not in self._uneven]
        return "" if not uneven else f"{uneven[0][0]} does not divide {list(uneven[0][1])} on that mesh"

    def _disagreement(self, changes: Changes) -> str:
        """Returns in words why jax would refuse the changed program in explicit mode; empty if it would not."""
        if not self._has_types or not changes:
            return ""
        if changes not in self._refused_by_jax:
            found = disagreements(ir.Module.parse(self._text(changes), self._context))
            self._refused_by_jax[changes] = next((each for each in found if each not in self._disagree_before), "")
        return self._refused_by_jax[changes]

    def _more_work(self, stock: Compiled, compiled: Compiled) -> str:
        """Returns in words that the form computes more, if nobody knows the network or what computing takes there."""
        if self._network.is_known and self._network.topology.flops_per_s is not None:
            return ""
        then, now = (sum(work.flops * work.runs for work in each.work) for each in (stock, compiled))
        return f"operations of matrix products per device {then:,} -> {now:,}" if now > then else ""

    def _foresee(self, sets: Sequence[Changes]) -> None:
        self._child.foresee([self._request(self._text(each)) for each in sets if each and not self._disagreement(each)])

    def _request(self, source: bytes) -> CompileRequest:
        network = self._network
        return CompileRequest(source, self._devices, has_final=network.has_final, stands_in=network.stands_in)

    def compiled(self, source: bytes) -> Compiled:
        """Returns what XLA makes of a form of the module, as bytecode or text."""
        return self._child.compile(
            source,
            self._devices,
            timeout_s=DEFAULT_TIMEOUT_S,
            has_final=self._network.has_final,
            stands_in=self._network.stands_in,
        )

    def _in_source(self, annotation: Changed, sharding: Sharding | Mesh | None) -> tuple[str, tuple[str, ...]]:
        """Returns the line of an annotation, and its edit as a diff; empty where there is no such file or edit.

        A line that asks for several shardings, or a helper's, is not edited.
        """
        if isinstance(annotation, MeshShape) or isinstance(sharding, Mesh):
            return "", ()
        place = annotation.place
        lines = [] if place is None else _text_of(place).split("\n")
        if place is None or not 0 < place.line <= len(lines):
            return "", ()
        there = [each.place for each in self._annotations if each.place == place]
        is_alone = sum(each.end == place.end for each in there if each is not None) == 1
        may_edit = is_alone and annotation.is_own_call
        if annotation.values:
            added = added_to("\n".join(lines), place, sharding) if may_edit and sharding is not None else ()
            return lines[place.line - 1].strip(), added
        diff = diff_of("\n".join(lines), place, annotation.sharding, sharding) if may_edit else ()
        return lines[place.line - 1].strip(), diff

    def _wrong(self, changes: Mapping[Changed, Sharding | Mesh | None]) -> str:
        """Returns in words where XLA computes the changed program wrongly, if it computes the program as it came
        rightly."""
        progress.at("advise: the values of the changed program")
        found = self._problem_of(self._changed(changes))
        if not found or self._problem_of(compat.bytecode(self._module)):
            return ""
        return f"XLA computes the changed program wrongly: {found}"

    def _problem_of(self, source: bytes) -> str:
        module = ir.Module.parse(source, self._context)
        return values_check.problem_of_stock(module, self._pipeline, self._session)


def _elements(groups: Sequence[Annotation]) -> int:
    return sum(len(each.arguments) * math.prod(each.shapes[0]) for each in groups)


def sizes_text(mesh: Mesh) -> str:
    """Returns the axes of a mesh as people write them.

    Example:
      >>> sizes_text(Mesh.parse("x=2,y=4"))
      'x=2, y=4'
    """
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def _called_as(
    stock: Compiled,
    compiled: Compiled,
    named: Sequence[Changed],
    stated_arguments: Sequence[int],
    stated_results: Sequence[int],
) -> Compiled:
    """Returns stock XLA's program as if its arguments had the shardings that were asked for.

    A result that is the new value of an argument may come as the argument does, or as before. On a mesh of another
    shape, all arguments and results that state a sharding come otherwise.
    """
    inputs, outputs = list(stock.input_shardings), list(stock.output_shardings)
    for each in named:
        is_mesh = isinstance(each, MeshShape)
        for number in stated_arguments if is_mesh else each.arguments:
            inputs[number] = compiled.input_shardings[number]
        for number in stated_results if is_mesh else each.results:
            if is_mesh or compiled.output_shardings[number] == compiled.input_shardings[each.arguments[0]]:
                outputs[number] = compiled.output_shardings[number]
    return replace(stock, input_shardings=tuple(inputs), output_shardings=tuple(outputs))


_NO_FILE = "-"  # what MLIR calls the file of text that it did not read from a file


def _is_unnamed(annotation: Annotation) -> bool:
    return annotation.place is not None and annotation.place.file == _NO_FILE


def _says_out_sharding(place: Place) -> bool:
    return says_out_sharding(_text_of(place), place)


def _in_file(annotation: Annotation, file: str) -> Annotation:
    """Returns the annotation with a file in place of the one without a name."""
    place = annotation.place
    return replace(annotation, place=replace(place, file=file)) if place and _is_unnamed(annotation) else annotation


def _axes_of(sharding: Sharding) -> set[str]:
    return {axis.name for axes in sharding.dims for axis in axes}


def _text_of(place: Place) -> str:
    """Returns the text of the file of a place; empty if it is no file of text that can be read."""
    try:
        return Path(place.file).read_text(encoding="utf-8") if Path(place.file).is_file() else ""
    except (OSError, ValueError):
        return ""
