# SPDX-License-Identifier: Apache-2.0
"""The typed steps: each turns one layout into another by a rule that is checked on the digits only.

With L the tile before, in elements, and n the product of the factors that move:

| label | step           | rule (digits before => after)                                       | received by a device |
|-------|----------------|---------------------------------------------------------------------|----------------------|
| T1    | slice          | replicated factors take local digits                                | 0                    |
| T2    | all_gather     | owned digits become local                                           | L·(n-1)              |
| T3    | all_to_all     | owned digits move to digits that are local before the step          | L·(n-1)/n            |
| T4    | permute        | the owned runs stay; other factors, or other radices, own them      | L or 0               |
| T5    | relayout       | only the order of local digits in a device's memory changes         | 0                    |
| T6    | exchange       | any digits => any digits, scheduled as rounds of permutes of pieces | what it lacks        |
| T7    | reduce_scatter | unreduced factors take local digits                                 | L·(n-1)/n            |
| T8    | all_reduce     | unreduced factors become replicated                                 | 2·L·(n-1)/n          |
| T9    | to_unreduced   | owned digits => local, or replicated factors; all become unreduced  | 0                    |
| T10   | chunks         | the rules of other steps, on all digits but one that stays local    | that of these steps  |

T1 to T4 act on each partial sum as on an array: they only move elements. So a permute may give the partial sums to
other devices as well: `after` has as many of them, along any factors. T9 is Shardy's sharded-to-unreduced (the
tile, in its place among zeros) and replicated-to-unreduced (all but the first device along the factors hold zeros).
T10 is a loop: a digit that no step touches numbers slices of the array, and the steps act on one slice after another.

`apply` is R1: it derives the layout after a step, or raises `RuleError` with the rule that is broken.
Source: arXiv 2112.01075 for T1 to T4 on blocked layouts; owning any digit is what is new here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..layouts.layout import UNREDUCED, Factor, Layout, LayoutError, Slot, joined
from ..layouts.mesh import Mesh
from .exchange import Exchange


class RuleError(ValueError):
    """A typing rule forbids a step at a layout. This is an error of the planner, never of the user."""


@dataclass(frozen=True, slots=True)
class Slice:
    """T1: each factor takes a local digit; a device keeps the part that its coordinates name."""

    moves: tuple[tuple[Factor, Slot], ...]


@dataclass(frozen=True, slots=True)
class AllGather:
    """T2: the digits of the factors become local; the devices that differ along them join their tiles."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class AllToAll:
    """T3: each factor moves from its digit to one that is local before the step; one collective for all of them."""

    moves: tuple[tuple[Factor, Slot], ...]

    @property
    def factors(self) -> tuple[Factor, ...]:
        return tuple(factor for factor, _ in self.moves)


@dataclass(frozen=True, slots=True)
class Permute:
    """T4: whole tiles move between devices; `after` is the layout after the step.

    It has the same owned runs and the same number of partial sums as the layout before.
    """

    after: Layout


@dataclass(frozen=True, slots=True)
class Reorder:
    """T4 between device orders: for each pair (a, b) the tile of device a goes to device b.

    The layout afterwards is on another mesh.
    """

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Relayout:
    """T5: a local reshape and transpose, or padding: a copy in device memory without traffic. The layout stays."""

    text: str


@dataclass(frozen=True, slots=True)
class Exchanged:
    """T6: every device gets the elements that it lacks, in rounds.

    `after` is the layout after the step; None if no layout can express it.
    """

    exchange: Exchange
    after: Layout | None


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """T7: the tiles of each group are added up, and each factor takes a local digit of the sum.

    A device keeps the part of the sum that its coordinates name.
    """

    moves: tuple[tuple[Factor, Slot], ...]

    @property
    def factors(self) -> tuple[Factor, ...]:
        return tuple(factor for factor, _ in self.moves)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """T8: the devices that differ along the factors all get the sum of their tiles."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class ToUnreduced:
    """T9: the tiles along the factors become partial sums, filled with zeros; owned digits become local."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Chunked:
    """T10: the last digit of dimension `dim` is cut into `count` slices; `steps` act on each slice in turn."""

    dim: int
    count: int
    steps: tuple[Step, ...]


