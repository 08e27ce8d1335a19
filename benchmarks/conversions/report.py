# SPDX-License-Identifier: Apache-2.0
"""The answers of `redistributions.py` as tables in Markdown, and the cases in which our plans break a promise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.conversions.answers import PEERS, Ours, as_answer
from benchmarks.conversions.cases import Case
from benchmarks.harness.journal import Journal
from reshard.dialect_utils.compare.peers import Answer
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import Topology

SAME = 1 + 1e-6  # planners count in whole picoseconds, and sums of the same times may differ in their last digits
NAMES = {"xla": "XLA", "shardy": "Shardy"}
PLANNING = "planning, ms of CPU: median, max"
BYTES, TIME = "received bytes", "modelled time"


@dataclass(frozen=True, slots=True)
class Theirs:
    """A peer's answer with its costs.

    Attributes:
      cost: in bytes or seconds, None unless the status is "ok". By time the copies on the device are in it, if they are
        known.
      collectives_time_s: without them; None unless the status is "ok".
      has_copies: whether they are in it.
      is_beyond_ends: a collective has an operand or result above source and target tile; rule R2 forbids that to us.
      largest_tile_bytes: that operand or result.
    """

    status: str
    cost: float | None
    collectives: int
    rounds: int
    is_beyond_ends: bool = False
    collectives_time_s: float | None = None
    has_copies: bool = True
    largest_tile_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A case with one objective: bytes if the topology is None, else time on it. `theirs` is by the peer's name.

    `given` has our plans with a tile limit, by the bytes of the limit; there is one for each peer that is faster with a
    tile that R2 forbids. `tile_limit` is the limit of `ours`.
    """

    case: Case
    topology: str | None
    ours: Ours
    theirs: dict[str, Theirs]
    given: dict[int, Ours] = field(default_factory=dict)
    tile_limit: int | None = None

    def given_their_tile(self, peer: str) -> Row | None:
        """Returns the row with our plan whose tile limit is the peer's tile; None if there is no such plan."""
        tile_bytes = self.theirs[peer].largest_tile_bytes
        found = self.given.get(tile_bytes)
        return found and replace(self, ours=found, tile_limit=tile_bytes)

    def over(self, peer: str) -> float | None:
        """Returns our cost ÷ the peer's; None if one of us has no answer.

        Times contain both sides' copies, or no copies if the peer's are not known.
        """
        theirs = self.theirs[peer]
        if theirs.cost is None or not self.ours.is_ok:
            return None
        if not self.topology:
            return ratio(self.ours.bytes_received, theirs.cost)
        return ratio(self.ours.time_s if theirs.has_copies else self.ours.collectives_time_s, theirs.cost)

    def over_in_collectives(self, peer: str) -> float | None:
        """Returns our cost ÷ the peer's as `over` does, but times never contain copies."""
        theirs = self.theirs[peer].collectives_time_s
        if not self.topology:
            return self.over(peer)
        return None if theirs is None or not self.ours.is_ok else ratio(self.ours.collectives_time_s, theirs)

    def lost_by(self, peer: str) -> float | None:
        """Returns the factor by which the peer is better; None if the peer is not better.

        If the whole times are equal, the times of the collectives decide, because the prices of copies are the least
        exact.
        """
        over = self.over(peer)
        if self.topology is None:
            return over if over is not None and over > 1 else None
        if over is not None and 1 / SAME <= over <= SAME:
            over = self.over_in_collectives(peer)
        return over if over is not None and over > SAME else None

    @property
    def has_more_rounds_for_nothing(self) -> bool:
        over = self.over("shardy")
        return over is not None and self.ours.rounds > self.theirs["shardy"].rounds and over * SAME >= 1


def ratio(mine: float, other: float) -> float:
    """Returns mine ÷ other; 1 if both are equal."""
    if mine == other:
        return 1.0
    return mine / other if other else math.inf


