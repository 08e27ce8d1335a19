# SPDX-License-Identifier: Apache-2.0
"""The ledger of a program: its collectives after partitioning, each with its line, its cause, its bytes and its time.

The program is compiled with stock XLA from a copy whose locations are numbers (`op_numbers`), so each collective names
the op for which XLA made it. The cause is told from that op and from the sites that `find-mismatches` finds at it.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reshard.dialect_utils.analysis.layout_check import devices_of, meshes_of
from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.hlo.accelerators import as_run_by
from reshard.dialect_utils.hlo.collectives import CollectiveOp, HloCollectives, collectives_in
from reshard.dialect_utils.hlo.text import HloModule, parse_module
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Place, error_at, place_of
from reshard.dialect_utils.ir.ops import short_name
from reshard.dialect_utils.ir.source_lines import Frame, SourceLines, frames_of
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.schedules.independent_work import Beside, independent_work
from reshard.dialect_utils.schedules.kept_results import kept_bytes
from reshard.dialect_utils.schedules.live_bytes import Moment, Timeline, timeline_of
from reshard.dialect_utils.schedules.program_steps import Loop, Move, Work, steps_of
from reshard.dialect_utils.schedules.program_steps import Step as HloStep
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.dialect_utils.xla.child import Compiled, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import Finding, read_findings
from reshard.passes.sites.network import stands_in_on
from reshard.passes.traffic.bounds import Bound, bounds_of_sites, bytes_of, sums_bound
from reshard.passes.traffic.causes import GRADIENT, PARTIAL_SUMS, SUMS, UNKNOWN, Cause, SiteAt, cause_of
from reshard.passes.traffic.parameters import Parameters
from reshard.passes.traffic.steps import LoopStep, MoveStep, Step, WorkStep
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network import cost
from reshard.synthesis.network.occupancy import occupancy
from reshard.synthesis.network.program_time import LocalWork, ProgramTime, program_time, roofline_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

# What a ledger needs of `XlaChild.compile`.
KEPT = {"keeps_hlo": True, "keeps_locations": True, "keeps_schedule": True}
NO_LINE, NO_AXES, NO_LEVEL = "(no line)", "(devices)", "(none)"
_STEP_PREFIX = "reshard/"
_NO_FILE = "-"  # what MLIR calls the file of text that it did not read from a file
_NUMBER_IN_QUOTES = re.compile(r'"(?:[^"\s]*/)?reshard\.op/\d+"')


@dataclass(frozen=True, slots=True)
class Independent:
    """Work that could run beside a collective, since neither needs the other.

    Attributes:
      op: the name of the op with the largest part of it, such as `dot_general`, or of the HLO instruction. place: the
        line of that op; "" if the module does not say.
      seconds: of all such work, modelled as a roofline, all runs of the collective together. Other collectives may have
        the same work beside them.
    """

    op: str
    place: str
    seconds: float

    @property
    def text(self) -> str:
        return f"{self.op} at {self.place}" if self.place else self.op


@dataclass(frozen=True, slots=True)
class Moments:
    """The memory of one device over the program's instructions, in the order of the compiler's schedule.

    Attributes:
      timeline: the bytes at each instruction. places: for each collective, by the name of its instruction, its line; ""
        where the module does not say.
    """

    timeline: Timeline
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective of the compiled program.

    Attributes:
      collective: what it moves, and how often it runs. name: of its HLO instruction.
      tensor: its result, one device's tile, such as `f32[4,256]`.
      op: the StableHLO op for which XLA made it; "" if that is not known.
      place: the line of the user's program, `file:line:col`; "" if the module does not say.
      calls: the chain of calls that leads to the op, innermost first.
      cause: why it is there.
      axes: the axes of the mesh along which devices work together, such as `x` or `x, y`.
      level: the name of the outermost level of the network that it crosses; "" if no device sends to another.
      bytes_received: by the busiest device, all runs together. seconds: modelled, all runs together.
      beside: what could run beside it, and when; None if nothing that takes time is independent of it.
      bound: the least that what it is for needs, all runs together: the conversion at its site, or its sums. None if no
        bound is known.
      times_bound: what all collectives with this very purpose receive together, divided by the bound; None without a
        bound, or if it is 0.
    """

    collective: Collective
    name: str
    tensor: str
    op: str
    place: str
    calls: tuple[str, ...]
    cause: Cause
    axes: str
    level: str
    bytes_received: int
    seconds: float
    beside: Independent | None = None
    bound: Bound | None = None
    times_bound: float | None = None

    @property
    def runs(self) -> int:
        return self.collective.trip_count

    @property
    def overlap(self) -> float:
        """Returns the share of its time for which there is work that could run beside it, from 0 to 1."""
        if self.beside is None:
            return 0.0
        return min(1.0, self.beside.seconds / self.seconds) if self.seconds else 1.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The traffic of one compiled program.

    Attributes:
      entries: the longest first.
      topology: the network that the times are modelled on, fitted to the devices.
      compiled: what XLA made of the program; there are no entries unless its status is "ok".
      bytes_received: by the busiest device of the whole program; the entries may have different busiest devices.
      unknown_trip_counts: the loops whose collectives are counted once, since XLA's text does not tell how often they
        run. unpriced: opcodes that move data and are not in the entries.
      memory: what a device holds at each instruction; None if the compiler gives no schedule.
      site_bounds: the bound of one run of each site's conversion, for the ledger of the rewritten program.
      steps: of the program in order, whose times add up to `time`; empty unless asked for.
    """

    entries: tuple[Entry, ...]
    topology: Topology
    num_devices: int
    compiled: Compiled
    bytes_received: int = 0
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    memory: Moments | None = None
    site_bounds: Mapping[int, Bound] = field(default_factory=dict, repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def time(self) -> ProgramTime:
        """Returns the modelled time of the program: its collectives and its local work, one after the other."""
        return program_time(self.topology, self.num_devices, self.compiled.moved, self.compiled.work)

    @property
    def seconds(self) -> float:
        """Returns the modelled time of all collectives, one after the other."""
        return sum(entry.seconds for entry in self.entries)

    @property
    def entry_bytes(self) -> int:
        """Returns the received bytes of all entries together, to which their shares belong."""
        return sum(entry.bytes_received for entry in self.entries)

    @property
    def explained_bytes(self) -> int:
        """Returns the received bytes of the entries whose cause is known."""
        return sum(entry.bytes_received for entry in self.entries if entry.cause.kind != UNKNOWN)

    def grouped(self, by: str) -> list[Group]:
        """Returns the entries by one of `GROUPINGS`, the longest group first."""
        entries: dict[str, list[Entry]] = {}
        for entry in self.entries:
            entries.setdefault(GROUPINGS[by](entry), []).append(entry)
        groups = [Group(name, tuple(each)) for name, each in entries.items()]
        return sorted(groups, key=lambda group: (-group.seconds, -group.bytes_received, group.name))


@dataclass(frozen=True, slots=True)
class Group:
    """Entries with something in common, under its name."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def seconds(self) -> float:
        return sum(entry.seconds for entry in self.entries)

    @property
    def bytes_received(self) -> int:
        return sum(entry.bytes_received for entry in self.entries)

    @property
    def runs(self) -> int:
        return sum(entry.runs for entry in self.entries)