Step = (
    Slice
    | AllGather
    | AllToAll
    | Permute
    | Reorder
    | Relayout
    | Exchanged
    | ReduceScatter
    | AllReduce
    | ToUnreduced
    | Chunked
)


def name(step: Step) -> str:
    """Returns the step's name as reports and JSON print it."""
    return _NAMES[type(step)]


_NAMES = {
    Slice: "slice",
    AllGather: "all_gather",
    AllToAll: "all_to_all",
    Permute: "permute",
    Reorder: "permute",
    Relayout: "relayout",
    Exchanged: "exchange",
    ReduceScatter: "reduce_scatter",
    AllReduce: "all_reduce",
    ToUnreduced: "to_unreduced",
    Chunked: "chunks",
}


def collectives(step: Step) -> int:
    """Returns the number of collectives that the step runs.

    An exchange runs one for each round; a loop over chunks runs the collectives of its steps once for each chunk.
    """
    if isinstance(step, Exchanged):
        return len(step.exchange.rounds)
    if isinstance(step, Chunked):
        return step.count * sum(map(collectives, step.steps))
    return int(isinstance(step, _COLLECTIVES))


GROUPED = (AllGather, AllToAll, ReduceScatter, AllReduce)  # collectives of groups of devices
_COLLECTIVES = (*GROUPED, Permute, Reorder)


def apply(layout: Layout, step: Step) -> Layout:
    """Returns the layout after `step`. Raises: RuleError if the step's typing rule forbids it."""
    try:
        match step:
            case Slice(moves):
                return _slice(layout, moves)
            case AllGather(factors):
                return _all_gather(layout, factors)
            case AllToAll(moves):
                return _all_to_all(layout, moves)
            case Permute(after):
                return _permute(layout, after)
            case Relayout() | Reorder():
                return layout
            case Exchanged(_, after):
                return _exchanged(layout, after)
            case ReduceScatter(moves):
                return _reduce(layout, "T7", dict(moves))
            case AllReduce(factors):
                return _reduce(layout, "T8", dict.fromkeys(factors))
            case ToUnreduced(factors):
                return _to_unreduced(layout, factors)
            case Chunked():
                return _chunked(layout, step)
    except LayoutError as error:
        raise RuleError(f"{name(step)}: {error}") from error
    raise RuleError(f"no rule for {step!r}")


def _slice(layout: Layout, moves) -> Layout:
    owned = dict(layout.owners)
    for factor, _ in moves:
        if factor in owned or factor in layout.unreduced:
            raise RuleError(f"T1: {factor} is not replicated")
    return layout.with_moved(dict(moves))  # Layout's invariant refuses digits that another factor owns


def _all_gather(layout: Layout, factors) -> Layout:
    owned = dict(layout.owners)
    for factor in factors:
        if factor not in owned:
            raise RuleError(f"T2: {factor} owns no digit")
    return layout.with_moved(dict.fromkeys(factors))


def _all_to_all(layout: Layout, moves) -> Layout:
    owned = dict(layout.owners)
    for factor, slot in moves:
        if factor not in owned:
            raise RuleError(f"T3: {factor} owns no digit")
        for owner, taken in layout.owners:
            if taken.dim == slot.dim and not slot.agrees_with(taken):
                raise RuleError(f"T3: digit {slot} for {factor} is not local, {owner} owns {taken}")
    return layout.with_moved(dict(moves))


def _permute(layout: Layout, after: Layout) -> Layout:
    if after.shape != layout.shape or after.owned_runs != layout.owned_runs:
        raise RuleError(f"T4: owned runs {layout.owned_runs} become {after.owned_runs}")
    if _sums(after) != _sums(layout):
        raise RuleError(f"T4: {_sums(layout)} partial sums become {_sums(after)}")
    return after


def _sums(layout: Layout) -> int:
    return math.prod([factor.size for factor in layout.unreduced])


def _exchanged(layout: Layout, after: Layout | None) -> Layout:
    if layout.unreduced:
        raise RuleError(f"T6: {layout.unreduced} are unreduced")
    if after is None:
        raise RuleError("T6: no layout expresses where the exchange leads")
    return after