def rows_of(cases: Iterable[Case], plans: Journal, answers: Journal, question: Callable[..., str]) -> Iterator[Row]:
    """Yields a row for each objective of each case for which our answer and all peers' answers are in the journals."""
    for case in cases:
        entries = {name: answers.get(question(case, name)) for name in PEERS}
        planned = {on: plans.get(question(case, on or "bytes")) for on in (None, *case.topologies)}
        known = {name: entry for name, entry in entries.items() if entry is not None}
        if len(known) < len(entries) or not any(planned.values()):
            continue
        priced = {name: as_answer(name, case.pair.mesh.size, entry) for name, entry in known.items()}
        for topology, plan in planned.items():
            if plan is not None:
                theirs = {name: _theirs(case, answer, topology) for name, answer in priced.items()}
                tiles = {each.largest_tile_bytes for each in theirs.values() if topology and each.is_beyond_ends}
                found = {tile: plans.get(question(case, given_tile(topology, tile))) for tile in tiles}
                given = {tile: Ours(**again) for tile, again in found.items() if again is not None}
                yield Row(case, topology, Ours(**plan), theirs, given)


def given_tile(topology: str | None, tile_bytes: int) -> str:
    """Returns the part of a question that asks for a plan on a topology with tiles of this size."""
    return f"{topology}, tiles of {tile_bytes}"


def with_larger_tiles(row: Row) -> list[int]:
    """Returns the bytes of the tiles with which peers are faster, if R2 forbids these tiles to us."""
    if not row.topology:
        return []
    faster = [each for name, each in row.theirs.items() if each.is_beyond_ends and row.lost_by(name) is not None]
    return sorted({each.largest_tile_bytes for each in faster})


def _theirs(case: Case, answer: Answer, topology: str | None) -> Theirs:
    largest = max((each.largest_tile_bytes for each in answer.collectives), default=0)
    counts = len(answer.collectives), answer.collective_runs, largest > case.largest_tile_bytes
    if not topology:
        return Theirs(answer.status, answer.bytes_received, *counts, largest_tile_bytes=largest)
    network = Topology.parse(topology)
    talk_s, whole_s = answer.collectives_time_s(network), answer.time_s(network)
    return Theirs(answer.status, talk_s if whole_s is None else whole_s, *counts, talk_s, whole_s is not None, largest)


# ---- counts that have to be zero


@dataclass(frozen=True, slots=True)
class Failing:
    """The cases that break a promise, the worst first, each with a factor: ours ÷ theirs if there is a peer."""

    title: str
    rows: tuple[tuple[float, Row], ...]
    peer: str | None = None


def failings(rows: Sequence[Row]) -> list[Failing]:
    """Returns every promise with the rows that break it; most promises have no such rows.

    A peer that is faster by time with a tile that R2 forbids to us breaks no promise; it is in `beyond_rules`. But no
    peer may be faster than our plan with a tile as large as the peer's.
    """
    found = [_failing("refusals and crashes", ((math.inf, row) for row in rows if not row.ours.is_ok))]
    by_bytes, by_time = _by_objective(rows)
    needless = (row for row in by_bytes if row.ours.is_ok and row.ours.bytes_received > row.ours.bound_bytes == 0)
    found.append(_failing("bytes received though none are needed", ((math.inf, row) for row in needless)))
    for what, some in ((BYTES, by_bytes), (TIME, by_time)):
        for peer in PEERS:
            own = [row for row in some if not (row.topology and row.theirs[peer].is_beyond_ends)]
            found.append(_failing(f"{what}: above {NAMES[peer]}", _lost(own, peer), peer))
    for peer in PEERS:
        given = [again for row in by_time if row.theirs[peer].is_beyond_ends and (again := row.given_their_tile(peer))]
        found.append(_failing(f"{TIME}: above {NAMES[peer]}, given as large a tile", _lost(given, peer), peer))
    more = ((row.over("shardy") or 0.0, row) for row in by_time if row.has_more_rounds_for_nothing)
    return [*found, _failing("more rounds than Shardy, and no less time", more, "shardy")]


def beyond_rules(rows: Sequence[Row]) -> list[Failing]:
    """Returns for each peer the rows in which it is faster with a tile that R2 forbids to us."""
    _, by_time = _by_objective(rows)
    some = {peer: [row for row in by_time if row.theirs[peer].is_beyond_ends] for peer in PEERS}
    return [_failing(f"{TIME}: above {NAMES[peer]}", _lost(some[peer], peer), peer) for peer in PEERS]


