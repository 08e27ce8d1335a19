# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown over what `redistributions.py` has answered, and the cases in which we are not good enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
import itertools
import math

from benchmarks.answers import PEERS, Ours, as_answer
from benchmarks.cases import Case
from benchmarks.journal import Journal
from reshard.dialect_utils.peers import Answer
from reshard.synthesis.topology import Topology

SAME = 1 + 1e-9  # sums of the same times in another order
NAMES = {"xla": "XLA", "shardy": "Shardy"}
PLANNING = "planning, ms of CPU: median, max"
BYTES, TIME = "received bytes", "modelled time of collectives"


@dataclass(frozen=True, slots=True)
class Theirs:
    """A peer's answer, priced.

    Attributes:
      cost: in bytes or seconds, None unless the status is "ok".
      is_beyond_ends: a collective has an operand or result above source and target tile; rule R2 forbids that to us.
    """

    status: str
    cost: float | None
    collectives: int
    rounds: int
    is_beyond_ends: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A case by one objective: bytes where the topology is None, else time on it; `theirs` by the peer's name."""

    case: Case
    topology: str | None
    ours: Ours
    theirs: dict[str, Theirs]

    @property
    def cost(self) -> float:
        return self.ours.collectives_time_s if self.topology else self.ours.bytes_received

    def over(self, peer: str) -> float | None:
        """Returns our cost ÷ the peer's; None if one of us has no answer."""
        theirs = self.theirs[peer].cost
        return None if theirs is None or not self.ours.is_ok else ratio(self.cost, theirs)

    @property
    def has_more_rounds_for_nothing(self) -> bool:
        over = self.over("shardy")
        return over is not None and self.ours.rounds > self.theirs["shardy"].rounds and over * SAME >= 1


def ratio(mine: float, other: float) -> float:
    """Returns mine ÷ other; 1 where both are zero."""
    if mine == other:
        return 1.0
    return mine / other if other else math.inf


def rows_of(cases: Iterable[Case], plans: Journal, answers: Journal, question: Callable[..., str]) -> Iterator[Row]:
    """Yields a row for each objective of each case that we and all the peers have answered."""
    for case in cases:
        entries = {name: answers.get(question(case, name)) for name in PEERS}
        planned = {on: plans.get(question(case, on or "bytes")) for on in (None, *case.topologies)}
        if None in entries.values() or not any(planned.values()):
            continue
        priced = {name: as_answer(name, case.pair.mesh.size, entry) for name, entry in entries.items()}
        for topology, plan in planned.items():
            if plan is not None:
                theirs = {name: _theirs(case, answer, topology) for name, answer in priced.items()}
                yield Row(case, topology, Ours(**plan), theirs)


def _theirs(case: Case, answer: Answer, topology: str | None) -> Theirs:
    cost = answer.collectives_time_s(Topology.parse(topology)) if topology else answer.bytes_received
    largest = max((each.largest_tile_bytes for each in answer.collectives), default=0)
    return Theirs(answer.status, cost, len(answer.collectives), answer.collective_runs, largest > case.largest_tile_bytes)


# ---- what has to be zero


@dataclass(frozen=True, slots=True)
class Failing:
    """Cases that break a promise, the worst first, each with how much: ours ÷ theirs where there is a peer."""

    title: str
    rows: tuple[tuple[float, Row], ...]
    peer: str | None = None

    @property
    def beyond_ends(self) -> int:
        """Returns in how many of them the peer has a tile that we may not have."""
        return sum(row.theirs[self.peer].is_beyond_ends for _, row in self.rows) if self.peer else 0


def failings(rows: Sequence[Row]) -> list[Failing]:
    """Returns every promise with the rows that break it, none for most."""
    found = [_failing("refusals and crashes", ((math.inf, row) for row in rows if not row.ours.is_ok))]
    by_bytes, by_time = _by_objective(rows)
    needless = (row for row in by_bytes if row.ours.is_ok and row.ours.bytes_received > row.ours.bound_bytes == 0)
    found.append(_failing("bytes received though none are needed", ((math.inf, row) for row in needless)))
    for what, some in ((BYTES, by_bytes), (TIME, by_time)):
        for peer in PEERS:
            above = ((over, row) for row in some if (over := row.over(peer)) is not None and over > SAME)
            found.append(_failing(f"{what}: above {NAMES[peer]}", above, peer))
    more = ((row.over("shardy"), row) for row in by_time if row.has_more_rounds_for_nothing)
    return [*found, _failing("more rounds than Shardy, and no less time", more, "shardy")]