GROUPINGS: dict[str, Callable[[Entry], str]] = {
    "line": lambda entry: entry.place or NO_LINE,
    "kind": lambda entry: entry.collective.kind,
    "cause": lambda entry: entry.cause.kind,
    "axis": lambda entry: entry.axes,
    "level": lambda entry: entry.level or NO_LEVEL,
}


def ledger_of(
    module: ir.Module,
    child: XlaChild,
    topology: Topology,
    *,
    target: Target | None = None,
    finds_sites: bool = True,
    site_bounds: Mapping[int, Bound] | None = None,
    file: str = _NO_FILE,
    keeps_steps: bool = False,
) -> Ledger:
    """Returns the ledger of a module as stock XLA compiles it. The module stays as it is.

    Args:
      topology: the network; open levels are fitted to the devices of the module.
      target: the target to compile for; None for CPU devices.
      finds_sites: whether the sites of the module are looked for. A module that has been rewritten has other numbers
        of sites than its original, so nobody asks for them there.
      site_bounds: of the original, `Ledger.site_bounds`, for a module that has been rewritten.
      file: the name to show for the file of a module that was read as text without one.
      keeps_steps: whether `Ledger.steps` is wanted.
    Raises:
      TopologyError: the topology does not fit the devices.
      DiagnosedError: the module has no function @main.
    """
    numbered = NumberedOps(module)
    main_of(module)  # raises before anything is compiled
    num_devices = partitions_of(module)
    topology.fitted(num_devices)
    kept = {**KEPT, "stands_in": stands_in_on(topology)}
    compiled = child.compile(numbered.text, num_devices, target=target, with_estimate=False, **kept)
    how = {"finds_sites": finds_sites, "site_bounds": site_bounds, "file": file, "keeps_steps": keeps_steps}
    return ledger_from(module, numbered, compiled, topology, **how)


