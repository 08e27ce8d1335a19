# SPDX-License-Identifier: Apache-2.0
"""The results of `random_pairs.py` as tables and curves, and the pairs that break a promise."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.conversions.compiled import NAMES, OURS, Found, largest_end_bytes
from benchmarks.conversions.pairs import Pair
from benchmarks.conversions.report import not_ok
from benchmarks.curves import Curve, Figure, Panel
from reshard.synthesis.common.text_table import markdown_table

CONSTANTS = 256  # bytes of tables and pointers, which XLA may count as temporaries
ALL_TOGETHER = 64  # devices of the panel with all peers; without such pairs, the largest number of devices


@dataclass(frozen=True, slots=True)
class Row:
    """A pair, with the outcomes of our chains and the peers' chains."""

    pair: Pair
    element: str
    found: dict[str, Found]

    @property
    def devices(self) -> int:
        return self.pair.mesh.size

    @property
    def ours(self) -> Found:
        return self.found["ours"]

    @property
    def moves(self) -> bool:
        """Returns whether some device has to receive elements."""
        return self.ours.bound_bytes != 0

    def ratio(self, who: str, attribute: str = "bytes_received", over: str = "ours") -> float | None:
        """Returns a peer's cost ÷ our cost; 1 if they are equal, None if one of them is not known."""
        theirs, mine = (getattr(self.found[each], attribute) for each in (who, over))
        return None if theirs is None or mine is None else ratio(theirs, mine)

    def temporaries_above_stock(self, who: str = "ours") -> int:
        """Returns by how many bytes our temporaries exceed stock's and the copies around one collective.

        It is 0 if stock does not compile.
        """
        stock, ours = self.found["xla"].temp_bytes, self.found[who]
        if stock is None or ours.temp_bytes is None or ours.relayout_bytes is None:
            return 0
        return max(0, ours.temp_bytes - stock - ours.relayout_bytes - CONSTANTS)

    def as_dict(self) -> dict:
        return {"pair": str(self.pair), "devices": self.devices, "element": self.element} | {
            who: asdict(found) for who, found in self.found.items()
        }


def peers_of(who: Iterable[str]) -> list[str]:
    return [each for each in who if each not in OURS]


def ratio(one: float, other: float) -> float:
    """Returns one ÷ other; 1 if both are equal."""
    if one == other:
        return 1.0
    return one / other if other else math.inf


# ---- counts that have to be zero


@dataclass(frozen=True, slots=True)
class Failing:
    """The pairs that break a promise, the worst first, each with a factor by which it breaks the promise."""

    title: str
    rows: tuple[tuple[float, Row], ...]


def failings(rows: Sequence[Row], who: Sequence[str]) -> list[Failing]:
    """Returns every promise with the rows that break it; most promises have no such rows."""
    bad = ((math.inf, row) for row in rows if not all(row.found[each].is_ok for each in OURS))
    found = [_failing("ours: refusals, crashes and what XLA does not compile", bad)]
    beyond = ((ratio(row.ours.largest_tile_bytes or 0, largest_end_bytes(row.pair, row.element)), row) for row in rows)
    found.append(_failing("a tile of ours above source and target", (each for each in beyond if each[0] > 1)))
    for peer in peers_of(who):
        above = ((1 / over, row) for row in rows if (over := row.ratio(peer)) is not None and over < 1)
        found.append(_failing(f"received bytes: above {NAMES[peer]}", above))
    for each in OURS:
        above = (
            (ratio(_temps(row, each), _temps(row, "xla")), row) for row in rows if row.temporaries_above_stock(each)
        )
        found.append(
            _failing(f"temporaries, {NAMES[each]}: above XLA's and the copies around one of our collectives", above)
        )
    return found


def _failing(title: str, rows: Iterable[tuple[float, Row]]) -> Failing:
    return Failing(title, tuple(sorted(rows, key=lambda item: (-item[0], str(item[1].pair)))))


# ---- curves


def as_curves(rows: Sequence[Row], who: Sequence[str], environment: str) -> Figure:
    """Returns the curves of received bytes ÷ ours: XLA's by the number of devices, and all peers' on many devices.

    Pairs that need no traffic are left out.
    """
    rows = [row for row in rows if row.moves]
    counts = sorted({row.devices for row in rows})
    largest = ALL_TOGETHER if ALL_TOGETHER in counts else counts[-1]
    by_count = tuple(
        _curve(f"{count} devices", "xla", (row for row in rows if row.devices == count)) for count in counts
    )
    some = [row for row in rows if row.devices == largest]
    by_peer = tuple(_curve(NAMES[peer], peer, some) for peer in peers_of(who))
    return Figure(
        "Bytes that the busiest device receives: a peer's ÷ ours, logarithmic",
        f"{len(rows):,} random pairs that have to move; {environment}",
        (Panel("stock XLA ÷ ours, by devices", by_count), Panel(f"each peer ÷ ours, on {largest} devices", by_peer)),
    )


def _curve(name: str, peer: str, rows: Iterable[Row]) -> Curve:
    found = (row.ratio(peer) for row in rows)
    return Curve(name, tuple(sorted(each for each in found if each is not None and each < math.inf)))


# ---- text


def as_markdown(rows: Sequence[Row], who: Sequence[str], show: int) -> str:
    """Returns the tables, and for each promise the number of pairs that break it and the worst with their chains."""
    parts = [
        "### Received bytes, a peer's ÷ ours, of the pairs that have to move: geomean, max, min",
        _table(rows, _traffic(who)),
    ]
    parts += ["### Crashes and refusals, out of all pairs", _table(rows, _statuses(who))]
    parts += ["### Temporaries and peak as XLA allocates them, ours ÷ stock XLA's", _table(rows, _memory())]
    parts += ["### Collectives, as often as they run: mean", _table(rows, _counts(who))]
    return "\n\n".join([*parts, "### Must be 0", *(_failing_text(each, show) for each in failings(rows, who))])