def _by_objective(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if not row.topology], [row for row in rows if row.topology]


def _failing(title: str, rows: Iterable[tuple[float, Row]], peer: str | None = None) -> Failing:
    return Failing(title, tuple(sorted(rows, key=lambda item: (-item[0], str(item[1].case), item[1].topology or ""))), peer)


# ---- text


def as_markdown(rows: Sequence[Row], show: int) -> str:
    """Returns the tables and, for each promise, the number of cases that break it with the command lines of the worst."""
    (by_bytes, by_time), parts = _by_objective(rows), []
    if by_bytes:
        parts += ["### Objective bytes: received bytes ÷ the bound", _bytes_table(by_bytes)]
    if by_time:
        parts += ["### Objective time: modelled time of the peer's collectives ÷ ours", *_time_tables(by_time)]
        parts += ["### Where we gain most over the better of the peers", *_wins(by_time, show)]
    parts += ["### Must be 0", *(_failing_text(each, show) for each in failings(rows))]
    return "\n\n".join(parts)


def _bytes_table(rows: list[Row]) -> str:
    headings = ["", "pairs", "ours: geomean, max", "at the bound", "proved optimal"]
    for peer in PEERS:
        headings += [f"{NAMES[peer]}: geomean, max", f"{NAMES[peer]} not ok", f"ours above {NAMES[peer]}"]
    headings.append(PLANNING)
    return _table(headings, [[title, *_bytes_cells(some)] for title, some in _grouped(rows, lambda row: row.case.group)])


def _bytes_cells(rows: list[Row]) -> Iterator[str]:
    planned = [row for row in rows if row.ours.is_ok]
    moved = [row for row in planned if row.ours.bound_bytes]
    yield str(len(rows))
    yield _geomean_and_max([row.cost / row.ours.bound_bytes for row in moved])
    yield _share([row.ours.bytes_received == row.ours.bound_bytes for row in planned])
    yield _share([row.ours.is_optimal for row in planned])
    for peer in PEERS:
        answered = [row for row in moved if row.theirs[peer].cost is not None]
        yield _geomean_and_max([row.theirs[peer].cost / row.ours.bound_bytes for row in answered])
        yield _statuses(row.theirs[peer].status for row in rows)
        yield str(sum((row.over(peer) or 0) > SAME for row in rows))
    yield _planning(planned)


def _time_tables(rows: list[Row]) -> Iterator[str]:
    """Yields a table by topology and one by group, unless each group has a topology of its own."""
    if len({row.case.group for row in rows}) > 1 and len({row.topology for row in rows}) > 1:
        yield _time_table(rows, lambda row: row.topology)
    yield _time_table(rows, lambda row: row.case.group)


def _time_table(rows: list[Row], key: Callable[[Row], str]) -> str:
    headings = ["", "pairs"]
    for peer in PEERS:
        headings += [f"{NAMES[peer]} ÷ ours: geomean, min, max", f"ours above {NAMES[peer]}"]
    headings += ["ours ÷ bound, copies included: geomean", "copies, share of our time", "collectives: ours, XLA, Shardy"]
    headings += ["rounds: ours, XLA, Shardy", "more rounds than Shardy", "and no less time", PLANNING]
    return _table(headings, [[title, *_time_cells(some)] for title, some in _grouped(rows, key)])


