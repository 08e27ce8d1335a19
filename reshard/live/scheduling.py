# SPDX-License-Identifier: Apache-2.0
"""The order and the batches in which the arrays of a tree move, so that a memory limit is kept. No jax here.

While a batch runs, a device holds the sources that are not freed yet, the targets of earlier batches, and the targets
and temporaries of this batch. A donated source is freed when its batch is done; any other source stays.

A job *needs* its target and its temporaries in addition to what is held. It *leaves* its target minus the source that
is freed. The peak is smallest in this order: first the jobs that leave nothing or less, by rising need; then the other
jobs, by falling difference of need and leaving. (In any other order there are two neighbours that can be exchanged
without a higher peak.) So if any order fits a limit, the order by the least needs fits it. In this order each job takes
the fastest way that fits.

    >>> jobs = [Job(0, 0, 0, 8, 4, (0,), (0,), (16,), frees=True), Job(1, 1, 0, 4, 8, (0,), (0,), (12,), frees=True)]
    >>> found = scheduled(jobs, {0: 12}, limit=20)
    >>> [[each.job for each in batch] for batch in found.batches], found.peak_bytes
    ([[0], [1]], 20)
    >>> scheduled(jobs, {0: 12}, limit=19)
    Traceback (most recent call last):
    reshard.live.scheduling.LimitError: needs at least 20 bytes per device, limit 19; raise the limit to 20
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST_BATCH_BYTES = (
    16 << 20
)  # of sources and targets of a batch of several jobs, per device; a launch costs less than these copies
MOST_BATCH_JOBS = 16  # the time to compile a program grows with them


class LimitError(ValueError):
    """Raised if no schedule fits a memory limit; the message is one line and names the least limit that is enough."""


@dataclass(frozen=True, slots=True)
class Job:
    """One array that moves.

    Attributes:
      number: the position in the order of the tree.
      kind: a number that equal problems have in common; they share a program.
      company: a number that jobs have in common if one program may run them together.
      source_bytes, target_bytes: the size of a tile before and after.
      sources, targets: the devices that have a tile before and after.
      peaks: the peak of each possible way in bytes, source and target included; the fastest way first.
      frees: whether the job frees its source when it is done.
    """

    number: int
    kind: int
    company: int
    source_bytes: int
    target_bytes: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    peaks: tuple[int, ...]
    frees: bool

    def need(self, way: int) -> int:
        return max(self.peaks[way] - self.source_bytes, 0)

    @property
    def least_need(self) -> int:
        return self.need(self.smallest_way)

    @property
    def smallest_way(self) -> int:
        return min(range(len(self.peaks)), key=self.peaks.__getitem__)

    @property
    def leaves(self) -> int:
        return self.target_bytes - (self.source_bytes if self.frees else 0)

    @property
    def rank(self) -> tuple:
        """Returns the key by which jobs are sorted; see the module's docstring."""
        if self.leaves <= 0:
            return 0, self.least_need, self.kind, self.number
        return 1, self.leaves - self.least_need, self.kind, self.number


