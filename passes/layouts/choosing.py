# SPDX-License-Identifier: Apache-2.0
"""The choice between meshes: each is laid out by the model, the most promising are compiled, the fastest is taken.

The model has no meshes to compare that differ in their number of devices, but in its shape: 8, 2x4, 4x2, 2x2x2. More
axes can do all that fewer can; but a compiler does less well with them, so that of equals the fewest axes come first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reshard.dialect_utils.ir.diagnostics import DiagnosedError, error_at
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.dialect_utils.xla.child import Compiled
from reshard.passes.layouts.assigning import Assigned, MemoryLimitError, chosen, topology_for, written
from reshard.passes.layouts.judging import Judge
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.assignment.axes import FORMS, WHOLE
from reshard.synthesis.assignment.tactics import Tactic
from reshard.synthesis.common.numbers import enough_text, needed_and_limit
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.pairwise.solving import NotBelowError

OUT_OF_TIME, INTERRUPTED = "out of time", "interrupted"
AXIS_NAMES = ("x", "y", "z")
MOST_MESHES = 8  # that are laid out
MOST_COMPILED = 3  # of them
_SAME = 0.02  # a share of the time below which two meshes are equally good
_EQUAL = 0.01  # a share of the time that another axis has to save
_TRIES = 3  # with smaller limits, if a program needs more memory than the model says
_MODEL_ERROR = 1.5  # times the limit that a model may need of which the compiled program may fit
_MORE = 1.02  # times the least memory that any layouts need, so that there is a choice
_ROOM = 0.95  # of the limit: a program that needs less may be faster with more
_MANY = 16  # devices above which no mesh has three axes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A module on one mesh.

    Attributes:
      content: the module as bytecode, with its layouts once it is compiled. optimized: the same after `reshard-opt`.
      limit: the memory that the layouts were chosen for, in bytes; None: any.
      axes: the form of the mesh's axes, as `FORMS` has them.
      stock, ours: what XLA makes of both; None if it was not asked.
      stock_s, ours_s: their modelled times in seconds.
      problem: why it cannot be taken; empty if it can.
    """

    mesh: Mesh
    assigned: Assigned
    content: bytes
    limit: int | None = None
    axes: str = WHOLE
    optimized: bytes = b""
    stock: Compiled | None = None
    ours: Compiled | None = None
    stock_s: float = math.inf
    ours_s: float = math.inf
    problem: str = ""

    @property
    def best_s(self) -> float:
        """Returns the modelled time of the faster form; infinite if the candidate cannot be taken."""
        return math.inf if self.problem else min(self.stock_s, self.ours_s)

    @property
    def peak_bytes(self) -> int:
        """Returns the memory of the smaller form; 0 if none compiles."""
        return min((each.limited_bytes for each in (self.stock, self.ours) if each and each.is_ok), default=0)


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates, the best first, those that were compiled before those that were not.

    `skipped` has meshes with more axes on which no layouts are faster by the model, with the seconds that they take at
    least. `ended` says why not all that was to be tried was tried: `OUT_OF_TIME` or `INTERRUPTED`; empty if it was.
    """

    candidates: tuple[Candidate, ...]
    network: SiteNetwork
    skipped: tuple[tuple[Mesh, float], ...] = ()
    ended: str = ""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def mesh_text(mesh: Mesh) -> str:
    """Returns the axes of a mesh as people write them.

    Example:
      >>> mesh_text(Mesh.parse("x=2,y=4"))
      'x=2, y=4'
    """
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def meshes_for(devices: int) -> tuple[Mesh, ...]:
    """Returns the shapes of a mesh that are tried for a number of devices, those with fewest axes first.

    Example:
      >>> [[size for _, size in mesh.axes] for mesh in meshes_for(8)]
      [[8], [2, 4], [4, 2], [2, 2, 2]]
    """
    shapes = [(devices,), *_squarest(products(devices, 2))]
    if devices <= _MANY:
        shapes += _squarest(products(devices, 3))
    return tuple(Mesh(tuple(zip(AXIS_NAMES, shape))) for shape in shapes[:MOST_MESHES])


def without_swapped(meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Returns the meshes without those that swap the axes of an earlier one: the same, if all devices are alike.

    Example:
      >>> [mesh_text(mesh) for mesh in without_swapped(meshes_for(8))]
      ['x=8', 'x=2, y=4', 'x=2, y=2, z=2']
    """
    first: dict[tuple[int, ...], Mesh] = {}
    for mesh in meshes:
        first.setdefault(tuple(sorted(size for _, size in mesh.axes)), mesh)
    return tuple(first.values())


