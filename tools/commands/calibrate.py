# SPDX-License-Identifier: Apache-2.0
"""`reshard calibrate`: measures the network at hand and writes it as a topology. jax is imported only to measure."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reshard.planning.byte_sizes import ByteSizeError, byte_size
from reshard.synthesis.common.numbers import bandwidth, counted, percent
from reshard.synthesis.common.text_table import table
from reshard.synthesis.forms.platforms import platform_of
from reshard.tools.common.command import UserError, whole_number

if TYPE_CHECKING:
    from reshard.planning.calibrating import Measured
    from reshard.synthesis.layouts.mesh import Mesh
    from reshard.synthesis.network.calibration import Calibration
    from reshard.synthesis.network.topology import Level

SUMMARY = "measure the network of the devices at hand, and write it as a topology"
EPILOG = """\
examples:
  reshard calibrate --mesh node=2,gpu=4 -o net.toml              the devices that jax finds, as two nodes of four
  reshard calibrate --mesh x=8 --devices 8 -o cpu.toml           eight CPU devices of this host
  srun reshard calibrate --mesh node=2,gpu=8 --distributed -o net.toml   all devices of a job of several processes

exit status: 0 written; 1 an error: fewer devices than the mesh has, an unknown axis, times that do not grow with the
size; 2 the command line has an error; 130 ended by Ctrl-C, with nothing written.
"""
_DIGITS = 3  # of a measured bandwidth
_CPU_SIZES, _SIZES = "1KiB,4KiB,16KiB,256KiB,2MiB,16MiB", "4KiB,64KiB,1MiB,16MiB,256MiB"
_LARGEST = 64 << 30
_KINDS = ("switch", "bus")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mesh",
        required=True,
        metavar="MESH",
        help="the axes to measure, outer to inner, e.g. node=2,gpu=4; each may become a level of the topology",
    )
    parser.add_argument(
        "--devices",
        type=whole_number,
        metavar="N",
        help="measure N CPU devices of this host (default: the devices that jax finds)",
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="call jax.distributed.initialize first; for jobs that srun or mpirun starts",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="SIZES",
        help=f"the tile sizes to measure, each that of the larger of operand and result (default: {_SIZES}; on CPU "
        f"devices {_CPU_SIZES})",
    )
    parser.add_argument(
        "--repeats",
        type=whole_number,
        default=10,
        metavar="N",
        help="repeat each measurement N times and take the median (default: 10)",
    )
    parser.add_argument(
        "--kind",
        type=_kind,
        action="append",
        default=[],
        metavar="AXIS=switch|bus",
        help="the kind of an axis, if you know it; the axis then stays a level of its own; may be repeated",
    )
    parser.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        help="write the topology to FILE as TOML; an old file is replaced (default: stdout)",
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted(set(map(byte_size, text.split(",")))))
    except ByteSizeError:
        raise argparse.ArgumentTypeError(f"cannot read '{text}' as sizes; write {_SIZES}") from None
    if len(sizes) < 2 or not sizes[0]:
        raise argparse.ArgumentTypeError(
            f"'{text}': two or more sizes above 0 tell latency from bandwidth; write {_SIZES}"
        )
    if sizes[-1] > _LARGEST:
        raise argparse.ArgumentTypeError(
            f"'{text}': tiles of at most {_LARGEST >> 30}GiB can be measured; write {_SIZES}"
        )
    return sizes


def _kind(text: str) -> tuple[str, str]:
    axis, _, kind = text.partition("=")
    if not axis or kind not in _KINDS:
        raise argparse.ArgumentTypeError(f"'{text}' is not AXIS=switch or AXIS=bus")
    return axis, kind


def drive(flags: argparse.Namespace) -> int:
    """Returns the exit status. Raises: UserError."""
    from reshard.planning.calibrating import CannotMeasure, TooFewDevices
    from reshard.synthesis.layouts.mesh import Mesh, MeshError
    from reshard.synthesis.network.calibration import CalibrationError
    from reshard.synthesis.network.topology import TopologyError

    try:
        mesh = Mesh.parse(flags.mesh)
        _check(mesh, flags)
        return _calibrated(mesh, flags)
    except TooFewDevices as error:
        raise UserError(f"{error}; {_advice(mesh, flags)}") from None
    except (CannotMeasure, CalibrationError, MeshError, TopologyError) as error:
        raise UserError(str(error)) from None


def _check(mesh: Mesh, flags: argparse.Namespace) -> None:
    """Checks the flags and the mesh before the long measuring begins. Raises: UserError, MeshError."""
    for axis, _ in flags.kind:
        mesh.axis_size(axis)
    if mesh.size == 1:
        raise UserError(f"{mesh} has one device; there is nothing to measure between devices")
    if flags.devices and flags.distributed:
        raise UserError("--devices is for the CPU devices of one process, --distributed for several; choose one")
    if flags.distributed and not flags.output:
        raise UserError("--distributed needs -o FILE: what the processes print gets mixed up")


def _advice(mesh: Mesh, flags: argparse.Namespace) -> str:
    if flags.devices:
        return f"write --devices {mesh.size}"
    if flags.distributed:
        return "start more processes"
    return f"--devices {mesh.size} takes CPU devices of this host, --distributed those of several"


def _calibrated(mesh: Mesh, flags: argparse.Namespace) -> int:
    if flags.devices:
        _ask_for_cpu_devices(flags.devices)
    from reshard.planning import calibrating
    from reshard.synthesis.network import calibration

    is_first = not flags.distributed or _join() == 0
    sizes = flags.sizes or _sizes(_CPU_SIZES if calibrating.platform() == "cpu" else _SIZES)
    probes = calibration.probes(mesh, sizes)
    with _progress(is_first) as progress:
        measured = calibrating.measure(mesh, probes, sizes, repeats=flags.repeats, progress=progress)
        progress("fitting")
        name = Path(flags.output).stem if flags.output else "measured"
        pairs = list(zip(probes, measured.seconds))
        options = {"start_s": measured.start_s, "kinds": dict(flags.kind), "name": name}
        memory = calibration.memory_bandwidth(measured.relayouts, measured.start_s)
        found = calibration.fit(mesh, pairs, memory, slice_bandwidth_bytes_per_s=_slice_bandwidth(measured), **options)
    if not is_first:
        return 0
    free = calibration.share_before_all_to_all(measured.folded, measured.start_s)
    found = replace(
        found, topology=replace(found.topology, free_before_all_to_all=free, **_provenance(mesh, measured, found))
    )
    if flags.output:
        _write(Path(flags.output), found.topology.to_toml())
        print(f"{as_text(mesh, measured, found)}\n\nwritten: {flags.output}")
    else:
        print(as_text(mesh, measured, found), file=sys.stderr)
        print(found.topology.to_toml(), end="")
    return 0


def _slice_bandwidth(measured: Measured) -> float | None:
    """Returns the bytes per second that slices read and write, or None (slices are free).

    Slices are free if their times do not grow with their size.
    """
    from reshard.synthesis.network import calibration

    try:
        return calibration.memory_bandwidth(measured.slices, measured.start_s)
    except calibration.CalibrationError:
        return None


def _join() -> int:
    """Joins the job of several processes, and returns the number of this process in it."""
    import jax

    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise UserError(f"jax.distributed does not start: {' '.join(str(error).split())}; use srun or mpirun") from None
    return jax.process_index()


def _ask_for_cpu_devices(count: int) -> None:
    """Sets the environment so that jax, which is not imported yet, will have `count` CPU devices."""
    from reshard.dialect_utils.platform.compat import cpu_devices_environment

    wanted = cpu_devices_environment(count)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {wanted['XLA_FLAGS']}".strip()
    os.environ.update({**wanted, "XLA_FLAGS": flags})


@contextlib.contextmanager
def _progress(is_shown: bool):
    """Yields a function that shows one line of progress on stderr.

    A terminal has one line, which is overwritten. Elsewhere a line is printed if its first word differs from that of
    the line before.
    """
    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        if not is_shown:
            return
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif text.split()[0] != shown:
            shown = text.split()[0]
            print(text, file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if is_shown and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    """Replaces the file in one step: readers find the old content or the new one, also after an interrupt."""
    new = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as new:
            new.write(text)
        os.chmod(new.name, 0o666 & ~_umask())
        os.replace(new.name, path)
    except BaseException as error:
        if new:
            Path(new.name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _provenance(mesh: Mesh, measured: Measured, found: Calibration) -> dict[str, str]:
    import jax

    errors = found.errors()
    axes = ",".join(f"{name}={size}" for name, size in mesh.axes)
    where = f"{mesh.size} x {measured.device_kind}, jax {jax.__version__}"
    fit = f"fitted with a median error of {percent(np.median(errors))}, at most {percent(errors.max())}"
    return {
        "summary": f"{where}, mesh {axes}",
        "source": f"measured by reshard calibrate; {fit}",
        "platform": platform_of(measured.platform),
    }


# ---- the report


def as_text(mesh: Mesh, measured: Measured, found: Calibration) -> str:
    """Returns the report: measurements beside their predictions, the fitted levels, and the quality of the fit."""
    hosts = counted(measured.hosts, "host")
    where = f"{mesh.size} x {measured.device_kind} ({measured.platform}) as {mesh}, on {hosts}"
    start = f"starting a program: {measured.start_s * 1e6:.1f} us, taken off each time"
    slices = found.topology.slice_bandwidth_bytes_per_s
    sliced = "slices are free" if slices is None else f"{bandwidth(slices, _DIGITS)} in slices"
    free = found.topology.free_before_all_to_all
    folded = f"; right before an all_to_all {percent(free)} of that is free" if free else ""
    memory = f"memory: {bandwidth(found.topology.memory_bandwidth_bytes_per_s, _DIGITS)} in relayouts, {sliced}{folded}"
    further = (f"{each * 1e6:.1f} us more for {kind}" for kind, each in found.topology.further_launch_s)
    launch = ", ".join([f"launch: {found.topology.launch_latency_s * 1e6:.1f} us", *further])
    parts = [
        f"{where}\n{start}; {memory}; {launch}",
        _kinds_table(found),
        _levels_table(found),
        *_remarks(measured, found),
    ]
    return "\n\n".join([*parts, _quality(found)])


def _kinds_table(found: Calibration) -> str:
    headings = ("axes", "step", "latency", "predicted", "us per MiB", "predicted", "error: median", "max")
    rows = [
        (
            ",".join(row.axes),
            row.text,
            *(f"{each * 1e6:.1f} us" for each in (row.measured[0], row.predicted[0])),
            *(f"{each * 1e6 * (1 << 20):.1f}" for each in (row.measured[1], row.predicted[1])),
            percent(np.median(row.errors)),
            percent(max(row.errors)),
        )
        for row in found.rows
    ]
    return table(headings, rows, "llrrrrrr")


def _levels_table(found: Calibration) -> str:
    headings = ("level", "axes", "size", "kind", "bandwidth", "shared by a unit", "latency", "slower than that")
    rows = [
        (
            level.name,
            ",".join(axes),
            str(level.size),
            level.kind,
            bandwidth(level.bandwidth_bytes_per_s, _DIGITS),
            bandwidth(level.shared_bandwidth_bytes_per_s, _DIGITS),
            f"{level.latency_s * 1e6:.1f} us",
            ", ".join(f"{kind} x{factor:.2f}" for kind, factor in _slowdowns(level)) or "-",
        )
        for level, axes in zip(found.topology.levels, found.axes_of_levels)
    ]
    return table(headings, rows, "llrlrrrl")


def _slowdowns(level: Level) -> list[tuple[str, float]]:
    return [*level.slowdown, *((f"{kind} in pairs", factor) for kind, factor in level.slowdown_in_pairs)]


def _remarks(measured: Measured, found: Calibration) -> list[str]:
    lines = [
        f'axes {", ".join(axes)} behave alike: they are one level, "{level.name}"'
        for level, axes in zip(found.topology.levels, found.axes_of_levels)
        if len(axes) > 1
    ]
    lines += [
        f'level "{level.name}": a device\'s own part takes as long as what others send, as within one memory'
        for level in found.topology.levels
        if level.copies_own
    ]
    lines += [
        f'level "{level.name}": an all_to_all takes {level.message_s * 1e6:.1f} us or more for each partner of a device'
        for level in found.topology.levels
        if level.message_s
    ]
    if found.topology.rings:
        lines.append(
            f"{', '.join(found.topology.rings)}: across levels they take what one ring around all devices takes"
        )
    if measured.platform == "cpu" and measured.hosts == 1:
        lines.append(
            "all devices are CPU devices of one host, which has no hierarchy: they share its cores and its memory"
        )
        if len(found.topology.levels) > 1:
            lines.append("so the levels above differ by how the backend runs the groups, not by their links")
    return ["\n".join(lines)] if lines else []


def _quality(found: Calibration) -> str:
    lines = [f"fit: {_errors_text(found.errors())}"]
    if len(unseen := found.errors(is_fitted=False)):
        lines.append(f"not fitted (a pair alone, all axes together): {_errors_text(unseen)}")
    return "\n".join(lines)


def _errors_text(errors: np.ndarray) -> str:
    return (
        f"{len(errors)} times, predicted with a median error of {percent(np.median(errors))}, "
        f"at most {percent(errors.max())}"
    )
