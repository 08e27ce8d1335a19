# SPDX-License-Identifier: Apache-2.0
"""Compiles the examples, stock and ours, for targets that need not be there, and prints their compilers' numbers.

    python benchmarks/ahead_of_time.py [--targets tpu:v5e:4x4,...] [--programs NAME,...] [--policy better] [--out
    FILE.md]

Each program is lowered for a mesh with its own axes; the smallest axis is doubled until the mesh has as many devices as
the target. Then the program goes through the pipeline and the whole-module check, as in `reshard-opt
--compile-for=TARGET`. TPU targets need libtpu; cuda targets need jax's CUDA plug-in. Answers are cached on disk; with
`RESHARD_CACHE=off` the compilers are asked again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from benchmarks.harness.progress import replace_line  # noqa: E402
from examples.programs import PROGRAMS, Program, program  # noqa: E402
from reshard.dialect_utils.ir.diagnostics import DiagnosedError  # noqa: E402
from reshard.dialect_utils.platform.bindings import ir, make_context  # noqa: E402
from reshard.dialect_utils.xla.child import Compiled  # noqa: E402
from reshard.dialect_utils.xla.compile_targets import Target, TargetError, missing_compiler  # noqa: E402
from reshard.passes.driver.base import RunOptions, Session  # noqa: E402
from reshard.passes.driver.pipeline import Pipeline  # noqa: E402
from reshard.passes.results import whole_module_check  # noqa: E402
from reshard.passes.results.whole_module_check import Check  # noqa: E402
from reshard.synthesis.common.numbers import mebibytes  # noqa: E402
from reshard.synthesis.common.text_table import markdown_table  # noqa: E402

_MOST_DEVICES = 256  # the programs' arrays of size "pod" divide over so many
_TARGETS = "tpu:v5e:4x4,tpu:v5p:4x4x4,tpu:v5e:8x8:2"
_HEADINGS = (
    "program", "mesh", "sites rewritten", "received, stock", "ours", "in the final program, stock", "ours",
    "temporaries, stock", "ours", "peak, stock", "ours", "compiled in s, stock", "ours",
    "estimate in us, stock", "ours",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One program on one target; `check` is None if the work ended with `problem`.

    `seconds` is the time of the passes and the check together.
    """

    name: str
    target: Target
    mesh: str
    sites: int
    rewritten: int
    check: Check | None
    seconds: float
    problem: str = ""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.if_installed:
        options.targets = list(_compilable(options.targets))
    if not options.targets:
        return 0
    _have_cpu_devices()
    rows = []
    for number, (target, entry) in enumerate((t, e) for t in options.targets for e in options.programs):
        replace_line(f"{number + 1} of {len(options.targets) * len(options.programs)}: {entry.name} on {target}")
        rows.append(_measured(entry, target, options.policy))
    replace_line("")
    text = "\n\n".join(_markdown(rows, options.targets))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any(row.check is None for row in rows))


def _compilable(targets: Sequence[Target]) -> Iterator[Target]:
    """Yields the targets whose compiler is installed, and prints the reason for each target that it leaves out."""
    for target in targets:
        problem = missing_compiler(target)
        if problem:
            print(f"skipped: {problem}")
        else:
            yield target


def _have_cpu_devices() -> None:
    """Sets the number of jax's CPU devices; jax reads it only once, when its devices are first needed."""
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={_MOST_DEVICES}"
    )
    jax.config.update("jax_platforms", "cpu")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=_targets, default=_TARGETS, help=f"default: {_TARGETS}")
    parser.add_argument(
        "--programs", type=_programs, default=",".join(each.name for each in PROGRAMS), help="default: all"
    )
    parser.add_argument("--policy", choices=("better", "always"), default="better", help="the policy of plan-sites")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables to this file")
    parser.add_argument(
        "--if-installed", action="store_true", help="skip targets whose compiler is not installed, and say so"
    )
    options = parser.parse_args(arguments)
    missing = next(filter(None, map(missing_compiler, options.targets)), None)
    if missing and not options.if_installed:
        parser.error(f"argument --targets: {missing}")
    return options


def _targets(text: str) -> list[Target]:
    try:
        targets = [Target.parse(each) for each in text.split(",")]
    except TargetError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    for target in targets:
        if problem := _unfit(target):
            raise argparse.ArgumentTypeError(problem)
    return targets


