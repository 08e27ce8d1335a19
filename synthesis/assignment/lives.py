# SPDX-License-Identifier: Apache-2.0
"""When the tensors of a program are in memory.

Compilers fuse: the result of an elementwise op that only one op needs never is in memory, and what it is made of is
alive until that op. Views, and results that are written into an operand, are the operand. Matrix products, gathers and
the like read and write whole tensors. The order of the ops is one in which little is alive (`scheduling`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from .factored_program import FactoredOp, Interval, Span, Tensor
from .scheduling import Step, order_of, peak_of

IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})  # write what they are given into their first operand
_VIEWS = frozenset({"reshape", "transpose", "same"})  # a transpose too: a matrix product reads it in any order
_WHOLE = frozenset(
    ("gather", "sort", "custom_call", "fft", "cholesky", "triangular_solve", "reduce_window", "select_and_scatter")
)
_MOST_ROOTS = 16  # of a fused op
_ALIKE = 1.25  # times the bytes of a result that may be kept alive to make it again instead
_MAKE = frozenset(("copy", "reduce", *IN_PLACE))  # write their results, and fuse with what makes their operands


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is in memory and what runs; the attributes are those of `FactoredProgram`."""

    lives: tuple[Interval, ...]
    moments: tuple[int | None, ...]
    loops: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The ops of a region, in the order of the text: the number of an op, or a region inside.

    `carries` has the tensors that one iteration of a loop hands to the next.
    """

    items: tuple[int | Region, ...]
    is_loop: bool = False
    carries: frozenset[int] = frozenset()


def schedule_of(
    tensors: Sequence[Tensor],
    ops: Sequence[FactoredOp],
    body: Region,
    arguments: Collection[int],
    donated: Collection[int] = (),
    results: Collection[int] = (),
    views: Collection[int] = (),
) -> Schedule:
    """Returns which tensors are in memory as a whole and which ops run, and when.

    Args:
      body: all ops. arguments: tensors that are there at the begin, to the end unless they are `donated`.
      views: numbers of ops whose result is their operand, whatever their names are.
    """
    some = (frozenset(each) for each in (arguments, donated, results, views))
    return _Lives(tensors, ops, body, *some).schedule()


@dataclass
class _Lives:
    tensors: Sequence[Tensor]
    ops: Sequence[FactoredOp]
    body: Region
    arguments: frozenset[int]
    donated: frozenset[int]
    results: frozenset[int]
    views: frozenset[int]
    is_view: list[bool] = field(init=False)  # by op

    def __post_init__(self) -> None:
        self._moments: dict[int, int] = {}  # of ops that make something in memory
        self._loops: list[Span] = []
        self._regions: list[Region] = []
        self._inside: dict[int, set[int]] = {}  # number of a region -> numbers of it and those inside
        self._region_of: dict[int, int] = {}
        self._number(self.body)
        self._same = list(range(len(self.tensors)))
        self.is_view = [False] * len(self.ops)
        self._join_views()
        self.kept = {self._same[each] for each in (self.arguments - self.donated) | self.results}
        self.held = {self._same[each] for each in self.arguments | self.results}
        self._users: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for tensor in () if self.is_view[number] else {self._same[each] for each in op.operands}:
                self._users.setdefault(tensor, []).append(number)
        self._roots: dict[int, frozenset[int]] = {}  # of tensors that are not in memory: those that they are made of
        self.is_fused = self._fused(self._takers())
        self._join_updates()

    def _join_views(self) -> None:
        """Finds out which tensors are views of another one; `_same` has that one for each."""
        for number, op in enumerate(self.ops):
            is_view = op.name in _VIEWS or number in self.views
            if is_view and len(op.operands) == 1 and self._are_alike(op.operands[0], op.results[0]):
                self.is_view[number] = True
                self._same[op.results[0]] = self._same[op.operands[0]]

    def _are_alike(self, one: int, other: int) -> bool:
        return self.tensors[one].bytes == self.tensors[other].bytes

    def _join_updates(self) -> None:
        """Finds out which results are written into an operand that is in memory; `_same` then has that one for both."""
        takers: dict[int, list[int]] = {}
        made_in: dict[int, int] = dict.fromkeys((self._same[each] for each in self.arguments), 0)
        for number in self._makers():
            step = self._step(number)
            for tensor in step.takes:
                takers.setdefault(tensor, []).append(number)
            for tensor in step.makes:
                made_in.setdefault(tensor, self._region_of[number])
        for number in self._makers():
            op = self.ops[number]
            if op.name not in IN_PLACE or not op.operands or not op.results:
                continue
            source, result = self._same[op.operands[0]], self._same[op.results[0]]
            if source in self._roots or source == result or not self._are_alike(source, result):
                continue
            if not self._may_overwrite(number, source, takers.get(source, ()), made_in.get(source)):
                continue
            takers.setdefault(source, []).extend(takers.get(result, ()))
            self._same = [source if each == result else each for each in self._same]
            self.kept = {self._same[each] for each in self.kept}

    def _makers(self) -> Iterator[int]:
        """Yields the ops that make something in memory."""
        yield from (at for at in range(len(self.ops)) if not self.is_view[at] and not self.is_fused[at])

    def _may_overwrite(self, number: int, source: int, takers: Sequence[int], made_in: int | None) -> bool:
        """Returns whether nobody needs a tensor after an op, which runs once for each time that the tensor is made.

        Users of a loop's result, outside of it, take what the loop carries.
        """
        own = self._region_of[number]
        if source in {self._same[each] for each in self._regions[own].carries}:
            inside = self._inside[own]
            return all(taker <= number or self._region_of[taker] not in inside for taker in takers)
        return made_in == own and source not in self.kept and all(taker <= number for taker in takers)

    def _number(self, region: Region) -> set[int]:
        """Numbers a region and those inside; returns these numbers."""
        own = len(self._regions)
        self._regions.append(region)
        inside = {own}
        for item in region.items:
            if isinstance(item, Region):
                inside |= self._number(item)
            else:
                self._region_of[item] = own
        self._inside[own] = inside
        return inside

    def _made_by(self, op: FactoredOp) -> set[int]:
        return {self._same[each] for each in op.results}

    def _takers(self) -> dict[int, set[int]]:
        """Returns for each op that may be a part of others those others; they all are in its region."""
        found: dict[int, set[int]] = {}
        for number in reversed(range(len(self.ops))):
            op = self.ops[number]
            if self.is_view[number] or self._is_whole(op) or op.name in _MAKE:
                continue
            made = self._made_by(op)
            users = {user for tensor in made for user in self._users.get(tensor, ())}
            takers = {taker for user in users for taker in self._only(found.get(user), user)}
            is_in_region = all(self._region_of[taker] == self._region_of[number] for taker in takers)
            if is_in_region and not made & self.held and not any(self._is_whole(self.ops[user]) for user in users):
                found[number] = takers
        return found

    @staticmethod
    def _only(takers: set[int] | None, op: int) -> set[int]:
        """Returns the one op that an op is a part of, or the op itself, of which there may be several copies."""
        return takers if takers is not None and len(takers) == 1 else {op}

    def _is_whole(self, op: FactoredOp) -> bool:
        return bool(op.flops) or op.name in _WHOLE

    def _fused(self, takers: dict[int, set[int]]) -> list[bool]:
        """Returns which ops make nothing in memory: with one taker, or cheap to make from what is in memory anyway."""
        is_fused = [False] * len(self.ops)
        region_of: dict[int, int] = {}  # tensor -> region in which it is made
        for number, op in enumerate(self.ops):
            if self.is_view[number]:
                continue
            roots = self._roots_of(op)
            made = self._made_by(op)
            own = self._region_of[number]
            region_of.update(dict.fromkeys(made, own))
            if number not in takers or len(roots) > _MOST_ROOTS:
                continue
            kept = sum(
                self.tensors[each].bytes for each in roots if region_of.get(each) == own and each not in self.kept
            )
            if len(takers[number]) == 1 or kept <= _ALIKE * sum(self.tensors[each].bytes for each in made):
                is_fused[number] = True
                self._roots.update(dict.fromkeys(made, roots))
        return is_fused

    def _roots_of(self, op: FactoredOp) -> frozenset[int]:
        """Returns the tensors in memory that the operands of an op are, or are made of."""
        taken = (self._same[each] for each in op.operands)
        return frozenset(root for each in taken for root in self._roots.get(each, (each,)))

    # ---- order

    def _step(self, number: int) -> Step:
        op = self.ops[number]
        return Step(frozenset(self._same[each] for each in self._roots_of(op)), frozenset(self._made_by(op)))

    def _ordered(self, region: Region, touched: Counter[int]) -> _Ordered:
        """Returns the parts of a region in the order in which they run; the steps that touch each value are counted."""
        parts: list[tuple[int, Step] | _Ordered] = []
        counts: Counter[int] = Counter()
        for item in region.items:
            if isinstance(item, Region):
                inner = self._ordered(item, touched)
                parts.append(inner)
                counts.update(inner.counts)
            elif not self.is_view[item] and not self.is_fused[item]:
                step = self._step(item)
                parts.append((item, step))
                counts.update(step.takes | step.makes)
        steps = [part.step if isinstance(part, _Ordered) else part[1] for part in parts]
        carries = frozenset(self._same[each] for each in region.carries)
        kept = self.kept | carries | {value for value, count in counts.items() if count != touched[value]}
        sizes = {value: self.tensors[value].bytes for step in steps for value in step.takes | step.makes}
        if region is not self.body:
            sizes |= dict.fromkeys(kept & sizes.keys(), 0)  # alive around the region
        order = order_of(steps, sizes, kept)
        takes = frozenset(kept.intersection(value for step in steps for value in step.takes))
        makes = frozenset(kept.intersection(value for step in steps for value in step.makes))
        step = Step(takes, makes | carries, peak_of(order, steps, sizes, kept))
        return _Ordered([parts[number] for number in order], region.is_loop, carries, counts, step)

    # ---- intervals

    def schedule(self) -> Schedule:
        touched: Counter[int] = Counter()
        for number in self._makers():
            step = self._step(number)
            touched.update(step.takes | step.makes)
        first = {self._same[each]: 0 for each in self.arguments}
        last = dict(first)
        end = self._run(self._ordered(self.body, touched), 0, first, last) + 1
        for tensor in self.kept:
            first.setdefault(tensor, 0)
            last[tensor] = end
        lives = tuple(Interval(each, first[each], max(first[each], last[each])) for each in sorted(first))
        moments = tuple(self._moments.get(number) for number in range(len(self.ops)))
        return Schedule(lives, moments, tuple(self._loops))

    def _run(self, region: _Ordered, moment: int, first: dict[int, int], last: dict[int, int]) -> int:
        entered = moment
        for tensor in region.carries:
            first.setdefault(tensor, entered)
            last[tensor] = max(last.get(tensor, 0), entered + 1)
        for part in region.parts:
            if isinstance(part, _Ordered):
                moment = self._run(part, moment, first, last)
                continue
            number, step = part
            moment += 1
            self._moments[number] = moment
            reuses = not self._is_whole(self.ops[number])  # writes where an operand was, if nobody needs that later
            for tensor in step.takes:
                first.setdefault(tensor, moment)
                last[tensor] = max(last.get(tensor, 0), moment - reuses)
            for tensor in step.makes:
                first.setdefault(tensor, moment)
                last[tensor] = max(last.get(tensor, 0), moment)
        if region.is_loop:
            moment += 1
            for tensor, at in last.items():
                if first[tensor] <= entered < at:  # alive until the last iteration ends
                    last[tensor] = moment
            self._loops.append((entered + 1, moment))
        return moment


@dataclass(frozen=True)
class _Ordered:
    """The parts of a region in the order in which they run.

    Attributes:
      parts: an op with its step, or a region inside. carries: as of `Region`.
      counts: how many steps inside take or make a value. step: the region as one step.
    """

    parts: list[tuple[int, Step] | _Ordered]
    is_loop: bool
    carries: frozenset[int]
    counts: Counter[int]
    step: Step
