# SPDX-License-Identifier: Apache-2.0
"""The solver's answer to a case beside what trying all layouts finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from reshard.dialect_utils.assignment.factored_modules import factored_module
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.assignment.factored_program import FactoredProgram
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.pairwise.solving import SMALL_GAP, InfeasibleError, Solution

from .drawing import Case, draw
from .from_program import FromProgram
from .stated import SAME, Least, combinations, is_same, least_as_stated

MOST = 50_000  # combinations of layouts that are tried


@dataclass(frozen=True)
class Compared:
    """A case that was solved, and tried out.

    Attributes:
      limit: of the memory in bytes; None: no limit. free_s: the seconds of the best solution without it.
      seconds, bound: of the solver asked for the best solution; infinite for none. usual_s: as it is asked by default.
      stated: what trying all states of the problem finds; None if the problem cannot be stated, since pinned layouts
        are impossible. anew: what trying all layouts of all values finds, each priced anew from the program.
      nodes: of the problem. left: how many of them the solver's reductions leave to be searched.
      untied_s: the least that layouts may cost of which each value has its own, also where ops tie; None if that was
        not tried.
    """

    case: Case
    limit: int | None
    free_s: float
    seconds: float
    bound: float
    usual_s: float
    stated: Least | None
    anew: Least
    nodes: int = 0
    left: int = 0
    untied_s: float | None = None

    @property
    def is_possible(self) -> bool:
        return math.isfinite(self.anew.seconds)

    @property
    def is_limit_felt(self) -> bool:
        """Returns whether the limit makes the best layouts slower, or impossible."""
        return self.seconds > self.free_s * (1 + SAME)

    @property
    def problems(self) -> list[str]:
        """Returns in words what disagrees."""
        found = []
        tried = {"as stated": self.stated, "priced anew": self.anew}
        for said, least in tried.items():
            if least and not is_same(self.seconds, least.seconds):
                found.append(f"the solver has {self.seconds:.9g} s, trying all layouts, {said}, {least.seconds:.9g} s")
            if least and self.bound > least.seconds * (1 + SAME):
                found.append(f"the bound is {self.bound:.9g} s, and layouts, {said}, take {least.seconds:.9g} s")
        if math.isinf(self.usual_s) != math.isinf(self.seconds) or self.usual_s > self.seconds * (1 + SMALL_GAP):
            found.append(f"by default the solver has {self.usual_s:.9g} s, and there are {self.seconds:.9g} s")
        if self.stated and not self.stated.is_like(self.anew):
            found.append(f"the problem has {self.stated}, the program {self.anew}")
        return found


def drawn(
    count: int, first_seed: int = 0, most: int = MOST, *, is_untied_too: bool = False
) -> Iterator[Compared | None]:
    """Yields so many cases that were compared, and None for each one between that has too many combinations."""
    for seed in itertools.count(first_seed):
        if count <= 0:
            return
        found = compared(draw(seed), most, is_untied_too=is_untied_too)
        count -= found is not None
        yield found


def compared(case: Case, most: int = MOST, *, is_untied_too: bool = False) -> Compared | None:
    """Returns a case with all its answers; None if more than `most` combinations would have to be tried.

    Args:
      is_untied_too: whether to try layouts for each value, too, if there are not too many and there is no limit.
    """
    with make_context() as context, ir.Location.unknown(context):
        program = factored_module(ir.Module.parse(case.text, context), case.mesh).program
    topology = Topology.parse(case.network).fitted(case.mesh.size)
    from_program = FromProgram(program, case.mesh, topology)
    try:
        problem = LayoutProblem(program, case.mesh, topology)
    except InfeasibleError:
        nothing = math.inf, math.inf, -math.inf, math.inf
        return Compared(case, None, *nothing, None, from_program.least(None))
    if combinations(problem, case.memory_share is not None) > most:
        return None
    free_s, limit = _free(problem, case.memory_share)
    best, usual = (_solved(program, case, topology, limit, gap) for gap in (0.0, SMALL_GAP))
    stated, anew = least_as_stated(problem, limit), from_program.least(limit)
    untied = FromProgram(program, case.mesh, topology, is_tied=False)
    is_tried = is_untied_too and limit is None and problem.clusters.ties and untied.combinations() <= most
    untied_s = untied.least(None).seconds if is_tried else None
    answers = best.cost, best.bound, usual.cost, stated, anew
    return Compared(case, limit, free_s, *answers, len(problem.problem.costs), best.core, untied_s)


def _free(problem: LayoutProblem, share: float | None) -> tuple[float, int | None]:
    """Returns the seconds of the best layouts without a limit, and the limit for a share of what they take."""
    try:
        best = problem.solve(gap=0.0)
        seconds, most = best.seconds, best.memory_bytes
    except InfeasibleError:
        seconds, most = math.inf, int(problem.memory.whole().max())
    least = problem.memory.least()
    return seconds, None if share is None else max(1, int(least + share * (most - least)))


def _solved(program: FactoredProgram, case: Case, topology: Topology, limit: int | None, gap: float) -> Solution:
    """Returns the solver's solution; one that costs infinitely much if it finds none."""
    try:
        return LayoutProblem(program, case.mesh, topology, limit).solve(gap=gap).solution
    except InfeasibleError:
        return Solution((), math.inf, -math.inf)