@dataclass(frozen=True, slots=True)
class Going:
    """A job and the way that it takes, both by number."""

    job: int
    way: int


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of jobs that run at once, one batch after the other, and the most bytes that a device ever holds."""

    batches: tuple[tuple[Going, ...], ...]
    peak_bytes: int


def scheduled(jobs: Sequence[Job], held: Mapping[int, int], limit: int | None = None) -> Batches:
    """Returns the batches of the jobs, in an order that keeps the limit.

    Args:
      held: the bytes that each device holds before, sources included. limit: in bytes per device.
    Raises: LimitError with the least limit that would do.
    """
    ordered = sorted(jobs, key=lambda job: job.rank)
    device = _Devices(held)
    batches: list[tuple[Going, ...]] = []
    waiting = list(_groups(ordered))[::-1]
    while waiting:
        group = waiting.pop()
        going = device.going(group, limit)
        if going is None and len(group) > 1:
            waiting += [(job,) for job in reversed(group)]
            continue
        if going is None:
            least = _least_limit(ordered, held)
            raise LimitError(f"needs at least {least:,} bytes per device, limit {limit:,}; raise the limit to {least}")
        batches.append(going)
    return Batches(tuple(batches), device.peak_bytes)


def _least_limit(ordered: Sequence[Job], held: Mapping[int, int]) -> int:
    device = _Devices(held)
    for job in ordered:
        device.run((job,), (job.smallest_way,))
    return device.peak_bytes


class _Devices:
    """The bytes that devices hold between two batches, and the most that they ever held."""

    def __init__(self, held: Mapping[int, int]):
        self.held = dict(held)
        self.peak_bytes = max(self.held.values(), default=0)

    def going(self, group: Sequence[Job], limit: int | None) -> tuple[Going, ...] | None:
        """Runs a group in the fastest ways that fit and returns them; None if no ways fit, and then nothing has run."""
        for ways in self._ways(group):
            if limit is None or self._most(group, ways) <= limit:
                self.run(group, ways)
                return tuple(Going(job.number, way) for job, way in zip(group, ways))
        return None

    @staticmethod
    def _ways(group: Sequence[Job]) -> Iterator[tuple[int, ...]]:
        """Yields the ways of a group: the fastest way of each job; then, for a single job, its other ways."""
        yield (0,) * len(group)
        if len(group) == 1:
            yield from ((way,) for way in range(1, len(group[0].peaks)))

    def run(self, group: Sequence[Job], ways: Sequence[int]) -> None:
        self.peak_bytes = max(self.peak_bytes, self._most(group, ways))
        for job in group:
            for device in job.targets:
                self.held[device] = self.held.get(device, 0) + job.target_bytes
            for device in job.sources if job.frees else ():
                self.held[device] -= job.source_bytes

    def _most(self, group: Sequence[Job], ways: Sequence[int]) -> int:
        """Returns the most that a device holds while the group runs."""
        held = dict(self.held)
        for job, way in zip(group, ways):
            for device in dict.fromkeys((*job.sources, *job.targets)):
                # a device without a source takes part with a tile of zeros
                held[device] = held.get(device, 0) + (job.need(way) if device in job.sources else job.peaks[way])
        return max(held.values(), default=0)


def _groups(ordered: Sequence[Job]) -> Iterator[tuple[Job, ...]]:
    """Yields the jobs in order, in groups that run at once.

    Equal jobs are in groups of one size if possible, so that there are few programs. Small jobs share groups.
    """
    small: list[Job] = []
    for _, alike in itertools.groupby(ordered, key=lambda job: (job.kind, job.frees)):
        jobs = list(alike)
        size = _group_size(jobs)
        whole = len(jobs) // size * size if size > 1 else 0
        if whole:
            yield from _flushed(small)
            yield from (tuple(jobs[i : i + size]) for i in range(0, whole, size))
        for job in jobs[whole:]:
            if small and not _fit_together([*small, job]):
                yield from _flushed(small)
            small.append(job)
    yield from _flushed(small)


def _flushed(small: list[Job]) -> Iterator[tuple[Job, ...]]:
    if small:
        yield tuple(small)
        small.clear()


def _group_size(alike: Sequence[Job]) -> int:
    """Returns the number of equal jobs that run at once.

    It is the largest divisor of the number of jobs in the upper half of the allowed sizes, else the largest size.
    """
    most = min(MOST_BATCH_JOBS, len(alike), max(1, MOST_BATCH_BYTES // max(1, _bytes(alike[0]))))
    return next((size for size in range(most, most // 2, -1) if len(alike) % size == 0), most)


def _fit_together(jobs: Sequence[Job]) -> bool:
    is_one_company = len({job.company for job in jobs}) == 1
    return is_one_company and len(jobs) <= MOST_BATCH_JOBS and sum(map(_bytes, jobs)) <= MOST_BATCH_BYTES


def _bytes(job: Job) -> int:
    return job.source_bytes + job.target_bytes
