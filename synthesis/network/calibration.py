# SPDX-License-Identifier: Apache-2.0
"""Calibration: finds the topology with which the cost model of `cost.py` predicts the measured times best.

**Probes.** Every kind of collective is measured along each mesh axis, in all groups at once, at several sizes. Permutes
go around the group and, in groups of more than two, between neighbours that swap their tiles. If the swaps are slower,
a connection works one way at a time, and the ratio is the level's slowdown of `SWAP`. Gathers and all_to_alls run in
groups of two neighbours as well; their times may be between the two, and give the level's `slowdown_in_pairs`. One pair
of devices alone tells a switch from a bus: on a bus, a pair alone is faster than all pairs together. This probe says of
which kind a level is, not how fast it is, because all devices work in plans. Collectives over all axes are measured
too, but not fitted. They say which kinds the library runs around one ring, whatever the levels (`Topology.rings`), and
how well the model predicts times that it has not seen.

**Fit.** A topology's shape (which axes are a level together, and of which kind each level is) makes the model linear in

    time = launch + steps · latency of the level + bytes · share · (1 / bandwidth, times slowdown of the kind)

and a further launch for a kind whose times clearly say so (`Topology.further_launch_s`),
where the cost model itself gives steps and share, for a latency and a bandwidth of one. For each shape the unknowns are
found by least squares of relative errors; they are not negative, and outliers have less weight. A message between units
also passes what is inside them, so the latency of a level is that of the level inside it and more: the unknown is how
much more, unless the times clearly say otherwise. A slow level needs that, because its times are nearly all bytes, and
least squares alone may leave nothing for its latency. A planner that believes in messages at no cost sends a few bytes
in many steps. Among the shapes that
fit about as well as the best one, the shape with the fewest levels is taken: axes that behave alike become one level.
The bandwidth of a level is then that of its fastest kinds; slower kinds have a `slowdown`.

**Messages.** A library that sends a message to each partner in an all_to_all takes as long for small tiles as for none
(`Level.message_s`). Such times are no line in the bytes. So all else is fitted as above at first. The overheads are
then fitted to the small all_to_alls that take clearly longer than that says, those in groups of two and over all axes
among them, and are taken if they explain all_to_alls clearly better than lines alone do.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..layouts.layout import Factor, groups
from ..layouts.mesh import Mesh
from ..programs.traffic import Collective, tile_bytes_after
from .cost import coefficients, collective_time_s, messages_time_s
from .topology import MAY_BE_RINGS, SWAP, Level, Topology

KINDS = ("all_gather", "all_to_all", "collective_permute", "reduce_scatter", "all_reduce")
ELEMENT_BYTES = 4

_EXCHANGED = ("all_to_all",)
_IN_PAIRS = ("all_gather", "all_to_all")
_OF_ALL_AXES = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
_ALIKE = 0.15  # rates of kinds that differ by less are one bandwidth; errors of shapes that differ by less are equal
_WORTH_S = 0.02  # mean relative error that one more level, or one more parameter, must save beyond that
_CLEARLY = 4  # an error that is smaller by this factor is better even if it saves less: noise does not explain it
_ROUNDING = 1e-6  # errors below this are rounding
_LEAST_SLOWDOWN = 1.05
_TELLING = 0.2  # of the time of an all_to_all: shorter relayouts are ignored
_LEAST_SHARE = 0.25  # of a relayout: a smaller free share is not written into the topology
_FAST = 1e30
_MOST_LEVELS = 6
_ITERATIONS = 30  # that the solver may take, per unknown
_NOTHING = 1e-10  # of |wanted|: an unknown that explains less explains a rounding error
_SHARINGS = 16


class CalibrationError(ValueError):
    """Raised if no topology follows from the measurements; the message is one line in the user's words."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One collective to be measured.

    Attributes:
      axes: the mesh axes along which the devices of a group differ.
      collective: as every device executes it; groups and pairs in device ids.
      is_swapped: neighbours in groups of more than two swap their tiles.
      is_paired: neighbours in groups of more than two work in groups of two.
    """

    axes: tuple[str, ...]
    collective: Collective
    is_swapped: bool = False
    is_paired: bool = False

    @property
    def is_alone(self) -> bool:
        return len(self.collective.pairs) == 1

    @property
    def is_fitted(self) -> bool:
        """Returns whether bandwidths and latencies are fitted to the probe.

        Other probes select kinds of levels, or check the fit.
        """
        return len(self.axes) == 1 and not self.is_alone and not self.is_paired

    @property
    def text(self) -> str:
        """Returns e.g. `all_gather` or `collective_permute, one pair`."""
        how = {", one pair": self.is_alone, ", swapped": self.is_swapped, ", in pairs": self.is_paired}
        return self.collective.kind + "".join(words for words, is_so in how.items() if is_so)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of collective along some axes, measured and as the topology predicts it.

    Attributes:
      measured, predicted: (latency in seconds, seconds per byte of the tile before the collective), without the start.
      errors: |predicted - measured| / measured of each size, the start of the program in both.
      is_fitted: whether the fit has seen it.
    """

    axes: tuple[str, ...]
    text: str
    measured: tuple[float, float]
    predicted: tuple[float, float]
    errors: tuple[float, ...]
    is_fitted: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """A topology with the measurements that it was fitted to. `axes_of_levels`: the mesh axes that form each level."""

    topology: Topology
    axes_of_levels: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]

    def errors(self, is_fitted: bool = True) -> np.ndarray:
        """Returns the relative errors at all sizes, of the rows that were fitted or of the others."""
        return np.array([error for row in self.rows if row.is_fitted == is_fitted for error in row.errors])


