# SPDX-License-Identifier: Apache-2.0
"""The modelled time of a scheduled program whose collectives start and end apart: its schedule, run step by step.

A device runs the steps in their order. Work takes its time. A collective travels from its start on, beside what the
device does, and at its end the device waits for what is left of it.

- R1 Shared links: a collective that starts while others are under way is later by as much as its busiest link takes for
  all of them (`link_sharing`). Gathers along two dimensions of a torus share none. What is shorter than the rest of
  another one does not wait for all of that: both travel at once, the other one is later by the shorter one's time, as
  far as the two share links.
- R2 Driven: a collective that a compiler runs in pieces, inside of fusions with other work, moves on beside the work of
  these fusions alone; of several in one fusion, one after the other. Others that share its links are later by as much.
- R3 Loops: a loop takes as long as one turn, times its turns. What is under way beside a loop does not move on.

So the time is that of all work, and of all collectives, less what runs beside something else: at least that of the
work, and at most that of both one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ..programs.traffic import Collective
from . import cost
from .link_sharing import shared_links, wait_s
from .program_time import LocalWork, ProgramTime, roofline_s
from .topology import Topology


@dataclass(frozen=True, slots=True)
class Work:
    """Local work, an op or a fusion.

    Attributes:
      row: with the runs in one turn of the loop around it.
      generated_s: the seconds of one run by the compiler's code generator; 0 if it has no price.
    """

    row: LocalWork
    generated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a collective, which is known by a number until its end. `collective` is one run of it."""

    number: int
    collective: Collective
    is_driven: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a collective."""

    number: int


@dataclass(frozen=True, slots=True)
class Driving:
    """Work inside of which collectives move on; see R2."""

    numbers: tuple[int, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that run several times, one turn after the other."""

    turns: int
    steps: tuple[Step, ...]


Step = Work | Start | Done | Driving | Loop
Schedule = tuple[Step, ...]


def scheduled_time(
    topology: Topology,
    num_devices: int,
    collectives: Iterable[Collective],
    schedule: Schedule,
    *,
    as_generated: bool = False,
) -> ProgramTime:
    """Returns the modelled time of a scheduled program on a topology, which is fitted to the number of devices.

    Args:
      collectives: those of the program, loops counted.
      as_generated: whether work takes as long as the code generator says, where it says so.
    Raises: TopologyError if the topology does not fit.

    Example: a hop of 12 us, beside a product of 4 us; then two hops at once around a ring, one each way.
      >>> topology = Topology.parse("v5e:1x16")
      >>> around = tuple((at, (at + 1) % 16) for at in range(16))
      >>> there, back = (Collective("collective_permute", 450_000, 450_000, pairs=pairs)
      ...     for pairs in (around, tuple((other, one) for one, other in around)))
      >>> steps = Start(0, there), Work(LocalWork(788_000_000, 0)), Done(0), Start(1, there), Start(2, back), Done(1)
      >>> time = scheduled_time(topology, 16, [there, there, back], (*steps, Done(2)))
      >>> [round(each * 1e6, 1) for each in (time.local_s, time.collectives_s, time.hidden_s)]
      [4.0, 20.0, 16.0]
    """

    def seconds_of(work: Work) -> float:
        generated_s = work.row.runs * work.generated_s if as_generated else 0.0
        return generated_s or roofline_s(topology, work.row)

    moved_s = sum(cost.collective_time_s(topology, num_devices, each) for each in collectives)
    waited_s, worked_s = _Run(topology, num_devices, seconds_of).through(schedule)
    return ProgramTime(waited_s, worked_s, moved_s - waited_s)


def runs_of(schedule: Schedule, turns: int = 1) -> Iterator[tuple[Start | Work, int]]:
    """Yields the collectives and the work of a schedule, each with how often it runs."""
    for step in schedule:
        if isinstance(step, Loop):
            yield from runs_of(step.steps, turns * step.turns)
        elif isinstance(step, Driving):
            yield step.work, turns
        elif not isinstance(step, Done):
            yield step, turns


def as_plain(schedule: Schedule) -> list:
    """Returns a schedule as lists of numbers and texts, from which `from_plain` makes it again: its collectives, each
    once, and its steps."""
    places: dict[Collective, int] = {}

    def plain(step: Step) -> list:
        match step:
            case Work():
                return ["work", *astuple(step.row), step.generated_s]
            case Start():
                place = places.setdefault(step.collective, len(places))
                return ["start", step.number, place, step.is_driven]
            case Done():
                return ["done", step.number]
            case Driving():
                return ["driving", list(step.numbers), plain(step.work)]
        return ["loop", step.turns, [plain(each) for each in step.steps]]

    steps = [plain(each) for each in schedule]
    return [[astuple(each) for each in places], steps] if steps else []