def ledger_from(
    module: ir.Module,
    numbered: NumberedOps,
    compiled: Compiled,
    topology: Topology,
    *,
    finds_sites: bool = True,
    site_bounds: Mapping[int, Bound] | None = None,
    file: str = _NO_FILE,
    keeps_steps: bool = False,
) -> Ledger:
    """Returns the ledger of a module that has been compiled.

    Args:
      numbered: of the module. compiled: what XLA made of `numbered.text`, with what `KEPT` asks for; without the
        schedule there is no `Ledger.memory`.
      topology, finds_sites, site_bounds, file, keeps_steps: as in `ledger_of`, whose errors this function raises.
    """
    main, num_devices = main_of(module), partitions_of(module)
    network = topology.fitted(num_devices)
    if not compiled.is_ok:
        said = replace(compiled, message=_with_places(compiled.message, numbered, file))
        return Ledger((), network, num_devices, said)
    hlo_text = present(compiled.hlo_text)
    program = parse_module(hlo_text)
    found = as_run_by(compiled.run_by, collectives_in(hlo_text), program)
    sites, meshes, bounds = _sites(numbered, module, network) if finds_sites else ({}, meshes_of(module), {})
    bounds = bounds if site_bounds is None else site_bounds
    reader = _Reader(module, main, numbered, sites, meshes, bounds, network, found, program, file)
    listed = reader.entries()
    entries = sorted(listed, key=lambda entry: (-entry.seconds, -entry.bytes_received))
    return Ledger(
        tuple(entries),
        network,
        num_devices,
        compiled,
        found.bytes_received,
        found.unknown_trip_counts,
        found.unpriced,
        reader.memory(compiled.scheduled_text),
        bounds,
        reader.steps(listed) if keeps_steps else (),
    )


def partitions_of(module: ir.Module) -> int:
    """Returns the number of devices for which a module is partitioned, also if only GSPMD's shardings tell.

    Raises: DiagnosedError if the module states a number that is none.
    """
    if "mhlo.num_partitions" in module.operation.attributes or meshes_of(module):
        return devices_of(module)
    copy = ir.Module.parse(compat.bytecode(module), module.context)
    try:
        Pipeline.parse("import-gspmd").run(copy, Session())
    except DiagnosedError:
        return devices_of(module)
    return devices_of(copy)


def main_of(module: ir.Module) -> ir.Operation:
    """Returns the function with which XLA begins. Raises: DiagnosedError if there is none."""
    found = [each.operation for each in module.body.operations if each.operation.name == "func.func"]
    functions = [op for op in found if len(op.regions[0].blocks)]
    names = [ir.StringAttr(op.attributes["sym_name"]).value for op in functions]
    if "main" in names:
        return functions[names.index("main")]
    what = "the module has no function @main, with which XLA begins"
    raise error_at(functions[0] if functions else module.operation, f"{what}; name one so" if functions else what)