def _squarest(shapes: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(shapes, key=lambda shape: (max(shape) / min(shape), shape))


def products(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to write a number as a product of so many that are above 1."""
    if count == 1:
        yield from [(number,)] if number > 1 else []
        return
    for first in (each for each in range(2, number) if number % each == 0):
        for rest in products(number // first, count - 1):
            yield (first, *rest)


@dataclass(frozen=True)
class Chooser:
    """Chooses the mesh and the layouts of a module.

    Attributes:
      source: the module, as bytecode. context: in which it is parsed.
      judge: compiles it with its layouts.
      limit: the memory of a device in bytes; None: no limit. tactics: axis -> what it may be for.
      deadline: by the clock `time.monotonic`, after which nothing else is tried once there is a program.
      takes_interrupts: whether Ctrl-C ends the search with the best program so far, if there is one.
    """

    source: bytes
    context: ir.Context
    judge: Judge
    network: SiteNetwork
    limit: int | None = None
    keeps_annotations: bool = True
    tactics: Mapping[str, Tactic] = field(default_factory=dict)
    deadline: float = math.inf
    takes_interrupts: bool = False

    def choice(self, meshes: Sequence[Mesh], most_compiled: int = MOST_COMPILED) -> Choice:
        """Returns the candidates. Raises: DiagnosedError if no mesh is possible, with the reason of the last one."""
        laid_out, skipped, error, ended = [], [], None, ""
        meshes = self._distinct(meshes)
        for number, mesh in enumerate(meshes, 1):
            if laid_out and self._is_over:
                ended = OUT_OF_TIME
                break
            progress.at(f"layouts on {mesh}", number, len(meshes))
            fewer = [each.assigned.seconds for each in laid_out if len(each.mesh.axes) < len(mesh.axes)]
            try:
                laid_out.append(self._first(mesh, min(fewer, default=math.inf) * (1 - _EQUAL)))
            except NotBelowError as slower:
                skipped.append((mesh, slower.bound))
            except DiagnosedError as problem:
                error = problem
        if not laid_out:
            assert error is not None
            raise error
        if len(meshes) == 1 and not self._is_over:
            laid_out += self._other_forms(laid_out[0])
            most_compiled = max(most_compiled, len(laid_out))  # prices on more axes are estimates
        fastest = max(1e-12, min(each.assigned.seconds for each in laid_out))
        laid_out.sort(key=lambda each: (math.floor((each.assigned.seconds / fastest - 1) / _SAME), _axes(each)))
        different, compiled = _different(laid_out)[:most_compiled], []
        others = [each for each in laid_out if each not in different]
        try:
            skipped = self._compile(different, others, skipped, compiled)
        except KeyboardInterrupt:
            if not self.takes_interrupts or all(each.problem for each in compiled):
                raise
            ended = INTERRUPTED
        compiled.sort(key=lambda each: each.best_s)
        if compiled[0].problem:
            module = ir.Module.parse(self.source, self.context)
            raise error_at(module.operation, compiled[0].problem + self._what_helps(compiled[0]))
        left = [each for each in laid_out if all((each.mesh, each.axes) != (one.mesh, one.axes) for one in compiled)]
        if any(each in different for each in left):
            ended = ended or OUT_OF_TIME
        return Choice((*compiled, *left), self.network, tuple(skipped), ended)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def _compile(
        self,
        different: Sequence[Candidate],
        others: Sequence[Candidate],
        skipped: Sequence[tuple[Mesh, float]],
        compiled: list[Candidate],
    ) -> list[tuple[Mesh, float]]:
        """Compiles different candidates into `compiled` until the time is over, and others while none fits; returns the
        meshes that are still skipped."""
        for each in different:
            if self._is_over and any(not other.problem for other in compiled):
                return list(skipped)
            compiled.append(self._measured(each))
        for each in others:
            if any(not other.problem for other in compiled):
                break
            compiled.append(self._measured(each))
        return list(skipped) if self._is_over else self._tried_again(skipped, compiled)

    def _other_forms(self, first: Candidate) -> Iterator[Candidate]:
        """Yields the mesh with its axes in parts, or swapped, if that is faster by the model."""
        for form in FORMS:
            if not FORMS[form](first.mesh).are_whole:
                with contextlib.suppress(NotBelowError, DiagnosedError):
                    yield self._first(first.mesh, first.assigned.seconds * (1 - _EQUAL), form)

    def _distinct(self, meshes: Sequence[Mesh]) -> Sequence[Mesh]:
        module = ir.Module.parse(self.source, self.context)
        if module_meshes(module) or not topology_for(module, meshes[0], self.network).is_one_switch:
            return meshes
        return without_swapped(meshes)

    def _tried_again(
        self, skipped: Sequence[tuple[Mesh, float]], compiled: list[Candidate]
    ) -> list[tuple[Mesh, float]]:
        """Compiles skipped meshes that may be faster after all, since the best one was laid out anew for less memory.

        Returns: those that are still skipped.
        """
        left = []
        for mesh, bound_s in skipped:
            best = min(compiled, key=lambda each: each.best_s)
            below_s = math.inf if best.problem else best.assigned.seconds * (1 - _EQUAL)
            try:
                if bound_s >= below_s:
                    raise NotBelowError(bound_s)
                compiled.append(self._measured(self._first(mesh, below_s)))
            except NotBelowError as slower:
                left.append((mesh, slower.bound))
            except DiagnosedError:
                left.append((mesh, bound_s))
        return left

    def _first(self, mesh: Mesh, below_s: float, axes: str = WHOLE) -> Candidate:
        """Returns a mesh laid out within the limit, or for the least memory if the model is not sure that it is more.

        The model leaves out what compilers save; the compiled program tells whether the limit is kept.
        """
        try:
            return self._laid_out(mesh, self.limit, below_s, axes)
        except MemoryLimitError as error:
            if self.limit is None or error.least_bytes > _MODEL_ERROR * self.limit:
                raise
            return self._laid_out(mesh, int(error.least_bytes * _MORE) + 1, axes=axes)

    def _laid_out(self, mesh: Mesh, limit: int | None, below_s: float = math.inf, axes: str = WHOLE) -> Candidate:
        module = ir.Module.parse(self.source, self.context)
        found = chosen(
            module,
            mesh,
            self.network,
            keeps_annotations=self.keeps_annotations,
            memory_limit=limit,
            tactics=self.tactics,
            below_s=below_s,
            axes=axes,
        )
        return Candidate(mesh, found, compat.bytecode(module), limit, axes)

    def _measured(self, candidate: Candidate) -> Candidate:
        """Returns a candidate with what the compiler makes of it, laid out anew while it needs too much memory.

        The limit of the model shrinks by the ratio at which the compiled program is above `limit`. Where no layout fits
        into that, the next one is halfway between it and what the model needed last. A program that was laid out for
        less memory than it may have is laid out once more, for as much.
        """
        found = self._compiled(candidate)
        too_small, problem = 0, ""
        for _ in range(_TRIES):
            peak = found.peak_bytes
            if self.limit is None or not found.problem or not peak:
                break
            modelled = found.assigned.assignment.memory_bytes
            limit = int(max(modelled * min(0.95, self.limit / peak), (modelled + too_small) / 2))
            try:
                again = self._laid_out(candidate.mesh, limit, axes=candidate.axes)
                found, problem = self._compiled(again), ""
            except DiagnosedError:
                needed, allowed = needed_and_limit(peak, self.limit)
                said = f"the program needs {needed}, and the limit is {allowed}; by the model, no layouts need less"
                too_small, problem = limit, said
        if problem:
            return replace(found, problem=problem)
        return self._with_more_memory(found)

    def _with_more_memory(self, found: Candidate) -> Candidate:
        """Returns a candidate that fits, or a faster one that needs more memory and fits too."""
        limit, peak, modelled = found.limit, found.peak_bytes, found.assigned.assignment.memory_bytes
        if self.limit is None or limit is None or not peak or found.problem:
            return found
        is_limited = modelled > _ROOM * limit
        if not is_limited or peak > _ROOM * self.limit:
            return found
        try:
            limit = int(modelled * self.limit / peak)
            larger = self._compiled(self._laid_out(found.mesh, limit, axes=found.axes))
        except DiagnosedError:
            return found
        return min(found, larger, key=lambda each: each.best_s)

    def _written(self, candidate: Candidate) -> Candidate:
        """Returns a candidate with its layouts in the module. Most candidates are never compiled, and finding few
        constraints takes as long as all the rest."""
        if candidate.assigned.constraints is not None:
            return candidate
        module = ir.Module.parse(candidate.content, self.context)
        assigned = written(module, candidate.mesh, candidate.assigned)
        return replace(candidate, assigned=assigned, content=compat.bytecode(module))

    def _compiled(self, candidate: Candidate) -> Candidate:
        candidate = self._written(candidate)
        progress.at(f"compiling for {candidate.mesh}")
        judged = self.judge(candidate.content, candidate.mesh.size)
        stock, ours = judged.stock, judged.ours
        if not (stock.is_ok or ours.is_ok):
            problem = f"XLA does not compile it: {stock.message[:200]}"
            return replace(candidate, stock=stock, ours=ours, problem=problem)
        stock_s, ours_s = (
            math.inf if self._is_too_large(each) else seconds
            for each, seconds in ((stock, judged.stock_s), (ours, judged.ours_s))
        )
        found = replace(candidate, optimized=judged.optimized, stock=stock, ours=ours, stock_s=stock_s, ours_s=ours_s)
        if math.isinf(min(stock_s, ours_s)):
            assert self.limit is not None  # without a limit nothing is too large
            needed, allowed = needed_and_limit(found.peak_bytes, self.limit)
            said = f"the program needs {needed}, and the limit is {allowed}"
            return replace(found, problem=f"on {mesh_text(candidate.mesh)} {said}")
        return found

    def _what_helps(self, candidate: Candidate) -> str:
        """Returns in words what makes a candidate fit; empty if it lacks something else than memory."""
        peak = candidate.peak_bytes
        if self.limit is None or peak <= self.limit:
            return ""
        return f"; allow {enough_text(peak)}, or use more devices, a smaller batch, or donate arguments"

    def _is_too_large(self, compiled: Compiled) -> bool:
        return self.limit is not None and compiled.is_ok and compiled.limited_bytes > self.limit


def _axes(candidate: Candidate) -> int:
    """Returns how many axes a candidate has, parts of axes each counted as one."""
    return len(FORMS[candidate.axes](candidate.mesh).refs)


def _different(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates without those for which the model finds no more than for a mesh with fewer axes."""
    found: list[Candidate] = []
    for each in candidates:
        times = [other.assigned.seconds for other in found if _axes(other) < _axes(each)]
        if not times or each.assigned.seconds < min(times) * (1 - _EQUAL):
            found.append(each)
    return found