def _lost(rows: Iterable[Row], peer: str) -> Iterator[tuple[float, Row]]:
    return ((lost, row) for row in rows if (lost := row.lost_by(peer)) is not None)


def _by_objective(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if not row.topology], [row for row in rows if row.topology]


def _failing(title: str, rows: Iterable[tuple[float, Row]], peer: str | None = None) -> Failing:
    return Failing(
        title, tuple(sorted(rows, key=lambda item: (-item[0], str(item[1].case), item[1].topology or ""))), peer
    )


# ---- text


def as_markdown(rows: Sequence[Row], show: int) -> str:
    """Returns the tables, and for each promise the number of cases that break it and the worst ones' command lines."""
    (by_bytes, by_time), parts = _by_objective(rows), []
    if by_bytes:
        parts += ["### Objective bytes: received bytes ÷ the bound", _bytes_table(by_bytes)]
    if by_time:
        parts += [
            "### Objective time: the peer's modelled time ÷ ours, copies on the device included",
            *_time_tables(by_time),
        ]
        parts += ["### Where we gain most over the better of the peers", *_wins(by_time, show)]
    parts += ["### Must be 0", *(_failing_text(each, show) for each in failings(rows))]
    if by_time:
        parts += [
            "### Faster only with a tile that R2 forbids",
            *(_failing_text(each, show) for each in beyond_rules(rows)),
        ]
    return "\n\n".join(parts)


def _bytes_table(rows: list[Row]) -> str:
    headings = ["", "pairs", "ours: geomean, max", "at the bound", "proved optimal"]
    for peer in PEERS:
        headings += [f"{NAMES[peer]}: geomean, max", f"{NAMES[peer]} not ok", f"ours above {NAMES[peer]}"]
    headings.append(PLANNING)
    return markdown_table(
        headings, [[title, *_bytes_cells(some)] for title, some in _grouped(rows, lambda row: row.case.group)]
    )


def _bytes_cells(rows: list[Row]) -> Iterator[str]:
    planned = [row for row in rows if row.ours.is_ok]
    moved = [row for row in planned if row.ours.bound_bytes]
    yield str(len(rows))
    yield _geomean_and_max([row.ours.bytes_received / row.ours.bound_bytes for row in moved])
    yield _share([row.ours.bytes_received == row.ours.bound_bytes for row in planned])
    yield _share([row.ours.is_optimal for row in planned])
    for peer in PEERS:
        answered = [(cost, row.ours.bound_bytes) for row in moved if (cost := row.theirs[peer].cost) is not None]
        yield _geomean_and_max([cost / bound for cost, bound in answered])
        yield not_ok(row.theirs[peer].status for row in rows)
        yield str(sum((row.over(peer) or 0) > SAME for row in rows))
    yield _planning(planned)


def _time_tables(rows: list[Row]) -> Iterator[str]:
    """Yields a table by topology and a table by group; only the latter if there is one topology or one group."""
    if len({row.case.group for row in rows}) > 1 and len({row.topology for row in rows}) > 1:
        yield _time_table(rows, lambda row: row.topology or "")
    yield _time_table(rows, lambda row: row.case.group)


def _time_table(rows: list[Row], key: Callable[[Row], str]) -> str:
    headings = ["", "pairs"]
    for peer in PEERS:
        headings += [f"{NAMES[peer]} ÷ ours: geomean, min, max", f"{NAMES[peer]} ÷ ours, collectives only"]
        headings += [f"ours above {NAMES[peer]}", "of these by R2", "of these given its tile"]
    headings += ["ours ÷ bound: geomean", "copies, share of our time", "collectives: ours, XLA, Shardy"]
    headings += ["rounds: ours, XLA, Shardy", "more rounds than Shardy", "and no less time", PLANNING]
    return markdown_table(headings, [[title, *_time_cells(some)] for title, some in _grouped(rows, key)])