def _with_places(message: str, numbered: NumberedOps, file: str) -> str:
    """Returns a message of XLA's with the places of ops where it has their numbers."""

    def place(found: re.Match[str]) -> str:
        at = place_of(numbered.of_name(found[0]))  # arguments have numbers, too, and are no ops
        return '"unknown"' if at is None else f'"{_in_file(at, file)}"'

    return _NUMBER_IN_QUOTES.sub(place, message)


def _in_file(place: Place, file: str) -> Place:
    return replace(place, file=file) if place.file == _NO_FILE else place


def _sites(
    numbered: NumberedOps, module: ir.Module, network: Topology
) -> tuple[dict[ir.Operation, list[SiteAt]], Mapping[str, Mesh], dict[int, Bound]]:
    """Returns the sites of a module by its ops, the meshes whose axes they name, and the bounds of the sites; no site
    where the passes refuse the module."""
    with module.context:
        copy = ir.Module.parse(numbered.text)
    try:
        Pipeline.parse("import-gspmd,find-mismatches").run(copy, Session())
        findings = read_findings(copy)
    except DiagnosedError:
        return {}, meshes_of(module), {}
    sites: dict[ir.Operation, list[SiteAt]] = {}
    for edge in findings.edges if findings else ():
        op = numbered.of_name(str(edge.op.location))
        if op is not None:
            sites.setdefault(op, []).append(
                SiteAt(edge.site, edge.why, _moved_axes(edge), edge.number, bytes_of(edge.value))
            )
    return sites, meshes_of(copy), bounds_of_sites(copy, findings.edges if findings else (), network)


def _conversion(found: CollectiveOp, site: int) -> tuple:
    """Returns what is equal for the collectives that do one conversion of a site: the site, and the calls around it."""
    return site, found.collective.trip_count, found.op_name.rpartition("/reshard.op/")[0]


def _moved_axes(edge: Finding) -> frozenset[str]:
    """Returns the axes that split other dimensions before the conversion than after it."""
    source, target = (
        {(dim, axis) for dim, axes in enumerate(sharding_from_attr(attr).dims) for axis in axes}
        for attr in (edge.source, edge.target)
    )
    return frozenset(axis.name for _, axis in source ^ target)


def _frames_of(ops: Sequence[ir.Operation]) -> tuple[Frame, ...]:
    """Returns the frames of the first op that has some: of library functions only the calls may have lines."""
    return next(filter(None, map(frames_of, ops)), ())


