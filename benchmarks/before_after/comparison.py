# SPDX-License-Identifier: Apache-2.0
"""The costs of plans before and after a change: which plans are worse, whether that is allowed, and the tables."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.before_after.problems import Call

OK, REFUSED, ERROR = STATUSES = ("ok", "refused", "error")  # from the best to the worst
COSTS = {"bytes": "bytes", "time": "time_s"}  # the cost for each objective
SAME = 1e-9  # relative, for times: sums of the same terms may differ in their last digits
MOST_WORSE_TIME = 0.01
MOST_WORSE_ROWS = 0.001
NAMES = ("suite", "objective", "preset", "limit")
COUNTS = ("problems", "refused", "equal", "better", "worse", "worse by more than 1 %")
RATIOS = ("after ÷ before: largest", "geomean")
SECONDS = ("planning: before, s", "after, s", "after ÷ before, median")
HEADINGS = NAMES + COUNTS + RATIOS + SECONDS
# Fields of an answer that may change at equal cost, each with words for a higher value and for a lower one.
ASIDE = {
    "collectives": ("more collectives", "fewer collectives"),
    "peak_bytes": ("higher peak", "lower peak"),
    "is_optimal": ("newly proved optimal", "no longer proved optimal"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A call, and the answers of the two checkouts to it."""

    call: Call
    before: dict
    after: dict

    @property
    def ratio(self) -> float:
        """Returns cost after ÷ cost before; infinity if only the plan after is missing, 0 if only the plan before is.

        If both refuse a memory limit, it is the ratio of the least limits that they would accept.
        """
        ranks = [STATUSES.index(each["status"]) for each in (self.before, self.after)]
        if ranks[0] != ranks[1]:
            return math.inf if ranks[1] > ranks[0] else 0.0
        if self.after["status"] == ERROR:
            return 1.0
        cost = "least_limit" if self.after["status"] == REFUSED else COSTS[self.call.objective]
        return _ratio(self.before[cost], self.after[cost])

    @property
    def is_planned(self) -> bool:
        return self.before["status"] == self.after["status"] == OK

    @property
    def is_worse(self) -> bool:
        return self.ratio > 1 + self._tolerance

    @property
    def is_better(self) -> bool:
        return self.ratio < 1 - self._tolerance

    @property
    def is_clearly_worse(self) -> bool:
        """Returns whether the cost is more than 1 % higher."""
        return self.ratio > 1 + MOST_WORSE_TIME

    @property
    def _tolerance(self) -> float:
        return SAME if self.call.objective == "time" else 0.0


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns the failures as text; empty if no plan is worse by more than is allowed."""
    by_bytes = sum(row.is_worse for row in rows if row.call.objective == "bytes")
    by_time = sum(row.is_clearly_worse for row in rows if row.call.objective == "time")
    worse = sum(row.is_worse for row in rows)
    found = []
    if by_bytes:
        found.append(f"by bytes {by_bytes:,} plans are worse; none may be")
    if by_time:
        found.append(f"by time {by_time:,} plans are worse by more than {MOST_WORSE_TIME:.0%}; none may be")
    if worse > MOST_WORSE_ROWS * len(rows):
        found.append(f"{worse:,} of {len(rows):,} plans are worse; at most {MOST_WORSE_ROWS:.1%} may be")
    if errors := [row.after["message"] for row in rows if row.after["status"] == ERROR]:
        found.append(f"{len(errors):,} calls end in an error; the first one: {errors[0]}")
    return found


def as_markdown(rows: Sequence[Row], show: int) -> str:
    """Returns the tables, the worse plans with their command lines (the worst first), and the verdict."""
    worse = worst_first(rows)
    parts = [_table(HEADINGS, map(_cells, groups(rows))), _beside(rows), f"Worse: {len(worse):,} of {len(rows):,}"]
    parts += [_worse_text(row) for row in worse[:show]]
    if len(worse) > show:
        parts.append(f"and {len(worse) - show:,} more; --json writes all of them")
    return "\n\n".join([*parts, *(failures(rows) or ["No plan is worse by more than is allowed."])])


def as_json(rows: Sequence[Row]) -> dict:
    """Returns the table, the rows that are worse, and the failures, as plain data."""
    worse = []
    for row in worst_first(rows):
        found = {"key": row.call.key, "ratio": _finite(row.ratio), "before": row.before, "after": row.after}
        worse.append({**found, "command": row.call.command()})
    return {"table": list(groups(rows)), "worse": worse, "failures": failures(rows)}


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that are worse, the worst first."""
    return sorted((row for row in rows if row.is_worse), key=lambda row: (-row.ratio, row.call.key))