def _time_cells(rows: list[Row]) -> Iterator[str]:
    planned = [row for row in rows if row.ours.is_ok]
    yield str(len(rows))
    for peer in PEERS:
        for over in (Row.over, Row.over_in_collectives):
            inverse = [1 / found if found else math.inf for row in planned if (found := over(row, peer)) is not None]
            yield f"{_geomean(inverse)}, {min(inverse, default=math.nan):.2f}, {max(inverse, default=math.nan):.2f}"
        lost = [row for _, row in _lost(planned, peer)]
        yield str(len(lost))
        by_rule = [row for row in lost if row.theirs[peer].is_beyond_ends]
        yield str(len(by_rule))
        again = [row.given_their_tile(peer) for row in by_rule]
        planned_again = [row for row in again if row is not None]
        lost_again = sum(row.lost_by(peer) is not None for row in planned_again)
        yield "–" if len(planned_again) < len(again) else str(lost_again)
    yield _geomean([row.ours.time_s / row.ours.bound_time_s for row in planned if row.ours.bound_time_s])
    all_s = sum(row.ours.time_s for row in planned)
    yield f"{1 - sum(row.ours.collectives_time_s for row in planned) / all_s:.1%}" if all_s else "–"
    yield _means([(row.ours, *(row.theirs[peer] for peer in PEERS)) for row in planned], "collectives")
    yield _means([(row.ours, *(row.theirs[peer] for peer in PEERS)) for row in planned], "rounds")
    yield str(sum(row.over("shardy") is not None and row.ours.rounds > row.theirs["shardy"].rounds for row in planned))
    yield str(sum(row.has_more_rounds_for_nothing for row in planned))
    yield _planning(planned)


def _wins(rows: list[Row], show: int) -> Iterator[str]:
    """Yields for each topology the command lines of the largest gains, one for each sequence of steps."""
    for topology, some in itertools.groupby(sorted(rows, key=lambda row: row.topology or ""), lambda row: row.topology):
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
        yield "\n\n".join([topology or "", "\n".join(lines) or "    # nowhere"])


def _failing_text(failing: Failing, show: int) -> str:
    lines = [f"{failing.title}: {len(failing.rows)}"]
    for over, row in failing.rows[:show]:
        words = f"{over:.3f} times" if math.isfinite(over) else row.ours.message or "more than none"
        if failing.peer and row.topology:
            words += f", {row.over(failing.peer):.3f} whole, {row.over_in_collectives(failing.peer):.3f} in collectives"
        command = row.case.command("time" if row.topology else "bytes", row.topology, row.tile_limit)
        lines.append(f"    # {words}, {row.ours.rounds} rounds\n    {command}")
    return "\n\n".join(filter(None, [lines[0], "\n".join(lines[1:])]))


def _grouped(rows: list[Row], key: Callable[[Row], str]) -> Iterator[tuple[str, list[Row]]]:
    """Yields each group with its rows, in the order of first appearance, and "all" if there are several groups."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.items()
    if len(groups) > 1:
        yield "all", rows


def _geomean(ratios: Sequence[float]) -> str:
    """Returns the geometric mean of the finite ratios above 0, as text."""
    found = [each for each in ratios if 0 < each < math.inf]
    return f"{statistics.geometric_mean(found):.3f}" if found else "–"


def _geomean_and_max(ratios: Sequence[float]) -> str:
    return f"{_geomean(ratios)}, {max(ratios):.2f}" if ratios else "–"


def _share(claims: Sequence[bool]) -> str:
    return f"{sum(claims) / len(claims):.1%}" if claims else "–"


def _planning(rows: Sequence[Row]) -> str:
    """Returns the median and the maximum of the processor milliseconds for planning, as text."""
    milliseconds = sorted(1e3 * row.ours.seconds for row in rows)
    return f"{milliseconds[len(milliseconds) // 2]:.0f}, {milliseconds[-1]:.0f}" if milliseconds else "–"


def not_ok(statuses: Iterable[str]) -> str:
    """Returns in words the number of each status except "ok"; "0" if there is no other status."""
    bad = Counter(status for status in statuses if status != "ok")
    return ", ".join(f"{count} {status}" for status, count in sorted(bad.items())) or "0"


def _means(answers: Sequence[Sequence], attribute: str) -> str:
    return (
        ", ".join(f"{sum(getattr(each, attribute) for each in column) / len(column):.2f}" for column in zip(*answers))
        or "–"
    )