def _reduce(layout: Layout, rule: str, moves) -> Layout:
    for factor in moves:
        if factor not in layout.unreduced:
            raise RuleError(f"{rule}: {factor} is not unreduced")
    return layout.with_moved(moves)  # Layout's invariant refuses digits that another factor owns


def _to_unreduced(layout: Layout, factors) -> Layout:
    for factor in factors:
        if factor in layout.unreduced:
            raise RuleError(f"T9: {factor} is unreduced already")
    return layout.with_moved(dict.fromkeys(factors, UNREDUCED))


def _chunked(layout: Layout, step: Chunked) -> Layout:
    inside = layout.slice_of(step.dim, step.count)
    for each in step.steps:
        inside = apply(inside, each)
    return Layout(layout.shape, inside.owners, inside.unreduced)


def received_elements(before: Layout, step: Step) -> int:
    """Returns the elements that the busiest device receives in one step.

    The sum of these over the steps is an upper bound on the elements received by R3's definition.
    """
    tile = before.tile_elements
    match step:
        case AllGather(factors):
            return tile * (math.prod([f.size for f in factors]) - 1)
        case AllToAll(moves) | ReduceScatter(moves):
            n = math.prod([f.size for f, _ in moves])
            return tile // n * (n - 1)
        case AllReduce(factors):
            n = math.prod(f.size for f in factors)
            return -(-2 * tile * (n - 1) // n)
        case Permute(after):
            return tile if after != before else 0
        case Reorder(pairs):
            return tile * any(a != b for a, b in pairs)
        case Exchanged(exchange):
            return exchange.received_elements
        case Chunked():
            raise RuleError("chunks are counted by the collectives of their program")
    return 0


def text(before: Layout | None, step: Step, mesh: Mesh) -> str:
    """Returns the step in one line, e.g. `all_to_all x: dim 0 -> 2, y: dim 1 -> 2` (axes and dimensions).

    Args:
      before: may be None for a step whose text names no digits that are owned before it.
    """
    match step:
        case Slice(moves) | ReduceScatter(moves):
            return f"{name(step)} " + _routes_text({f: f"dim {s.dim}" for f, s in moves}, mesh)
        case AllReduce(factors):
            return "all_reduce " + factors_text(factors, mesh)
        case Reorder():
            return "permute of whole tiles to their devices"
        case Relayout(words):
            return f"relayout {words}"
        case Exchanged(exchange):
            return exchange.text
    assert before is not None, step
    return _text_with_owners(before, step, mesh)


def _text_with_owners(before: Layout, step: Step, mesh: Mesh) -> str:
    """Returns the text of a step that names digits that are owned before it."""
    match step:
        case AllGather(factors):
            return "all_gather " + _routes_text({f: f"dim {before.owned_slot(f).dim}" for f in factors}, mesh)
        case AllToAll(moves):
            routes = {f: f"dim {before.owned_slot(f).dim} -> {s.dim}" for f, s in moves}
            return "all_to_all " + _routes_text(routes, mesh)
        case Permute(after):
            return f"permute {before.text(mesh)} -> {after.text(mesh)}"
        case ToUnreduced(factors):
            slots = {f: before.slot_of(f) for f in factors}
            return "to_unreduced " + _routes_text(
                {f: f"dim {s.dim}" if s else "replicated" for f, s in slots.items()}, mesh
            )
    raise RuleError(f"no text for {step!r}")


def factors_text(factors, mesh: Mesh) -> str:
    """Returns the factors sorted, e.g. `x:(1)2, y`; pieces of an axis that touch read as one."""
    return ", ".join(factor.text(mesh) for factor in joined(factors))


def _routes_text(routes: dict[Factor, str], mesh: Mesh) -> str:
    """Returns `x: dim 0 -> 2, y: dim 1 -> 2`; pieces of an axis that go the same way read as one."""
    joined: list[tuple[Factor, str]] = []
    for factor in sorted(routes):
        whole = factor.joined(joined[-1][0]) if joined and joined[-1][1] == routes[factor] else None
        joined[-1:] = [(whole, routes[factor])] if whole else [*joined[-1:], (factor, routes[factor])]
    return ", ".join(f"{factor.text(mesh)}: {route}" for factor, route in joined)