def _unfit(target: Target) -> str:
    doublings = target.devices / 8
    fits = (
        target.devices <= _MOST_DEVICES
        and doublings >= 1
        and doublings.is_integer()
        and int(doublings).bit_count() == 1
    )
    return "" if fits else f"{target} has {target.devices} devices; the programs want 8, 16, ... or {_MOST_DEVICES}"


def _programs(text: str) -> list[Program]:
    try:
        return [program(each) for each in text.split(",")]
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def scaled_axes(axes: Sequence[tuple[str, int]], devices: int) -> tuple[tuple[str, int], ...]:
    """Returns a mesh's axes for more devices: it doubles the smallest axis, the outermost of equal ones, in turn.

    Example:
      >>> scaled_axes((("data", 2), ("fsdp", 2), ("tensor", 2)), 64)
      (('data', 4), ('fsdp', 4), ('tensor', 4))
    """
    names, sizes = zip(*axes)
    scaled = list(sizes)
    while np.prod(scaled) < devices:
        scaled[scaled.index(min(scaled))] *= 2
    return tuple(zip(names, scaled))


def lowered_text(entry: Program, axes: Sequence[tuple[str, int]]) -> str:
    """Returns the text of the program of size "pod", lowered for a mesh with the given axes."""
    names, sizes = zip(*axes)
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh(sizes, names, axis_types=kinds, devices=jax.devices()[: np.prod(sizes)])
    function, arguments = entry.build(mesh, size="pod")
    return function.lower(*arguments).as_text()


def _measured(entry: Program, target: Target, policy: str) -> Row:
    axes = scaled_axes(entry.mesh_axes, target.devices)
    text, mesh = lowered_text(entry, axes), ", ".join(f"{name}={size}" for name, size in axes)
    session = Session(RunOptions(compile_for=target))
    pipeline = Pipeline.emitting("manual", {"policy": policy})
    start_s = time.perf_counter()
    problem = ""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        try:
            pipeline.run(module, session)
            whole_module_check.check(ir.Module.parse(text), module, pipeline, session, session.results.report_rows)
        except DiagnosedError as error:
            problem = str(error).splitlines()[0]
    seconds = time.perf_counter() - start_s
    rewritten = sum(bool(row.get("is_rewritten")) for row in session.results.report_rows)
    check = session.results.checks[0] if session.results.checks else None
    return Row(entry.name, target, mesh, len(session.results.report_rows), rewritten, check, seconds, problem)


def _markdown(rows: list[Row], targets: list[Target]) -> Iterator[str]:
    for target in targets:
        own = [row for row in rows if row.target == target]
        lines = [markdown_table(_HEADINGS, [_cells(row) for row in own], "ll" + "r" * (len(_HEADINGS) - 2))]
        yield "\n".join([f"### {target}, {target.devices} devices", "", *lines])
        if given_back := [text for row in own for text in _given_back(row)]:
            yield "\n".join(["Left to XLA again by the check:", "", *given_back])


def _cells(row: Row) -> tuple[str, ...]:
    first = (row.name, row.mesh, f"{row.rewritten} of {row.sites}")
    if row.check is None:
        return (*first, row.problem, *[""] * (len(_HEADINGS) - 4))
    stock, ours = row.check.stock, row.check.ours
    cells = zip(_costs(stock), _costs(ours), strict=True)
    return (*first, *(cell for pair in cells for cell in pair))


def _costs(compiled: Compiled) -> tuple[str, ...]:
    if not compiled.is_ok:
        return (compiled.status, "", "", "", "", "")
    estimate = compiled.estimated_seconds
    final = "crosses slices" if compiled.final_unpriced else _mib(compiled.final_bytes_received)
    sizes = _mib(compiled.bytes_received), final, _mib(compiled.temp_bytes), _mib(compiled.peak_memory_bytes)
    return (*sizes, f"{compiled.compile_seconds:.1f}", "none" if estimate is None else f"{estimate * 1e6:,.0f}")


def _mib(num_bytes: int | None) -> str:
    return mebibytes(num_bytes, 2, missing="")


def _given_back(row: Row) -> Iterator[str]:
    for sites, problem in row.check.dropped if row.check else ():
        noun = "site" if len(sites) == 1 else "sites"
        yield f"- {row.name}, {noun} {', '.join(map(str, sites))}: {problem}"


if __name__ == "__main__":
    sys.exit(main())
