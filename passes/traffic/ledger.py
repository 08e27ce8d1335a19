# SPDX-License-Identifier: Apache-2.0
"""The ledger of a program: its collectives after partitioning, each with its line, its cause, its bytes and its time.

The program is compiled with stock XLA from a copy whose locations are numbers (`op_numbers`), so each collective names
the op for which XLA made it. The cause is told from that op and from the sites that `find-mismatches` finds at it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reshard.dialect_utils.analysis.layout_check import devices_of, meshes_of
from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Place, error_at, place_of
from reshard.dialect_utils.ir.ops import CONSTANTS, ops_in
from reshard.dialect_utils.ir.source_lines import Frame, SourceLines, frames_of
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.dialect_utils.xla.child import Compiled, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.dialect_utils.xla.hlo_collectives import CollectiveOp, collectives_in
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import Finding, read_findings
from reshard.passes.traffic.causes import UNKNOWN, Cause, SiteAt, cause_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network import cost
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

NO_LINE, NO_AXES, NO_LEVEL = "(no line)", "(devices)", "(none)"
_STEP_PREFIX = "reshard/"
_NO_FILE = "-"  # what MLIR calls the file of text that it did not read from a file
_NUMBER_IN_QUOTES = re.compile(r'"(?:[^"\s]*/)?reshard\.op/\d+"')


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

    @property
    def runs(self) -> int:
        return self.collective.trip_count


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
    """

    entries: tuple[Entry, ...]
    topology: Topology
    num_devices: int
    compiled: Compiled
    bytes_received: int = 0
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

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
    file: str = _NO_FILE,
) -> Ledger:
    """Returns the ledger of a module as stock XLA compiles it. The module stays as it is.

    Args:
      topology: the network; open levels are fitted to the devices of the module.
      target: the target to compile for; None for CPU devices.
      finds_sites: whether the sites of the module are looked for. A module that has been rewritten has other numbers
        of sites than its original, so nobody asks for them there.
      file: the name to show for the file of a module that was read as text without one.
    Raises:
      TopologyError: the topology does not fit the devices.
      DiagnosedError: the module has no function @main.
    """
    main, num_devices = _main_of(module), partitions_of(module)
    network = topology.fitted(num_devices)
    numbered = NumberedOps(module)
    compiled = child.compile(numbered.text, num_devices, target=target, keeps_hlo=True, keeps_locations=True)
    if not compiled.is_ok:
        said = replace(compiled, message=_with_places(compiled.message, numbered, file))
        return Ledger((), network, num_devices, said)
    found = collectives_in(present(compiled.hlo_text))
    sites, meshes = _sites(numbered, module) if finds_sites else ({}, meshes_of(module))
    reader = _Reader(module, main, numbered, sites, meshes, network, found.num_devices, file)
    entries = sorted(map(reader.entry, found.ops), key=lambda entry: (-entry.seconds, -entry.bytes_received))
    return Ledger(
        tuple(entries),
        network,
        num_devices,
        compiled,
        found.bytes_received,
        found.unknown_trip_counts,
        found.unpriced,
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


def _main_of(module: ir.Module) -> ir.Operation:
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


def _sites(numbered: NumberedOps, module: ir.Module) -> tuple[dict[ir.Operation, list[SiteAt]], Mapping[str, Mesh]]:
    """Returns the sites of a module by its ops, and the meshes whose axes they name; no site where the passes refuse
    the module."""
    with module.context:
        copy = ir.Module.parse(numbered.text)
    try:
        Pipeline.parse("import-gspmd,find-mismatches").run(copy, Session())
        findings = read_findings(copy)
    except DiagnosedError:
        return {}, meshes_of(module)
    sites: dict[ir.Operation, list[SiteAt]] = {}
    for edge in findings.edges if findings else ():
        op = numbered.of_name(str(edge.op.location))
        if op is not None:
            sites.setdefault(op, []).append(SiteAt(edge.site, edge.why, _moved_axes(edge), edge.number))
    return sites, meshes_of(copy)


def _moved_axes(edge: Finding) -> frozenset[str]:
    """Returns the axes that split other dimensions before the conversion than after it."""
    source, target = (
        {(dim, axis) for dim, axes in enumerate(sharding_from_attr(attr).dims) for axis in axes}
        for attr in (edge.source, edge.target)
    )
    return frozenset(axis.name for _, axis in source ^ target)


class _Reader:
    """Makes entries of the collectives of one program."""

    def __init__(
        self,
        module: ir.Module,
        main: ir.Operation,
        numbered: NumberedOps,
        sites: Mapping[ir.Operation, Sequence[SiteAt]],
        meshes: Mapping[str, Mesh],
        topology: Topology,
        num_devices: int,
        file: str,
    ):
        self._file, self._return = file, list(main.regions[0].blocks[0].operations)[-1].operation
        self._numbered, self._sites, self._topology, self._num_devices = numbered, sites, topology, num_devices
        self._meshes = [mesh for mesh in meshes.values() if mesh.size == num_devices]
        self._coordinates = {mesh: _coordinates(mesh) for mesh in self._meshes}
        self._axes_of: dict[tuple, tuple[str, ...]] = {}
        self._lines = SourceLines(frames_of(op) for op in ops_in(module.operation) if op.name not in CONSTANTS)

    def entry(self, found: CollectiveOp) -> Entry:
        moved = found.collective
        ops = self._numbered.all_of_name(found.op_name) if found.result is None else [self._return]
        op = ops[0] if ops else None
        frames = next(filter(None, map(frames_of, ops)), ())  # of library functions only the calls may have lines
        place: Place | None = self._lines.place(frames)
        axes = self._axes(moved, op)
        level = cost.crossed_level(self._topology, self._num_devices, moved)
        return Entry(
            moved,
            found.name,
            _without_layout(found.shape),
            op.name if op is not None else "",
            "" if place is None else str(_in_file(place, self._file)),
            tuple(str(self._shown(frame)) for frame in frames),
            cause_of(moved.kind, op, axes, self._sites, found.result),
            ", ".join(axes) or NO_AXES,
            level.name if level else "",
            traffic.bytes_received([moved], self._num_devices),
            cost.collective_time_s(self._topology, self._num_devices, moved),
        )

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