class _Reader:
    """Makes entries of the collectives of one program."""

    def __init__(
        self,
        module: ir.Module,
        main: ir.Operation,
        numbered: NumberedOps,
        sites: Mapping[ir.Operation, Sequence[SiteAt]],
        meshes: Mapping[str, Mesh],
        bounds: Mapping[int, Bound],
        topology: Topology,
        found: HloCollectives,
        program: HloModule,
        file: str,
    ):
        num_devices = found.num_devices
        self._found, self._program = found, program
        self._bounds, self._parameters = bounds, Parameters(module, main)
        self._beside, self._kept = independent_work(program), kept_bytes(program)
        self._file, self._return = file, list(main.regions[0].blocks[0].operations)[-1].operation
        self._numbered, self._sites, self._topology, self._num_devices = numbered, sites, topology, num_devices
        self._meshes = [mesh for mesh in meshes.values() if mesh.size == num_devices]
        self._coordinates = {mesh: _coordinates(mesh) for mesh in self._meshes}
        self._axes_of: dict[tuple, tuple[str, ...]] = {}
        self._lines = SourceLines(_frames_of(self._ops_of(each)) for each in found.ops)
        self._received: Counter[tuple] = Counter()  # for each conversion, by the collectives so far

    def entries(self) -> list[Entry]:
        """Returns all entries. Those of one conversion, or of one op's sums, share a bound."""
        entries = list(map(self.entry, self._found.ops))
        purposes = [self._purpose(found, entry) for found, entry in zip(self._found.ops, entries)]
        received: dict[tuple, int] = {}
        for purpose, entry in zip(purposes, entries):
            received[purpose] = received.get(purpose, 0) + entry.bytes_received
        return [
            replace(entry, times_bound=received[purpose] / entry.bound.bytes_received)
            if entry.bound is not None and entry.bound.bytes_received
            else entry
            for purpose, entry in zip(purposes, entries)
        ]

    def _purpose(self, found: CollectiveOp, entry: Entry) -> tuple:
        """Returns what is equal for collectives that do one conversion together: the site, and the calls around it."""
        return (found.name,) if entry.cause.site is None else _conversion(found, entry.cause.site)

    def _may_be(self, found: CollectiveOp, received: int, site: int) -> bool:
        """Returns whether all that is received for a conversion, with a further collective, is within its bound."""
        bound = self._bounds.get(site)
        if bound is None:
            return True
        total = self._received[_conversion(found, site)] + received
        return total <= bound.times(found.collective.trip_count).bytes_received

    def entry(self, found: CollectiveOp) -> Entry:
        moved = found.collective
        ops = self._ops_of(found)
        op, frames = ops[0] if ops else None, _frames_of(ops)
        axes = self._axes(moved, op)
        level = cost.crossed_level(self._topology, self._num_devices, moved)
        parameter = self._parameters.gradient_of(ops) if moved.kind in SUMS else ""
        received = traffic.bytes_received([moved], self._num_devices)
        may_be = functools.partial(self._may_be, found, received)
        cause = cause_of(moved.kind, op, axes, self._sites, found.result, parameter, moved.largest_tile_bytes, may_be)
        if cause.site is not None:
            self._received[_conversion(found, cause.site)] += received
        return Entry(
            moved,
            found.name,
            _without_layout(found.shape),
            op.name if op is not None else "",
            self._place(ops),
            tuple(str(self._shown(frame)) for frame in frames),
            cause,
            ", ".join(axes) or NO_AXES,
            level.name if level else "",
            received,
            cost.collective_time_s(self._topology, self._num_devices, moved),
            self._independent(self._beside.get(found.name), moved.trip_count),
            self._bound(found, cause),
        )

    def _ops_of(self, found: CollectiveOp) -> Sequence[ir.Operation]:
        """Returns the op that a collective is for, and the calls around it."""
        return self._numbered.all_of_name(found.op_name) if found.result is None else [self._return]

    def _place(self, ops: Sequence[ir.Operation]) -> str:
        """Returns the line to show for the first of some ops, given the calls that lead to it; "" if there is none."""
        place: Place | None = self._lines.place(_frames_of(ops))
        return "" if place is None else str(_in_file(place, self._file))

    def _independent(self, beside: Beside | None, runs: int) -> Independent | None:
        if beside is None or not beside.is_any:
            return None
        ops = self._numbered.all_of_name(beside.op_name)
        seconds = beside.work.seconds(self._topology.flops_per_s, self._topology.memory_bandwidth_bytes_per_s)
        return Independent(short_name(ops[0]) if ops else beside.opcode, self._place(ops), seconds * runs)

    def _bound(self, found: CollectiveOp, cause: Cause) -> Bound | None:
        if cause.site is not None:
            bound = self._bounds.get(cause.site)
            return None if bound is None else bound.times(found.collective.trip_count).of_share(found.share_of_bits)
        if cause.kind in (PARTIAL_SUMS, GRADIENT):
            kept = self._kept.get(found.name, found.collective.bytes_after)
            return sums_bound(found.collective, min(kept, found.collective.bytes_after))
        return None

    def steps(self, entries: Sequence[Entry]) -> tuple[Step, ...]:
        """Returns the steps of the program; `entries` are what the method of that name returns."""
        left: dict[tuple, list[Entry]] = {}
        for op, entry in zip(reversed(self._found.ops), reversed(entries), strict=True):
            left.setdefault((op.name, op.loops), []).append(entry)
        return tuple(self._step(each, left) for each in steps_of(self._program, self._found))

    def _step(self, step: HloStep, left: Mapping[tuple, list[Entry]]) -> Step:
        """Returns a step with its line and its time; `left` has the entries of the collectives to come, last first."""
        match step:
            case Work():
                ops, work = self._numbered.all_of_name(step.op_name), LocalWork(step.flops, step.bytes_moved)
                op = short_name(ops[0]) if ops else step.opcode
                return WorkStep(op, self._place(ops), step.ops, work, roofline_s(self._topology, work))
            case Move():
                entry = left[step.name, step.loops].pop()
                return MoveStep(entry, occupancy(self._topology, self._num_devices, entry.collective))
            case Loop():
                condition, body = (
                    tuple(self._step(each, left) for each in steps) for steps in (step.condition, step.body)
                )
                place, trips = self._place(self._numbered.all_of_name(step.op_name)), step.trip_count
                return LoopStep(step.name, place, trips, condition, body, step.condition_runs, step.body_runs)

    def memory(self, scheduled_text: str | None) -> Moments | None:
        """Returns the memory over the program's instructions; None if the compiler gives no schedule."""
        timeline = None if scheduled_text is None else timeline_of(parse_module(scheduled_text), scheduled_text)
        if timeline is None:
            return None
        moved = [each for each in timeline.moments if each.is_collective]
        return Moments(timeline, {each.name: self._place_of(each) for each in moved})

    def _place_of(self, moment: Moment) -> str:
        return self._place(self._numbered.all_of_name(moment.op_name))

    def _shown(self, frame: Frame) -> Frame:
        """Returns a frame as people are to see it: the name that reshard gives to a step is no function."""
        function = "" if frame.function.startswith(_STEP_PREFIX) else frame.function
        return Frame(function, _in_file(frame.place, self._file))

    def _axes(self, moved: Collective, op: ir.Operation | None) -> tuple[str, ...]:
        """Returns the axes along which devices that work together differ.

        Of several meshes it is the one of the sites at the op; then the one in which the fewest devices lie along such
        axes, since a group of another mesh seems to lie along all axes of this one. Of pairs, that tells nothing.
        """
        sets, sites = moved.groups or moved.pairs, () if op is None else self._sites.get(op, ())
        named = {axis for site in sites for axis in site.axes}
        meshes = [mesh for mesh in self._meshes if named.intersection(mesh.axis_names)] or self._meshes
        found = [(self._lying(mesh, sets), dict(mesh.axes)) for mesh in meshes]
        along = [(math.prod(sizes[axis] for axis in axes) if moved.groups else 0, axes) for axes, sizes in found]
        return min(along, key=operator.itemgetter(0), default=(0, ()))[1]

    def _lying(self, mesh: Mesh, sets: Sequence[Sequence[int]]) -> tuple[str, ...]:
        if (mesh, sets) not in self._axes_of:
            self._axes_of[mesh, sets] = _lying(self._coordinates[mesh], sets)
        return self._axes_of[mesh, sets]