def groups(rows: Sequence[Row]) -> Iterator[dict]:
    """Yields the lines of the table: one for each suite, objective, preset and limit, then all suites together."""
    ordered = sorted(rows, key=lambda row: (row.call.problem.suite, row.call.objective, row.call.preset))
    yield from _grouped(ordered, lambda row: (row.call.problem.suite, row.call.objective, row.call.preset, _limit(row)))
    yield from _grouped(rows, lambda row: ("all", row.call.objective, "all", _limit(row)))


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple]) -> Iterator[dict]:
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    for names, some in found.items():
        yield dict(zip(HEADINGS, (*names, *_figures(some)), strict=True))


def _limit(row: Row) -> str:
    return "without" if row.call.memory_limit is None else "with"


def _figures(rows: Sequence[Row]) -> Iterator[float | None]:
    """Yields the figures of a line, from "problems" on; None for a figure that is missing or infinite."""
    yield len(rows)
    yield sum(row.after["status"] == REFUSED for row in rows)
    worse, better = sum(row.is_worse for row in rows), sum(row.is_better for row in rows)
    yield from (len(rows) - worse - better, better, worse)
    yield sum(row.is_clearly_worse for row in rows)
    yield _finite(max(row.ratio for row in rows))
    yield _geomean([row.ratio for row in rows if row.is_planned])
    before, after = [row.before["seconds"] for row in rows], [row.after["seconds"] for row in rows]
    yield from (sum(before), sum(after))
    yield statistics.median(map(_ratio, before, after))


def _cells(line: dict) -> list[str]:
    names, counts, ratios, seconds = ([line[heading] for heading in some] for some in (NAMES, COUNTS, RATIOS, SECONDS))
    words = [*names, *(f"{each:,}" for each in counts)]
    words += ["no plan" if ratios[0] is None else f"{ratios[0]:.6g}", "–" if ratios[1] is None else f"{ratios[1]:.6f}"]
    return [*words, *(f"{each:.2f}" for each in seconds)]


def _beside(rows: Sequence[Row]) -> str:
    """Returns the table of other changes in plans of equal cost; they are no failures."""
    same = [row for row in rows if row.is_planned and not row.is_worse and not row.is_better]
    lines = []
    for objective in COSTS:
        some = [row for row in same if row.call.objective == objective]
        counts = [len(some), sum(row.before["chain"] != row.after["chain"] for row in some)]
        for field in ASIDE:
            counts.append(sum(row.after[field] > row.before[field] for row in some))
            counts.append(sum(row.after[field] < row.before[field] for row in some))
        lines.append([f"by {objective}", *(f"{each:,}" for each in counts)])
    headings = ("plans of equal cost", "number", "another chain", *itertools.chain(*ASIDE.values()))
    return _table(headings, lines)


def _worse_text(row: Row) -> str:
    mark = "more than 1 %: " if row.is_clearly_worse else ""
    words = f"{row.ratio:.9g} times" if math.isfinite(row.ratio) else "no plan any more"
    ends = (each.get("chain") or each["message"] for each in (row.before, row.after))
    return f"    # {mark}{words}; {' => '.join(ends)}\n    {row.call.command()}"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    text = [f"| {' | '.join(cells)} |" for cells in (headings, *lines)]
    return "\n".join([text[0], "|" + "---|" * len(headings), *text[1:]])


def _ratio(before: float | None, after: float | None) -> float:
    """Returns after ÷ before; 1 if both are equal, or one of them is not known."""
    if before == after or before is None or after is None:
        return 1.0
    return after / before if before else math.inf


def _geomean(ratios: Sequence[float]) -> float | None:
    found = [each for each in ratios if 0 < each < math.inf]
    return statistics.geometric_mean(found) if found else None


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None