# ---- probes


def probes(mesh: Mesh, sizes: Sequence[int]) -> list[Probe]:
    """Returns the probes to measure, axis by axis; axes of size 1 are left out.

    Args:
      sizes: in bytes, of the larger of operand and result tile; rounded down to whole elements that divide among a
        group.

    Example:
      >>> [probe.text for probe in probes(Mesh.parse("x=4"), [1 << 20])][:3]
      ['all_gather', 'all_gather, in pairs', 'all_to_all']
    """
    axes = [(name,) for name, size in mesh.axes if size > 1]
    found = [probe for along in axes for probe in _along(mesh, along, KINDS, sizes)]
    if len(axes) > 1:
        found += _along(mesh, tuple(name for (name,) in axes), _OF_ALL_AXES, sizes)
    return found


def _along(mesh: Mesh, axes: tuple[str, ...], kinds: Sequence[str], sizes: Sequence[int]) -> Iterator[Probe]:
    members = groups(mesh, tuple(Factor(axis, 1, mesh.axis_size(axis)) for axis in axes))
    shifts = tuple((int(a), int(b)) for group in members for a, b in zip(group, np.roll(group, -1)))
    together = tuple(tuple(map(int, group)) for group in members)
    neighbours = tuple(pair for group in together for pair in zip(group[::2], group[1::2]))
    swaps = tuple(pair for a, b in neighbours for pair in ((a, b), (b, a)))
    has_pairs = len(axes) == 1 and members.shape[1] > 2 and members.shape[1] % 2 == 0
    for kind in kinds:
        for num_bytes in sizes:
            before = _tile_bytes(kind, num_bytes, members.shape[1])
            if kind != "collective_permute":
                after = tile_bytes_after(kind, before, members.shape[1])
                yield Probe(axes, Collective(kind, before, after, groups=together))
                if has_pairs and kind in _IN_PAIRS:
                    yield Probe(axes, _of_pairs(kind, num_bytes, neighbours), is_paired=True)
                continue
            yield Probe(axes, Collective(kind, before, before, pairs=shifts))
            yield Probe(axes, Collective(kind, before, before, pairs=shifts[:1]))
            if members.shape[1] > 2:
                yield Probe(axes, Collective(kind, before, before, pairs=swaps), is_swapped=True)


def _of_pairs(kind: str, num_bytes: int, pairs: tuple[tuple[int, int], ...]) -> Collective:
    before = _tile_bytes(kind, num_bytes, 2)
    return Collective(kind, before, tile_bytes_after(kind, before, 2), groups=pairs)