def from_plain(plain: Sequence) -> Schedule:
    """Returns the schedule that `as_plain` has written, with tuples in the place of lists.

    Example:
      >>> around = Collective("collective_permute", 8, 8, pairs=((0, 1), (1, 0)))
      >>> work = Work(LocalWork(2, 4), 1e-6)
      >>> steps = Start(0, around), Loop(3, (work,)), Driving((0,), work), Done(0)
      >>> from_plain(as_plain(steps)) == steps, from_plain(as_plain(()))
      (True, ())
    """
    if not plain:
        return ()
    collectives = [Collective(*each) for each in plain[0]]

    def work(row: Sequence) -> Work:
        *of_row, generated_s = row
        return Work(LocalWork(*of_row), generated_s)

    def step(kind: str, *facts: Any) -> Step:
        match kind:
            case "work":
                return work(facts)
            case "start":
                number, place, is_driven = facts
                return Start(number, collectives[place], is_driven)
            case "done":
                return Done(*facts)
            case "driving":
                numbers, (_, *row) = facts
                return Driving(tuple(numbers), work(row))
        turns, steps = facts
        return Loop(turns, tuple(step(*each) for each in steps))

    return tuple(step(*each) for each in plain[1])


@dataclass(slots=True)
class _Travel:
    """A collective under way, its time alone, and when it ends; one that is driven has `left_s` to go instead."""

    collective: Collective
    seconds: float
    end_s: float = 0.0
    left_s: float | None = None


@dataclass(slots=True)
class _Turn:
    """One run of a list of steps. Attributes: the time, the time of the work so far, and what is under way."""

    now_s: float = 0.0
    worked_s: float = 0.0
    travels: dict[int, _Travel] = field(default_factory=dict)

    def work(self, seconds: float) -> None:
        self.now_s, self.worked_s = self.now_s + seconds, self.worked_s + seconds

    def pause(self, seconds: float) -> None:
        """Lets time pass in which nothing moves on that is under way. R3"""
        self.now_s += seconds
        for each in self.travels.values():
            each.end_s += seconds

    def wait_for(self, travel: _Travel) -> None:
        if travel.left_s is None:
            self.now_s = max(self.now_s, travel.end_s)
        else:
            self.pause(travel.left_s)


class _Run:
    def __init__(self, topology: Topology, num_devices: int, seconds_of: Callable[[Work], float]):
        self._topology, self._num_devices, self._seconds_of = topology, num_devices, seconds_of
        self._seconds: dict[Collective, float] = {}
        self._shared: dict[tuple[Collective, Collective], float] = {}

    def through(self, steps: Sequence[Step]) -> tuple[float, float]:
        """Returns the seconds of waiting and of work in one run of some steps."""
        turn = _Turn()
        for step in steps:
            self._take(turn, step)
        for travel in turn.travels.values():
            turn.wait_for(travel)
        return turn.now_s - turn.worked_s, turn.worked_s

    def _take(self, turn: _Turn, step: Step) -> None:
        match step:
            case Work():
                turn.work(self._seconds_of(step))
            case Start():
                if before := turn.travels.pop(step.number, None):
                    turn.wait_for(before)  # nobody else will
                turn.travels[step.number] = self._started(turn, step)
            case Done():
                if travel := turn.travels.pop(step.number, None):
                    turn.wait_for(travel)
            case Driving():
                seconds = self._seconds_of(step.work)
                turn.work(seconds)
                self._drive(turn, step.numbers, seconds)
            case Loop():
                waited_s, worked_s = self.through(step.steps)
                turn.pause(step.turns * (waited_s + worked_s))
                turn.worked_s += step.turns * worked_s

    def _drive(self, turn: _Turn, numbers: Sequence[int], seconds: float) -> None:
        """Moves collectives on, one after the other. R2"""
        others = [each for each in turn.travels.values() if each.left_s is None and each.end_s > turn.now_s - seconds]
        for travel in (turn.travels[number] for number in numbers if number in turn.travels):
            moved_s = min(seconds, travel.left_s or 0.0)
            travel.left_s, seconds = (travel.left_s or 0.0) - moved_s, seconds - moved_s
            for other in others:
                other.end_s += moved_s * self._share(travel.collective, other.collective)

    def _started(self, turn: _Turn, step: Start) -> _Travel:
        collective = step.collective
        if collective not in self._seconds:
            self._seconds[collective] = cost.collective_time_s(self._topology, self._num_devices, collective)
        seconds = self._seconds[collective]
        if step.is_driven:
            return _Travel(collective, seconds, left_s=seconds)
        under_way = [each for each in turn.travels.values() if each.left_s is None and each.end_s > turn.now_s]
        left_s = [min(each.end_s - turn.now_s, each.seconds) for each in under_way]  # without what it waits for itself
        others = [(each.collective, left) for each, left in zip(under_way, left_s)]
        waited_s = wait_s(self._topology, self._num_devices, collective, seconds, others)
        for each, left in zip(under_way, left_s):
            if seconds < left:
                each.end_s += seconds * self._share(each.collective, collective)
        return _Travel(collective, seconds, turn.now_s + waited_s + seconds)

    def _share(self, one: Collective, other: Collective) -> float:
        if (one, other) not in self._shared:
            self._shared[one, other] = shared_links(self._topology, self._num_devices, one, other)
        return self._shared[one, other]