def _time_cells(rows: list[Row]) -> Iterator[str]:
    planned = [row for row in rows if row.ours.is_ok]
    yield str(len(rows))
    for peer in PEERS:
        over = [found for row in planned if (found := row.over(peer)) is not None]
        inverse = [1 / each if each else math.inf for each in over]
        yield f"{_geomean(inverse)}, {min(inverse, default=math.nan):.2f}, {max(inverse, default=math.nan):.2f}"
        yield str(sum(each > SAME for each in over))
    yield _geomean([row.ours.time_s / row.ours.bound_time_s for row in planned if row.ours.bound_time_s])
    all_s = sum(row.ours.time_s for row in planned)
    yield f"{1 - sum(row.ours.collectives_time_s for row in planned) / all_s:.1%}" if all_s else "–"
    yield _means([(row.ours, *(row.theirs[peer] for peer in PEERS)) for row in planned], "collectives")
    yield _means([(row.ours, *(row.theirs[peer] for peer in PEERS)) for row in planned], "rounds")
    yield str(sum(row.over("shardy") is not None and row.ours.rounds > row.theirs["shardy"].rounds for row in planned))
    yield str(sum(row.has_more_rounds_for_nothing for row in planned))
    yield _planning(planned)


def _wins(rows: list[Row], show: int) -> Iterator[str]:
    """Yields, for each topology, the command lines of the largest gains, one for each way of doing it."""
    for topology, some in itertools.groupby(sorted(rows, key=lambda row: row.topology), lambda row: row.topology):
        best: dict[tuple, tuple[float, Row]] = {}
        for row in some:
            overs = [over for peer in PEERS if (over := row.over(peer))]
            if len(overs) == len(PEERS) and max(overs) * SAME < 1:
                chain = tuple(part.split()[0] for part in row.ours.chain.split("; "))
                best[chain] = max(best.get(chain, (0, row)), (1 / max(overs), row), key=lambda item: item[0])
        ordered = sorted(best.values(), key=lambda item: (-item[0], str(item[1].case)))[:show]
        lines = []
        for gain, row in ordered:
            lines.append(f"    # {gain:.2f} times faster: {row.ours.chain}\n    {row.case.command('time', topology)}")
        yield "\n\n".join([topology, "\n".join(lines) or "    # nowhere"])


def _failing_text(failing: Failing, show: int) -> str:
    beyond = f", {failing.beyond_ends} against a tile above both ends'" if failing.beyond_ends else ""
    lines = [f"{failing.title}: {len(failing.rows)}{beyond}"]
    for over, row in failing.rows[:show]:
        words = f"{over:.3f} times" if math.isfinite(over) else row.ours.message or "more than none"
        if failing.peer and row.theirs[failing.peer].is_beyond_ends:
            words += " what takes a tile above both ends'"
        command = row.case.command("time" if row.topology else "bytes", row.topology)
        lines.append(f"    # {words}, {row.ours.rounds} rounds\n    {command}")
    return "\n\n".join(filter(None, [lines[0], "\n".join(lines[1:])]))


def _grouped(rows: list[Row], key: Callable[[Row], str]) -> Iterator[tuple[str, list[Row]]]:
    """Yields the rows of each group, in the order in which groups first appear, and all of them if there are several."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.items()
    if len(groups) > 1:
        yield "all", rows


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def _geomean(ratios: Sequence[float]) -> str:
    """Returns the geometric mean; what is infinite, or zero, has none and is left out."""
    logs = [math.log(each) for each in ratios if 0 < each < math.inf]
    return f"{math.exp(sum(logs) / len(logs)):.3f}" if logs else "–"


def _geomean_and_max(ratios: Sequence[float]) -> str:
    return f"{_geomean(ratios)}, {max(ratios):.2f}" if ratios else "–"


def _share(claims: Sequence[bool]) -> str:
    return f"{sum(claims) / len(claims):.1%}" if claims else "–"


def _planning(rows: Sequence[Row]) -> str:
    """Returns the median and the maximum of the processor's milliseconds for planning."""
    milliseconds = sorted(1e3 * row.ours.seconds for row in rows)
    return f"{milliseconds[len(milliseconds) // 2]:.0f}, {milliseconds[-1]:.0f}" if milliseconds else "–"


def _statuses(statuses: Iterable[str]) -> str:
    bad = Counter(status for status in statuses if status != "ok")
    return ", ".join(f"{count} {status}" for status, count in sorted(bad.items())) or "0"


def _means(answers: Sequence[Sequence], attribute: str) -> str:
    return ", ".join(f"{sum(getattr(each, attribute) for each in column) / len(column):.2f}" for column in zip(*answers)) or "–"
