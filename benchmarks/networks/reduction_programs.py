# SPDX-License-Identifier: Apache-2.0
"""Reductions on a network as P² draws them, and the programs that compute each of them.

A reduction is a mesh, a placement of its axes on the levels of the network, the axes that are summed over, and the size
of a tile. The tiles along the other axes are different arrays, as P² has it; or they are equal, as they are where a
program computes the same on several devices, and then a program may send a part of a tile through each of these.

The programs are the flat all_reduce, those of P² over the levels (reduce_scatter, all_reduce and all_gather along any
of the levels, in any valid order), the planner's plan and the plans that it rejects. `chosen` is the one that the pass
decompose-collectives takes.

Source: P² (arXiv 2110.10548), section 3; its programs with a root are left out, see `test_p2_witness.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reshard.dialect_utils.hierarchy.faster_chains import LEAST_GAIN
from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.hierarchy.redistributions import InGroups, redistribution_of
from reshard.synthesis.layouts.layout import Factor, Slot, groups, layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.placement import Placement
from reshard.synthesis.planner.entry import Plan, planned
from reshard.synthesis.planner.planner import chain_plan
from reshard.synthesis.plans.plan_layouts import in_pieces
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.programs.steps import AllGather, AllReduce, ReduceScatter, Step
from reshard.synthesis.programs.tile_program import collectives_by_step

BITS = 32
FLAT = "flat"
_MOST_AXES = 3
_MOST_REJECTED = 5
_MOST_BESIDE_ALIKE = 3
_SUM, _OWNED, _WHOLE = range(3)  # of a level: its tiles are partial sums, parts of the sum, or the sum
_FROM = {"all_reduce": _SUM, "reduce_scatter": _SUM, "all_gather": _OWNED}
_TO = {"all_reduce": _WHOLE, "reduce_scatter": _OWNED, "all_gather": _WHOLE}

Instruction = tuple[str, tuple[int, ...]]  # a collective and the levels along which it goes


@dataclass(frozen=True, slots=True)
class Reduction:
    """A sum over some axes of a placed mesh.

    Attributes:
      elements: of a tile, with 32 bits each. is_alike: whether tiles along the other axes are equal.
    """

    placement: Placement
    axes: tuple[str, ...]
    elements: int
    is_alike: bool = False

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Returns the axes that are summed over, in the order of the mesh, as XLA lists the members of a group."""
        return tuple(Factor(name, 1, size) for name, size in self.placement.axes if name in self.axes)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(group) for group in groups(self.placement.mesh, self.factors).tolist())

    @property
    def contributions(self) -> tuple[int, ...]:
        """Returns for each device the number of what it adds; devices with equal tiles have equal numbers.

        Example:
          >>> network, mesh = Topology.parse("h100:2x2"), Mesh.parse("a=2,b=2")
          >>> [Reduction(next(placements(network, mesh)), ("a",), 8, alike).contributions for alike in (False, True)]
          [(0, 1, 2, 3), (0, 0, 1, 1)]
        """
        numbers = {device: place for group in self.groups for place, device in enumerate(group)}
        return tuple(numbers[device] if self.is_alike else device for device in range(self.placement.mesh.size))

    def request(self) -> Request:
        mesh, collective = self.placement.mesh, InGroups("all_reduce", (self.elements,), self.factors)
        asked = redistribution_of(mesh, collective, () if self.is_alike else mesh.axis_names)
        options = {"topology": self.placement.topology, "objective": "time"}
        return Request.of(mesh, asked.shape, BITS, asked.source, asked.target, **options)

    def __str__(self) -> str:
        others = ", the others alike" if self.is_alike else ""
        return f"{self.placement}: sum over {', '.join(self.axes)}{others}, {4 * self.elements} bytes"


def drawn(topology: Topology, sizes: Sequence[int]) -> list[Reduction]:
    """Returns all reductions of all meshes of up to three axes on a network, for tiles of some sizes in elements."""
    found = []
    for mesh, elements in itertools.product(meshes(topology.size), sizes):
        for placed in placements(topology, mesh):
            for count in range(1, len(mesh.axes) + 1):
                for axes in itertools.combinations(mesh.axis_names, count):
                    kinds = (False, True) if count < len(mesh.axes) else (False,)
                    found += [Reduction(placed, axes, elements, is_alike) for is_alike in kinds]
    return found


def meshes(devices: int) -> Iterator[Mesh]:
    """Yields the meshes of so many devices without axes of size 1.

    Example:
      >>> print(*meshes(4))
      <["a"=4]> <["a"=2, "b"=2]>
    """
    for rank in range(1, _MOST_AXES + 1):
        for sizes in itertools.product(range(2, devices + 1), repeat=rank):
            if math.prod(sizes) == devices:
                yield Mesh(tuple(zip("abc", sizes)))


# ---- programs