def _tile_bytes(kind: str, num_bytes: int, group_size: int) -> int:
    tile = num_bytes // group_size if kind == "all_gather" else num_bytes
    unit = ELEMENT_BYTES * group_size
    return max(1, tile // unit) * unit


# ---- the fit


def fit(
    mesh: Mesh,
    measured: Sequence[tuple[Probe, float]],
    memory_bandwidth_bytes_per_s: float,
    *,
    slice_bandwidth_bytes_per_s: float | None = None,
    start_s: float = 0.0,
    kinds: Mapping[str, str] | None = None,
    name: str = "measured",
) -> Calibration:
    """Returns the topology whose predictions are nearest to the measured seconds.

    Args:
      measured: each probe with the time of a program that does nothing else, in seconds, all of them positive.
      memory_bandwidth_bytes_per_s, slice_bandwidth_bytes_per_s: as a topology has them; see `memory_bandwidth`.
      start_s: the time to start any program. Each measured time contains it; the topology does not.
      kinds: for each axis whose kind is known, "switch" or "bus". Such an axis stays a level of its own.
    Raises: CalibrationError if times do not grow with sizes, MeshError for an unknown axis in `kinds`.
    """
    kinds = dict(kinds or {})
    for axis in kinds:
        mesh.axis_size(axis)
    axes = [axis for axis, size in mesh.axes if size > 1]
    if not axes:
        raise CalibrationError(f"{mesh} has one device; there is nothing to measure between devices")
    if len(axes) > _MOST_LEVELS:
        raise CalibrationError(f"{mesh} has {len(axes)} axes; at most {_MOST_LEVELS} can be told apart")
    along_one = [(probe, seconds) for probe, seconds in measured if len(probe.axes) == 1 and not probe.is_paired]
    shapes = [_shape(mesh, grouping, along_one, start_s, kinds) for grouping in _groupings(axes, kinds)]
    good_enough = min(shape.error for shape in shapes) * (1 + _ALIKE) + _WORTH_S
    shape = next(shape for shape in shapes if shape.error <= good_enough)
    at = memory_bandwidth_bytes_per_s, name
    topology = _with_messages(mesh, shape, _lines(mesh, shape, measured, start_s, *at), measured, start_s)
    topology = replace(topology, slice_bandwidth_bytes_per_s=slice_bandwidth_bytes_per_s)
    return Calibration(topology, shape.axes, tuple(_rows(mesh, topology, measured, start_s)))


def memory_bandwidth(copies: Sequence[tuple[int, float]], start_s: float = 0.0) -> float:
    """Returns the memory bandwidth in bytes per second, from (bytes, seconds) of local copies.

    The copies read each byte once and write it once.

    Raises: CalibrationError if times do not grow with sizes.

    Example:
      >>> round(memory_bandwidth([(1000, 2e-3 + 1e-6), (9000, 2e-3 + 9e-6)], start_s=1e-3))
      2000000000
    """
    num_bytes, times = np.array(copies, float).T
    rows = np.column_stack([1 / times, 2 * num_bytes / times])
    seconds_per_byte = robust_nonnegative(rows, 1 - start_s / times)[1]
    if not seconds_per_byte:
        raise CalibrationError("times of local copies do not grow with the size; measure larger --sizes")
    return float(1 / seconds_per_byte)


def share_before_all_to_all(measured: Sequence[tuple[float, float, float]], start_s: float = 0.0) -> float:
    """Returns the share of a relayout that costs nothing right before an all_to_all; a small share is returned as 0.

    Args:
      measured: (seconds of a relayout, of an all_to_all, of both in one program). Entries whose relayout is short
        compared with the all_to_all, as on a network, are ignored.

    Example: two seconds of three are saved.
      >>> round(share_before_all_to_all([(4.0, 11.0, 12.0)], start_s=1.0), 2)
      0.67
    """
    shares = [
        (relayout_s + exchange_s - start_s - both_s) / (relayout_s - start_s)
        for relayout_s, exchange_s, both_s in measured
        if relayout_s - start_s > _TELLING * exchange_s
    ]
    share = min(1.0, float(np.median(shares))) if shares else 0.0
    return share if share >= _LEAST_SHARE else 0.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """Levels of unit bandwidth and latency, the mesh axes of each, and the mean error of the best fit.

    The error counts the fitted probes alone. A single pair selects the kind of a level, but it is not fitted, since no
    plan leaves all other devices idle.
    """

    levels: tuple[Level, ...]
    axes: tuple[tuple[str, ...], ...]
    error: float


def _groupings(axes: Sequence[str], kept: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yields the ways to group neighbouring axes into levels, those with the fewest levels first.

    Example:
      >>> list(_groupings("xy", {}))
      [(('x', 'y'),), (('x',), ('y',))]
    """
    for count in range(len(axes)):
        for cuts in itertools.combinations(range(1, len(axes)), count):
            places = (0, *cuts, len(axes))
            found = tuple(tuple(axes[a:b]) for a, b in zip(places, places[1:]))
            if all(len(level) == 1 for level in found if any(axis in kept for axis in level)):
                yield found


def _shape(mesh: Mesh, grouping, measured, start_s: float, kinds: Mapping[str, str]) -> _Shape:
    """Returns the best kind for each level. A probe crosses one level only, so each level is chosen by itself."""
    sizes = [math.prod(mesh.axis_size(axis) for axis in axes) for axes in grouping]
    swaps = [_swap_slowdown([each for each in measured if each[0].axes[0] in axes], start_s) for axes in grouping]
    levels = [
        Level(_level_name(axes, grouping), size, "switch", 1.0, 1.0, slowdown=swap)
        for axes, size, swap in zip(grouping, sizes, swaps, strict=True)
    ]
    errors = []
    for at, axes in enumerate(grouping):
        mine = [(probe, seconds) for probe, seconds in measured if probe.axes[0] in axes]
        best = math.inf
        for family in _candidates(levels[at], math.prod(sizes[at + 1 :]), kinds.get(axes[0])):
            tried = [
                _Equations(mesh, (*levels[:at], each, *levels[at + 1 :]), mine, start_s).solved()[1] for each in family
            ]
            if best == math.inf or _is_better(min(tried), best):
                levels[at], best = family[int(np.argmin(tried))], min(tried)
        fitted = [each for each in mine if not each[0].is_alone]
        errors += [_Equations(mesh, tuple(levels), fitted, start_s).solved()[1]] * len(fitted)
    return _Shape(tuple(levels), tuple(grouping), float(np.mean(errors)))


def _swap_slowdown(measured, start_s: float) -> tuple[tuple[str, float], ...]:
    """Returns the slowdown of swaps against permutes around the group; empty if they are equally fast or unknown."""
    permutes = [(probe, seconds) for probe, seconds in measured if probe.collective.pairs and not probe.is_alone]
    ratios = []
    for axes in sorted({probe.axes for probe, _ in permutes if probe.is_swapped}):
        around, swapped = (
            _line([each for each in permutes if each[0].axes == axes and each[0].is_swapped == is_swapped], start_s)[1]
            for is_swapped in (False, True)
        )
        if around > 0:
            ratios.append(swapped / around)
    slower = float(np.median(ratios)) if ratios else 1.0
    return ((SWAP, slower),) if slower > 1 + _ALIKE else ()


def _line(measured, start_s: float) -> tuple[float, float]:
    """Returns (latency in seconds, seconds per byte of the tile before) of a collective, from its measured times."""
    times = np.array([seconds for _, seconds in measured])
    num_bytes = np.array([probe.collective.bytes_before for probe, _ in measured])
    found = robust_nonnegative(np.column_stack([1 / times, num_bytes / times]), 1 - start_s / times)
    return float(found[0]), float(found[1])


def _is_better(error: float, other: float) -> bool:
    """Returns whether an error is so much smaller than another that a less simple level is worth it.

    Example:
      >>> _is_better(0.03, 0.06), _is_better(0.03, 0.05), _is_better(0.001, 0.01)
      (True, False, True)
    """
    return error < other / (1 + _ALIKE) - _WORTH_S or _ROUNDING < other > _CLEARLY * error


def _level_name(axes: Sequence[str], grouping) -> str:
    return "device" if len(grouping) == 1 and len(axes) > 1 else "_".join(axes)


def _candidates(level: Level, devices_per_unit: int, kind: str | None) -> Iterator[list[Level]]:
    """Yields families of candidates for a level, the simplest first: switch, bus, switch with shared ports."""
    if kind != "bus":
        yield [level]
        yield [replace(level, copies_own=True)]
    if kind != "switch":
        yield [replace(level, kind="bus")]
        yield [replace(level, kind="bus", copies_own=True)]
    if kind != "bus" and devices_per_unit > 1:
        shares = (devices_per_unit ** (step / _SHARINGS) for step in range(_SHARINGS))
        yield [replace(level, shared_bandwidth_bytes_per_s=share) for share in shares]


class _Equations:
    """The model of each measurement, linear in launch latency, latencies of levels, seconds per byte of (level, kind).

    State: `times` are the measured times, `wanted` the same without the start of the program. `steps` is an array
    (measurement, level): column i counts the steps along level i and the levels around it, the first of which is the
    outermost, since it belongs to the latency that level i has more than the level inside it; if `is_free`, the steps
    along level i alone. `loads` has a column of
    bytes for each (level, kind) in `pairs`, and `late` one for each kind that starts later than the others.
    """

    def __init__(
        self,
        mesh: Mesh,
        levels: tuple[Level, ...],
        measured,
        start_s: float,
        late: tuple[str, ...] = (),
        rings: tuple[str, ...] = (),
    ):
        self.times = np.array([seconds for _, seconds in measured])
        self.wanted = self.times - start_s
        patterns = {_pattern(probe): probe.collective for probe, _ in measured}  # the same at every size
        known = {pattern: _steps_and_shares(mesh, levels, each, rings) for pattern, each in patterns.items()}
        found = [known[_pattern(probe)] for probe, _ in measured]
        steps = np.array([[steps for steps, _ in row] for row in found])
        self.steps = np.cumsum(steps, axis=1)
        share = np.array([[share for _, share in row] for row in found])
        num_bytes = np.array([probe.collective.bytes_before for probe, _ in measured])
        kinds = [probe.collective.kind for probe, _ in measured]
        self.late = np.array([[kind == each for each in late] for kind in kinds], float).reshape(len(kinds), len(late))
        self.pairs = sorted({(at, kind) for row, kind in zip(share, kinds) for at in np.flatnonzero(row).tolist()})
        self.loads = np.stack(
            [share[:, at] * num_bytes * [k == kind for k in kinds] for at, kind in self.pairs], axis=1
        )
        self.is_free = False
        if len(levels) > 1 and (free := self._with_free_latencies(steps)) is not None:
            self.steps, self.is_free = free, True

    def _with_free_latencies(self, steps: np.ndarray) -> np.ndarray | None:
        """Returns the steps along each level alone, if the times are clearly better explained by latencies that do not
        grow from level to level."""
        _, error = self.solved()
        nested, self.steps = self.steps, steps
        _, free_error = self.solved()
        self.steps = nested
        return steps if _is_better(free_error, error) else None

    def solved(self) -> tuple[np.ndarray, float]:
        """Returns the seconds per byte of `pairs` and the mean relative error.

        An error counts as 1 at most.
        """
        found, errors = self._solved()
        return found[len(found) - len(self.pairs) :], float(errors.mean())

    def error_of(self, rows: np.ndarray) -> float:
        """Returns the mean relative error of some of the measurements, given as a mask."""
        return float(self._solved()[1][rows].mean())

    def _solved(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (launch, more latency of each level, further launches, seconds per byte of `pairs`), the errors."""
        matrix = np.column_stack([self._latencies, self.loads]) / self.times[:, None]
        wanted = self.wanted / self.times
        found = robust_nonnegative(matrix, wanted)
        return found, np.minimum(np.abs(matrix @ found - wanted), 1)

    @property
    def _latencies(self) -> np.ndarray:
        """Returns the columns of unknowns that do not grow with the bytes: launch, levels, further launches."""
        return np.column_stack([np.ones(len(self.times)), self.steps, self.late])

    def latencies(self, seconds_of_bytes: np.ndarray) -> tuple[float, list[float], list[float]]:
        """Returns launch, latencies and further launches, given the time that the bytes take in each measurement."""
        matrix, levels = self._latencies / self.times[:, None], self.steps.shape[1]
        launch, *found = robust_nonnegative(matrix, (self.wanted - seconds_of_bytes) / self.times).tolist()
        more, further = found[:levels], found[levels:]
        return launch, more if self.is_free else np.cumsum(more[::-1])[::-1].tolist(), further


def _pattern(probe: Probe) -> tuple[tuple[str, ...], str]:
    return probe.axes, probe.text


def _steps_and_shares(
    mesh: Mesh, levels: Sequence[Level], collective: Collective, rings: tuple[str, ...]
) -> list[tuple[float, float]]:
    """Returns for each level the steps of latency and the bytes that cross it per byte of tile, by the cost model."""
    found = []
    for at in range(len(levels)):
        quick = {"bandwidth_bytes_per_s": _FAST, "latency_s": 0.0, "shared_bandwidth_bytes_per_s": None}
        others = [replace(level, **quick) for level in levels]
        one = *others[:at], levels[at], *others[at + 1 :]
        alone = Topology("alone", one, 1.0, device_order=mesh.device_ids, rings=rings)
        steps, share = coefficients(alone, mesh.size, collective.kind, collective.groups, collective.pairs)
        found.append((steps, share if share > mesh.size**2 / _FAST else 0.0))
    return found


def _lines(
    mesh: Mesh,
    shape: _Shape,
    measured,
    start_s: float,
    memory_bandwidth_bytes_per_s: float,
    name: str,
    on_time: tuple[str, ...] = (),
) -> Topology:
    """Returns the topology of a shape in which all times are lines in the bytes.

    Args:
      on_time: kinds that start with the others.
    """
    at = memory_bandwidth_bytes_per_s, name
    fitted = [(probe, seconds) for probe, seconds in measured if probe.is_fitted]
    topology = _topology(mesh, shape, fitted, start_s, *at, on_time=on_time)
    rings = _with_rings(mesh, _with_pairs(mesh, topology, shape.axes, measured, start_s), measured, start_s).rings
    if rings:  # a ring has more steps, so the latency of one is another
        topology = _topology(mesh, shape, fitted, start_s, *at, rings, on_time)
    return _with_pairs(mesh, topology, shape.axes, measured, start_s)


def _topology(
    mesh: Mesh,
    shape: _Shape,
    fitted,
    start_s: float,
    memory_bandwidth_bytes_per_s: float,
    name: str,
    rings: tuple[str, ...] = (),
    on_time: tuple[str, ...] = (),
) -> Topology:
    late = _late_kinds(mesh, shape, fitted, start_s, rings, on_time)
    equations = _Equations(mesh, shape.levels, fitted, start_s, late, rings)
    per_byte = dict(zip(equations.pairs, equations.solved()[0]))
    levels = []
    for at, level in enumerate(shape.levels):
        rates = {kind: 1 / each for (where, kind), each in per_byte.items() if where == at and each > 0}
        if not rates:
            raise CalibrationError(
                f'times along "{", ".join(shape.axes[at])}" do not grow with the size; measure larger --sizes'
            )
        levels.append(_with_rates(level, rates))
    found = {"device_order": mesh.device_ids, "rings": rings}
    topology = Topology(name, tuple(levels), memory_bandwidth_bytes_per_s, **found)
    seconds = np.array([collective_time_s(topology, mesh.size, probe.collective) for probe, _ in fitted])
    launch, latencies, further = equations.latencies(seconds)
    levels = [replace(level, latency_s=latency) for level, latency in zip(levels, latencies)]
    further_launch_s = tuple((kind, each) for kind, each in zip(late, further) if each > 0)
    return replace(topology, levels=tuple(levels), launch_latency_s=launch, further_launch_s=further_launch_s)


def _late_kinds(
    mesh: Mesh, shape: _Shape, fitted, start_s: float, rings: tuple[str, ...], on_time: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the kinds whose own times are clearly better explained if they start later than the others, sorted.

    Those `on_time` never do.

    One after the other, first the kind that gains most: beside a kind that is late but not known to be, others seem
    late, too. gloo's reduce_scatter is one: on a network of 1 ms a message it takes 20 ms, whatever it sends.
    """
    kinds = {probe.collective.kind for probe, _ in fitted}
    of_kind = {kind: np.array([probe.collective.kind == kind for probe, _ in fitted]) for kind in sorted(kinds)}
    late: tuple[str, ...] = ()
    while True:
        before = _Equations(mesh, shape.levels, fitted, start_s, late, rings)
        errors = {}
        for kind in sorted(kinds - {*late, *on_time}):
            after = _Equations(mesh, shape.levels, fitted, start_s, (*late, kind), rings)
            pair = after.error_of(of_kind[kind]), before.error_of(of_kind[kind])
            if _is_better(*pair):
                errors[kind] = pair
        if not errors:
            return tuple(sorted(late))
        late = (*late, min(errors, key=lambda kind: errors[kind][0] - errors[kind][1]))


def _with_pairs(mesh: Mesh, topology: Topology, axes_of_levels, measured, start_s: float) -> Topology:
    """Returns the topology with `slowdown_in_pairs` on switches whose groups of two differ from the model."""
    levels = list(topology.levels)
    for at, axes in enumerate(axes_of_levels):
        if levels[at].kind != "switch":
            continue
        for kind in _IN_PAIRS:
            paired = [
                (probe, s)
                for probe, s in measured
                if probe.is_paired and probe.collective.kind == kind and probe.axes[0] in axes
            ]
            if not paired:
                continue
            first = paired[0][0].collective
            modelled = coefficients(topology, mesh.size, kind, first.groups)[1]
            off = _line(paired, start_s)[1] / modelled
            if abs(off - 1) > _ALIKE:
                known = levels[at].slowdown_of(kind) * levels[at].slowdown_of_size(kind, 2)
                in_pairs = *levels[at].slowdown_in_pairs, (kind, max(1.0, known * off))
                levels[at] = replace(levels[at], slowdown_in_pairs=in_pairs)
    return replace(topology, levels=tuple(levels))


def _with_messages(mesh: Mesh, shape: _Shape, lines: Topology, measured, start_s: float) -> Topology:
    """Returns the topology with the overhead of messages, if all_to_alls are clearly not as `lines` has them.

    The two largest tiles along some axes give the bandwidth; in small ones, bytes take less than half of the time.
    """
    exchanges = [each for each in measured if each[0].collective.kind == "all_to_all"]
    sizes: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for probe, _ in exchanges:
        sizes.setdefault(_pattern(probe), []).append(probe.collective.bytes_before)
    largest = {pattern: sorted(found)[-2:] for pattern, found in sizes.items()}
    small = [
        (probe, seconds)
        for probe, seconds in exchanges
        if probe.collective.bytes_before not in largest[_pattern(probe)]
        and _seconds_of_bytes(mesh, lines, probe.collective) < (seconds - start_s) / 2
    ]
    if not small:
        return lines
    at = lines.memory_bandwidth_bytes_per_s, lines.name
    others = _sending(_lines(mesh, shape, _without(measured, small), start_s, *at, on_time=_EXCHANGED))
    waiting = [
        (probe, seconds)
        for probe, seconds in small
        if seconds > (1 + _ALIKE) * (start_s + collective_time_s(others, mesh.size, probe.collective))
    ]
    if not waiting:
        return lines
    others = _lines(mesh, shape, _without(measured, waiting), start_s, *at, on_time=_EXCHANGED)
    found = _with_overheads(mesh, others, waiting, exchanges, start_s)
    errors = (_mean_error(mesh, each, small, start_s) for each in (found, lines))
    return found if _is_better(*errors) else lines


def _sending(lines: Topology) -> Topology:
    """Returns the topology with messages that take no time: all_to_alls then wait for one latency."""
    levels = (replace(level, message_s=sys.float_info.min) for level in lines.levels)
    return replace(lines, levels=tuple(levels))


def _without(measured, some):
    return [each for each in measured if each not in some]


def _seconds_of_bytes(mesh: Mesh, topology: Topology, moved: Collective) -> float:
    return coefficients(topology, mesh.size, moved.kind, moved.groups)[1] * moved.bytes_before


def _with_overheads(mesh: Mesh, topology: Topology, waiting, exchanges, start_s: float) -> Topology:
    """Returns the topology with the `message_s` that is nearest to the times of `waiting`.

    If messages would take longer than some others of `exchanges`, these count as well.
    """
    while True:
        found = _nearest_overheads(mesh, topology, waiting, start_s)
        faster = [
            (probe, seconds)
            for probe, seconds in _without(exchanges, waiting)
            if start_s + messages_time_s(found, mesh.size, "all_to_all", probe.collective.groups)
            > (1 + _ALIKE) * seconds
        ]
        if not faster:
            return found
        waiting = [*waiting, *faster]


def _nearest_overheads(mesh: Mesh, topology: Topology, waiting, start_s: float) -> Topology:
    times = np.array([seconds for _, seconds in waiting])
    partners = np.array([_partners(mesh, topology.levels, probe.collective) for probe, _ in waiting])
    wanted = times - start_s - topology.launch_s("all_to_all")
    found = robust_nonnegative(partners / times[:, None], wanted / times).tolist()
    levels = (replace(level, message_s=each) for level, each in zip(topology.levels, found, strict=True))
    return replace(topology, levels=tuple(levels))


def _partners(mesh: Mesh, levels: Sequence[Level], moved: Collective) -> list[float]:
    """Returns for each level the partners of a device in an all_to_all, by the cost model."""
    found = []
    for at in range(len(levels)):
        one = tuple(replace(level, message_s=float(at == other)) for other, level in enumerate(levels))
        alone = Topology("alone", one, 1.0, device_order=mesh.device_ids)
        found.append(messages_time_s(alone, mesh.size, moved.kind, moved.groups))
    return found


def _with_rings(mesh: Mesh, topology: Topology, measured, start_s: float) -> Topology:
    """Returns the topology with `rings`: the kinds whose times over several levels are those of one ring."""
    for kind in MAY_BE_RINGS:
        across = [
            (probe, seconds) for probe, seconds in measured if probe.collective.kind == kind and len(probe.axes) > 1
        ]
        around = replace(topology, rings=(*topology.rings, kind))
        if across and _is_better(*(_mean_error(mesh, each, across, start_s) for each in (around, topology))):
            topology = around
    return topology


def _mean_error(mesh: Mesh, topology: Topology, measured, start_s: float) -> float:
    predicted = np.array([start_s + collective_time_s(topology, mesh.size, probe.collective) for probe, _ in measured])
    return float(np.minimum(np.abs(predicted / [seconds for _, seconds in measured] - 1), 1).mean())


def _with_rates(level: Level, rates: Mapping[str, float]) -> Level:
    """Returns the level with the bandwidth of its fastest kinds, and slowdowns for the others; it has no latency yet.

    Example:
      >>> rates = {"all_gather": 1e9, "all_to_all": 0.9e9, "all_reduce": 5e8}
      >>> level = _with_rates(Level("gpu", 4, "switch", 1.0), rates)
      >>> level.bandwidth_bytes_per_s, level.slowdown
      (950000000.0, (('all_reduce', 1.9),))
    """
    fastest = max(rates.values())
    bandwidth = float(np.median([rate for rate in rates.values() if rate >= fastest / (1 + _ALIKE)]))
    slowdown = {kind: bandwidth / rate for kind, rate in sorted(rates.items()) if rate < fastest / (1 + _ALIKE)}
    if level.kind == "switch":  # a bus has no directions
        slowdown |= dict(level.slowdown)
    shared = level.shared_bandwidth_bytes_per_s
    return replace(
        level,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=0.0,
        shared_bandwidth_bytes_per_s=shared and shared * bandwidth,
        slowdown=tuple((kind, float(factor)) for kind, factor in slowdown.items() if factor >= _LEAST_SLOWDOWN),
    )


def _rows(mesh: Mesh, topology: Topology, measured, start_s: float) -> Iterator[Row]:
    of_row: dict[tuple[tuple[str, ...], str], list[tuple[Probe, float]]] = {}
    for probe, seconds in measured:
        of_row.setdefault(_pattern(probe), []).append((probe, seconds))
    for (axes, text), found in of_row.items():
        times = np.array([seconds for _, seconds in found])
        predicted = np.array([start_s + collective_time_s(topology, mesh.size, probe.collective) for probe, _ in found])
        first = found[0][0].collective
        latency_s, seconds_per_byte = coefficients(topology, mesh.size, first.kind, first.groups, first.pairs)
        model = max(latency_s, messages_time_s(topology, mesh.size, first.kind, first.groups)), seconds_per_byte
        errors = tuple((np.abs(predicted - times) / times).tolist())
        yield Row(axes, text, _line(found, start_s), model, errors, found[0][0].is_fitted)


# ---- least squares without negative unknowns


def robust_nonnegative(matrix: np.ndarray, wanted: np.ndarray, rounds: int = 12, least: float = 0.03) -> np.ndarray:
    """Returns x >= 0 with `matrix @ x` near `wanted`, by least squares that give less weight to outliers.

    Args:
      least: rows whose error is above this count as outliers.

    Example: one of four readings is wrong.
      >>> robust_nonnegative(np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 9.0])).round(1).tolist()
      [1.0]
    """
    weights = np.ones(len(wanted))
    for _ in range(rounds):
        found = nonnegative(matrix * weights[:, None], wanted * weights)
        weights = np.sqrt(least / np.maximum(np.abs(matrix @ found - wanted), least))
    return found


def nonnegative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the x >= 0 that minimises |matrix @ x - wanted|; an unknown that explains only rounding errors is 0.

    Example:
      >>> nonnegative(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([2.0, 1.0])).round(6).tolist()
      [1.5, 0.0]
    """
    from scipy.optimize import nnls  # takes half a second to import; only calibration needs it

    norms = np.linalg.norm(matrix, axis=0)
    scale = np.where(norms > 0, norms, 1.0)  # seconds and seconds per byte differ by nine orders of magnitude
    found = nnls(matrix / scale, wanted, maxiter=_ITERATIONS * matrix.shape[1])[0]
    return np.where(found > _NOTHING * np.linalg.norm(wanted), found, 0.0) / scale