Column = tuple[str, Callable[[Sequence[Row]], str]]


def _traffic(who: Sequence[str]) -> Iterator[Column]:
    yield "have to move", lambda rows: str(len(_moved(rows)))
    for each in OURS:
        found = functools.partial(_over_bound, who=each)
        yield f"{NAMES[each]} ÷ bound: geomean, max", lambda rows, found=found: _two(found(_moved(rows)))
    for peer in peers_of(who):
        yield NAMES[peer], lambda rows, peer=peer: _spread([row.ratio(peer) for row in _moved(rows)])
    yield f"XLA ÷ {NAMES['fewest']}", lambda rows: _spread([row.ratio("xla", over="fewest") for row in _moved(rows)])
    yield "XLA moves though nothing has to", lambda rows: str(sum(map(_stock_moves_needlessly, rows)))


def _statuses(who: Sequence[str]) -> Iterator[Column]:
    for each in who:
        yield NAMES[each], lambda rows, each=each: not_ok(row.found[each].status for row in rows)
    yield "XLA gathers beyond source and target", lambda rows: _share(_beyond(rows))


def _memory() -> Iterator[Column]:
    for who in OURS:
        yield f"{NAMES[who]}: temporaries: geomean, max", lambda rows, who=who: _two(_temporaries_over_stock(rows, who))
        yield "larger", lambda rows, who=who: str(sum(_has_larger_temporaries(row, who) for row in rows))
        needed = "larger by more than the copies around one collective"
        yield needed, lambda rows, who=who: str(sum(row.temporaries_above_stock(who) > 0 for row in rows))
    yield "peak: geomean, max, min", lambda rows: _spread(_over_stock(rows, "peak_bytes"))


def _counts(who: Sequence[str]) -> Iterator[Column]:
    for each in who:
        yield (
            NAMES[each],
            lambda rows, each=each: _mean([row.found[each].collectives for row in rows if row.found[each].is_ok]),
        )


def _moved(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.moves]


def _over_bound(rows: Sequence[Row], who: str) -> list[float]:
    found = (row.found[who] for row in rows)
    both = ((each.bytes_received, each.bound_bytes) for each in found if each.is_ok)
    return [ratio(received, bound) for received, bound in both if received is not None and bound is not None]


def _stock_moves_needlessly(row: Row) -> bool:
    return not row.moves and bool(row.found["xla"].bytes_received)


def _has_larger_temporaries(row: Row, who: str) -> bool:
    return row.found["xla"].is_ok and _temps(row, who) > _temps(row, "xla") + CONSTANTS


def _temps(row: Row, who: str) -> int:
    return row.found[who].temp_bytes or 0


def _temporaries_over_stock(rows: Sequence[Row], who: str) -> list[float]:
    both = (row for row in rows if row.found["xla"].is_ok and row.found[who].is_ok)
    return [max(_temps(row, who), CONSTANTS) / max(_temps(row, "xla"), CONSTANTS) for row in both]


def _over_stock(rows: Sequence[Row], attribute: str) -> list[float]:
    found = (row.ratio("xla", attribute) for row in rows)
    return [1 / each if each else math.inf for each in found if each is not None]


def _beyond(rows: Sequence[Row]) -> list[bool]:
    tiles = ((row.found["xla"].largest_tile_bytes, row) for row in rows if row.found["xla"].is_ok)
    return [tile > largest_end_bytes(row.pair, row.element) for tile, row in tiles if tile is not None]


def _table(rows: Sequence[Row], columns: Iterable[Column]) -> str:
    headings, cells = zip(*columns)
    counts = sorted({row.devices for row in rows})
    lines = []
    for title, some in [(str(count), [row for row in rows if row.devices == count]) for count in counts] + [
        ("all", list(rows))
    ]:
        lines.append((title, str(len(some)), *(cell(some) for cell in cells)))
    return markdown_table(("devices", "pairs", *headings), lines)


def _finite(ratios: Iterable[float | None]) -> list[float]:
    """Returns the ratios that have a finite logarithm."""
    return [each for each in ratios if each is not None and 0 < each < math.inf]


def _two(ratios: Sequence[float]) -> str:
    found = _finite(ratios)
    return f"{statistics.geometric_mean(found):.3f}, {max(found):.2f}" if found else "–"


def _spread(ratios: Sequence[float | None]) -> str:
    found = _finite(ratios)
    return f"{statistics.geometric_mean(found):.3f}, {max(found):.2f}, {min(found):.2f}" if found else "–"


def _mean(numbers: Sequence[int | None]) -> str:
    known = [each for each in numbers if each is not None]
    return f"{sum(known) / len(known):.2f}" if known else "–"


def _share(claims: Sequence[bool]) -> str:
    return f"{sum(claims) / len(claims):.0%}" if claims else "–"


def _failing_text(failing: Failing, show: int) -> str:
    lines = [f"{failing.title}: {len(failing.rows)}"]
    for over, row in failing.rows[:show]:
        theirs = "; ".join(f"{NAMES[who]} {_figures(found)}" for who, found in row.found.items() if who not in OURS)
        lines.append(
            f"    # {over:.3f}  {row.pair}\n    #   ours {_figures(row.ours)}: {row.ours.chain}\n    #   {theirs}"
        )
    return "\n\n".join(filter(None, [lines[0], "\n".join(lines[1:])]))


def _figures(found: Found) -> str:
    if not found.is_ok:
        return f"{found.status} {found.message[:80]}".strip()
    return f"{found.bytes_received:,}" + ("" if found.temp_bytes is None else f", temporaries {found.temp_bytes:,}")