@dataclass(frozen=True, slots=True)
class Problem:
    """Reductions that are the same to the network: they sum over the same groups, and ours is the same program.

    Attributes:
      reductions: those that are drawn; the first stands for all.
      flat: the plan of one all_reduce. ours: the plan of the planner where the pass would take it, else `flat`.
    """

    reductions: tuple[Reduction, ...]
    flat: Plan
    planned: Plan
    ours: Plan

    @property
    def reduction(self) -> Reduction:
        return self.reductions[0]

    @property
    def is_flat(self) -> bool:
        return self.ours is self.flat


def problems_of(reductions: Iterable[Reduction]) -> list[Problem]:
    """Returns the different problems among reductions, in the order in which they come up first."""
    found: dict[tuple, list[Reduction]] = {}
    plans: dict[tuple, tuple[Plan, Plan, Plan]] = {}
    for each in reductions:
        request = each.request()
        flat, best = plan_of_steps(request, (AllReduce(each.factors),)), planned(request)
        ours = best if best.time_s <= (1 - LEAST_GAIN) * flat.time_s else flat
        key = each.is_alike, each.elements, signature(flat), signature(ours)
        found.setdefault(key, []).append(each)
        plans.setdefault(key, (flat, best, ours))
    return [Problem(tuple(found[key]), *plans[key]) for key in found]


def programs_of(problem: Problem) -> dict[str, Plan]:
    """Returns the different programs of a problem by name, `FLAT` and ours first.

    Where tiles along other axes are equal, only the fastest few of P²'s: the others run where those tiles differ.
    """
    reduction, plans, known = problem.reduction, {FLAT: problem.flat}, {signature(problem.flat)}
    request = reduction.request()
    by_level = sorted(_level_by_level(reduction, request), key=lambda plan: plan.time_s)
    others = [each.plan for each in rejected(problem.planned, _MOST_REJECTED)]
    kept = by_level[:_MOST_BESIDE_ALIKE] if reduction.is_alike else by_level
    for each in (problem.ours, problem.planned, *kept, *others):
        if signature(each) not in known:
            known.add(signature(each))
            plans.setdefault(each.chain_text, each)
    return plans


def signature(plan: Plan) -> tuple:
    """Returns the collectives of a plan with their groups, which depend on no names of axes."""
    runs = itertools.chain(*collectives_by_step(plan.tile_program, plan.bits))
    return tuple((each.kind, each.bytes_before, tuple(sorted(each.groups or each.pairs))) for each in runs)


def plan_of_steps(request: Request, typed: tuple[Step, ...]) -> Plan:
    """Returns the plan of some steps that fulfil a request. Raises: RuleError if they do not."""
    return chain_plan(request, Chain(in_pieces(layout_of(request.mesh, request.shape, request.source), typed), typed))


def _level_by_level(reduction: Reduction, request: Request) -> Iterator[Plan]:
    """Yields P²'s programs; those that need more parts than a tile has elements are left out."""
    levels = levels_of(reduction)
    if reduction.elements % math.prod(factor.size for level in levels for factor in level):
        return
    dim = len(request.shape) - 1
    for program in programs_over(len(levels)):
        yield plan_of_steps(request, tuple(typed_steps(program, levels, dim)))


def levels_of(reduction: Reduction) -> list[tuple[Factor, ...]]:
    """Returns for each level that the axes span, outer to inner, their factors on it."""
    found = [tuple(f for f in digits if f.axis in reduction.axes) for digits in reduction.placement.digits]
    return [factors for factors in found if factors]


def programs_over(levels: int) -> Iterator[tuple[Instruction, ...]]:
    """Yields all programs that turn partial sums along some levels into sums; each collective is along neighbours.

    Example:
      >>> for program in programs_over(1):
      ...     print(program)
      (('all_reduce', (0,)),)
      (('reduce_scatter', (0,)), ('all_gather', (0,)))
    """
    yield from _completed((_SUM,) * levels, ())


def _completed(state: tuple[int, ...], before: tuple[Instruction, ...]) -> Iterator[tuple[Instruction, ...]]:
    if all(each == _WHOLE for each in state):
        yield before
        return
    spans = sorted(itertools.combinations(range(len(state) + 1), 2), key=lambda span: span[1] - span[0])
    for kind in _FROM:
        for first, stop in spans:
            if all(each == _FROM[kind] for each in state[first:stop]):
                after = (*state[:first], *[_TO[kind]] * (stop - first), *state[stop:])
                yield from _completed(after, (*before, (kind, tuple(range(first, stop)))))


def typed_steps(program: Sequence[Instruction], levels: Sequence[tuple[Factor, ...]], dim: int) -> Iterator[Step]:
    """Yields the steps of a program on tiles whose dimension `dim` is scattered.

    What is scattered first takes the major digit, so that a gather of what was scattered last needs no copy.
    """
    slots: dict[Factor, Slot] = {}
    start = 1
    for kind, along in program:
        factors = tuple(factor for level in along for factor in levels[level])
        if kind == "all_reduce":
            yield AllReduce(factors)
        elif kind == "all_gather":
            yield AllGather(tuple(sorted(factors, key=lambda each: slots[each].start)))
        else:
            for factor in factors:
                slots[factor] = Slot(dim, start, start * factor.size)
                start *= factor.size
            yield ReduceScatter(tuple((factor, slots[factor]) for factor in factors))