def _lying(coordinates: Mapping[str, np.ndarray], sets: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Returns the axes along which devices of one set differ."""
    sets = [members for members in sets if len(members)]
    ids = np.array([device for members in sets for device in members], np.int64)
    firsts = np.repeat(np.array([members[0] for members in sets], np.int64), [len(members) for members in sets])
    return tuple(name for name, at in coordinates.items() if (at[ids] != at[firsts]).any())


def _coordinates(mesh: Mesh) -> dict[str, np.ndarray]:
    """Returns for each axis the coordinate of each device along it, by device id."""
    shape = tuple(size for _, size in mesh.axes)
    ids = np.array([mesh.device_at(position) for position in range(mesh.size)])
    found = {}
    for axis, (name, _) in enumerate(mesh.axes):
        along = np.empty(mesh.size, np.int64)
        along[ids] = np.indices(shape)[axis].reshape(-1)
        found[name] = along
    return found


def _without_layout(shape: str) -> str:
    """Returns an HLO shape without the order of its dimensions in memory.

    Example:
      >>> _without_layout("(f32[2,4]{1,0}, s32[]{:T(128)})")
      '(f32[2,4], s32[])'
    """
    kept, depth = [], 0
    for letter in shape:
        depth += letter == "{"
        if not depth:
            kept.append(letter)
        depth -= letter == "}"
    return "".join(kept)
