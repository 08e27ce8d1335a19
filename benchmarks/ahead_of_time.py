# SPDX-License-Identifier: Apache-2.0
"""Compiles programs, stock and ours, for targets that need not be there, and prints their compilers' numbers.

    python benchmarks/ahead_of_time.py [--targets tpu:v5e:2x4,...] [--programs NAME,...] [--size large]
        [--policy better] [--emit auto] [--memory-limit device] [--journal FILE.jsonl] [--out FILE.md]

The programs are those of `python -m benchmarks.programs list`. Each is lowered for a mesh with its own axes; the
smallest axis is doubled until the mesh has as many devices as the target, or others where arrays do not divide. Then
the program goes through the pipeline and the whole-module check, as in `reshard-opt --compile-for=TARGET`. TPU targets
need libtpu; cuda targets need jax's CUDA plug-in. Answers of compilers are cached on disk; with `RESHARD_CACHE=off`
they are asked again. A run with a journal that was stopped goes on where it ended. The exit status is 1 if a program
fails, needs more memory than stock and than the limit, or is more than 2 % longer by the compiler's own
estimate.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from benchmarks.harness.journal import Journal  # noqa: E402
from benchmarks.harness.progress import replace_line  # noqa: E402
from benchmarks.programs.catalogue import every_program  # noqa: E402
from benchmarks.programs.program import Program  # noqa: E402
from reshard.dialect_utils.ir.diagnostics import DiagnosedError  # noqa: E402
from reshard.dialect_utils.platform.bindings import ir, make_context  # noqa: E402
from reshard.dialect_utils.platform.typed import present  # noqa: E402
from reshard.dialect_utils.xla.child import (  # noqa: E402
    DEFAULT_TIMEOUT_S,
    Compiled,
    XlaChild,
    comparable_estimates,
    shown_estimates,
)
from reshard.dialect_utils.xla.compile_targets import Target, TargetError, compiler_version, missing_compiler  # noqa: E402
from reshard.passes.driver.base import RunOptions, Session  # noqa: E402
from reshard.passes.driver.pipeline import Pipeline  # noqa: E402
from reshard.passes.results.checks import checked, placed  # noqa: E402
from reshard.passes.sites.network import SiteNetwork, of_target  # noqa: E402
from reshard.passes.sites.oracle import (
    BETTER,  # noqa: E402
    POLICIES,  # noqa: E402
)
from reshard.passes.whole_module.module_cost import (
    LONGER_ESTIMATE,  # noqa: E402
    ModuleCriterion,  # noqa: E402
)
from reshard.planning.byte_sizes import memory_limit  # noqa: E402
from reshard.synthesis.common.numbers import mebibytes  # noqa: E402
from reshard.synthesis.common.text_table import markdown_table  # noqa: E402
from reshard.synthesis.forms.platforms import platform_of  # noqa: E402
from reshard.tools.common.command import memory  # noqa: E402

MOST_DEVICES = 256  # the programs' arrays of sizes "large" and "pod" divide over so many
_TARGETS = "tpu:v5e:2x4,tpu:v5p:2x2x2"
_HEADINGS = (
    "program", "mesh", "sites rewritten", "pipelines", "received, stock", "ours", "memory, stock", "ours",
    "estimate in us, stock", "ours", "ours / stock", "modelled in us, stock", "ours", "ours / stock",
    "compiled in s, stock", "ours", "passes and check in s", "forms compiled",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """What a target's compiler makes of a module. Bytes per device, None where they are unknown.

    Attributes:
      problem: why it does not compile; empty if it does.
      received, final_received: right after partitioning, and in the final program.
      memory: all that limits count, see `Compiled.limited_bytes`.
      estimate_us: the length of the compiler's own schedule, with our time for reduce_scatters that it has for free
        where stock's and ours are compared. modelled_us: the modelled time of the final program.
      compile_s: of one compilation.
    """

    problem: str = ""
    received: int | None = None
    final_received: int | None = None
    memory: int | None = None
    estimate_us: float | None = None
    modelled_us: float | None = None
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One program on one target; no sides if the work ended with `problem`.

    Attributes:
      left: in words, what the check left to XLA although the sites' own judgement was to rewrite it.
      seconds: the time of the passes and the check together.
      overlapped: the collectives next to products that are pipelines.
      forms: how many rewritten modules the target's compiler has compiled, but for those with more pipelines.
    """

    name: str
    target: str
    mesh: str
    sites: int = 0
    rewritten: int = 0
    stock: Side | None = None
    ours: Side | None = None
    left: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str = ""
    overlapped: int = 0
    forms: int = 0

    @classmethod
    def from_dict(cls, fields: dict) -> Row:
        """Returns the row that `dataclasses.asdict` made a dictionary of."""
        sides = {name: fields[name] and Side(**fields[name]) for name in ("stock", "ours")}
        return cls(**{**fields, **sides, "left": tuple(fields["left"])})


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.if_installed:
        options.targets = list(_compilable(options.targets))
    if not options.targets:
        return 0
    have_cpu_devices()
    rows = list(_rows(options))
    text = "\n\n".join(_markdown(rows, options.targets))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any(is_worse(row, limit=_limit(options.memory_limit, row.target)) for row in rows))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    journal = Journal(options.journal) if options.journal else None
    pairs = [(target, entry) for target in options.targets for entry in options.programs]
    for number, (target, entry) in enumerate(pairs, 1):
        replace_line(f"{number} of {len(pairs)}: {entry.name} on {target}")
        size = options.size if options.size in entry.sizes else entry.sizes[-1]
        limit = f" {options.memory_limit}" if options.memory_limit else ""
        how = f"{options.policy} {options.emit} {compiler_version(target)}{limit}"
        question = f"{entry.name} {size} {target} {how}"
        if journal and (kept := journal.get(question)):
            yield Row.from_dict(kept)
            continue
        row = _measured(entry, target, options, size, child_for(options.timeout))
        if journal:
            journal.add(question, asdict(row))
        yield row
    replace_line("")


def _limit(limit: str | None, target: str) -> int:
    """Returns the bytes per device that a limit allows on a target; 0 without a limit."""
    return 0 if limit is None else memory_limit(limit, SiteNetwork(of_target(Target.parse(target))).topology)


def is_worse(row: Row, *, limit: int = 0) -> bool:
    """Returns whether a program fails, needs more memory than stock and than a limit in bytes, or is longer by the
    compiler's own estimate."""
    if row.stock is None or row.ours is None:
        return True
    if row.stock.problem:
        return False
    then, now = row.stock.estimate_us, row.ours.estimate_us
    is_longer = then is not None and now is not None and now > then * (1 + LONGER_ESTIMATE)
    if row.ours.problem or is_longer:
        return True
    return present(row.ours.memory) > max(present(row.stock.memory), limit)


def _compilable(targets: Sequence[Target]) -> Iterator[Target]:
    """Yields the targets whose compiler is installed, and prints the reason for each target that it leaves out."""
    for target in targets:
        problem = missing_compiler(target)
        if problem:
            print(f"skipped: {problem}")
        else:
            yield target


def have_cpu_devices() -> None:
    """Sets the number of jax's CPU devices; jax reads it only once, when its devices are first needed."""
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={MOST_DEVICES}"
    )
    jax.config.update("jax_platforms", "cpu")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=targets_of, default=_TARGETS, help=f"default: {_TARGETS}")
    parser.add_argument("--programs", type=programs_of, help="default: all whose libraries are installed")
    parser.add_argument("--size", default="large", help="of programs that have it; others have their largest one")
    parser.add_argument("--emit", choices=("manual", "auto"), default="auto")
    parser.add_argument("--policy", choices=tuple(POLICIES), default="better", help="the policy of plan-sites")
    parser.add_argument(
        "--memory-limit", type=memory, metavar="SIZE", help="as of reshard-opt; more memory is no fault"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", default=DEFAULT_TIMEOUT_S, help="of one compilation (%(default)s)"
    )
    parser.add_argument("--journal", type=Path, metavar="FILE.jsonl", help="keep rows here, and read those it has")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables to this file")
    parser.add_argument(
        "--if-installed", action="store_true", help="skip targets whose compiler is not installed, and say so"
    )
    options = parser.parse_args(arguments)
    missing = next(filter(None, map(missing_compiler, options.targets)), None)
    if missing and not options.if_installed:
        parser.error(f"argument --targets: {missing}")
    options.programs = options.programs or [each for each in every_program() if not each.missing]
    return options


def targets_of(text: str) -> list[Target]:
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
        target.devices <= MOST_DEVICES and doublings >= 1 and doublings.is_integer() and int(doublings).bit_count() == 1
    )
    return "" if fits else f"{target} has {target.devices} devices; the programs want 8, 16, ... or {MOST_DEVICES}"


def programs_of(text: str) -> list[Program]:
    known = {each.name: each for each in every_program()}
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"no program is called {name!r}; there are {', '.join(known)}")
        if missing := known[name].missing:
            raise argparse.ArgumentTypeError(f"{name} needs {', '.join(missing)}")
    return [known[name] for name in text.split(",")]


@cache
def child_for(timeout_s: float) -> XlaChild:
    """Returns a child process whose compilations count as a hang only after so many seconds."""
    child = XlaChild()
    child.compile = partial(child.compile, timeout_s=timeout_s)
    child.estimated = partial(child.estimated, timeout_s=timeout_s)
    return child


def _measured(entry: Program, target: Target, options: argparse.Namespace, size: str, child: XlaChild) -> Row:
    axes, lowered = entry.lower_over(target.devices, size)
    mesh = ", ".join(f"{name}={size}" for name, size in axes)
    how = options.emit, options.policy, child, options.memory_limit
    return measured(entry.name, mesh, lowered.as_text(), target, *how)


def measured(
    name: str,
    mesh: str,
    text: str,
    target: Target,
    emit: str,
    policy: str,
    child: XlaChild,
    limit: str | None = None,
) -> Row:
    """Returns what a target's compiler makes of a module, as it is and after the passes and the check.

    Args:
      mesh: in words. text: the module. emit, policy, limit: as of `reshard-opt`, the last one of memory.
    """
    session = Session(RunOptions(compile_for=target, xla_child=child))
    network = {name: text for name, text in (("topology", of_target(target)),) if text}
    given = {"policy": policy, "platform": platform_of(target.platform), **network}
    if limit is not None:
        given["memory-limit"] = str(_limit(limit, str(target)))
    pipeline = Pipeline.emitting(emit, given)
    start_s = time.perf_counter()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        pipeline = placed(pipeline, lambda: ir.Module.parse(text), session)
        try:
            pipeline.run(module, session)
            rows = list(session.results.report_rows)
            checked(lambda: ir.Module.parse(text), module, pipeline, session, rows, compiles=True, value_bytes=None)
        except DiagnosedError as error:
            return Row(name, str(target), mesh, problem=str(error).splitlines()[0])
    if not session.results.checks:  # the target's compiler refuses the module both ways
        refused = Side(_shortened(session.remarks[-1].message))
        return Row(name, str(target), mesh, stock=refused, ours=refused)
    (check,), rows = session.results.checks, session.results.report_rows
    seconds = time.perf_counter() - start_s
    pipelines = [row for row in rows if row["kind"] == "overlap"]
    rewritten, overlapped = (
        sum(bool(row.get("is_rewritten")) for row in each)
        for each in ([row for row in rows if row["kind"] != "overlap"], pipelines)
    )
    stock, ours = sides_of(check.stock, check.ours, target, SiteNetwork(check.topology))
    left = tuple(f"{_numbered(sites)}: {problem}" for sites, problem in check.dropped)
    sites = len(rows) - len(pipelines)
    return Row(name, str(target), mesh, sites, rewritten, stock, ours, left, seconds, "", overlapped, check.attempts)


def sides_of(stock: Compiled, ours: Compiled, target: Target, network: SiteNetwork | None = None) -> tuple[Side, Side]:
    """Returns the numbers of what a target's compiler makes of two forms of a module.

    Args:
      network: that times are modelled on; None: that of the target, with devices in the order of their places.
    """
    network, estimates = network or SiteNetwork(of_target(target)), shown_estimates(stock, ours)
    if comparable_estimates(stock, ours) is not None:
        with_all_us = ModuleCriterion(BETTER, network, target.devices).estimates_us(stock, ours)
        estimates = (1e-6 * with_all_us[0], 1e-6 * with_all_us[1])
    return _side_of(stock, target, network, estimates[0]), _side_of(ours, target, network, estimates[1])


def _side_of(compiled: Compiled, target: Target, network: SiteNetwork, estimate: float | None) -> Side:
    if not compiled.is_ok:
        return Side(_shortened(f"{compiled.status}: {compiled.message}"))
    modelled = network.final_time_of(compiled, target.devices)
    return Side(
        received=compiled.bytes_received,
        final_received=None if compiled.final_unpriced else compiled.final_bytes_received,
        memory=compiled.limited_bytes,
        estimate_us=None if estimate is None else estimate * 1e6,
        modelled_us=modelled and modelled.seconds * 1e6,
        compile_s=compiled.compile_seconds,
    )


def _shortened(message: str) -> str:
    """Returns the first line of a problem; that a program is too large for its target in a few words."""
    line = message.strip().splitlines()[0]
    return "too large for the target's memory" if "RESOURCE_EXHAUSTED" in line else line


def _numbered(sites: Sequence[int]) -> str:
    return f"{'site' if len(sites) == 1 else 'sites'} {', '.join(map(str, sites))}"


def _markdown(rows: Sequence[Row], targets: Sequence[Target]) -> Iterator[str]:
    for target in targets:
        own = [row for row in rows if row.target == str(target)]
        lines = [markdown_table(_HEADINGS, [_cells(row) for row in own], "ll" + "r" * (len(_HEADINGS) - 2))]
        yield "\n".join([f"### {target}, {target.devices} devices", "", *lines])
        if left := [f"- {row.name}, {text}" for row in own for text in row.left]:
            yield "\n".join(["Left to XLA again by the check:", "", *left])


def _cells(row: Row) -> tuple[str, ...]:
    first = (row.name, row.mesh, f"{row.rewritten} of {row.sites}")
    if row.stock is None or row.ours is None or row.stock.problem:
        problem = row.problem or (row.stock.problem if row.stock else "")
        return (*first[:2], problem, *[""] * (len(_HEADINGS) - 3))
    stock, ours = row.stock, row.ours
    return (
        *first, str(row.overlapped),
        _received(stock), _received(ours),
        _mib(stock.memory), _mib(ours.memory),
        _us(stock.estimate_us), _us(ours.estimate_us), _ratio(stock.estimate_us, ours.estimate_us),
        _us(stock.modelled_us), _us(ours.modelled_us), _ratio(stock.modelled_us, ours.modelled_us),
        f"{stock.compile_s:.1f}", f"{ours.compile_s:.1f}", f"{row.seconds:.1f}", str(row.forms),
    )  # fmt: skip


def _received(side: Side) -> str:
    """Returns the bytes that the final program receives; between slices they have no size there."""
    return "crosses slices" if side.final_received is None and not side.problem else _mib(side.final_received)


def _mib(num_bytes: int | None) -> str:
    return mebibytes(num_bytes, 2, missing="")


def _us(time_us: float | None) -> str:
    return "none" if time_us is None else f"{time_us:,.0f}"


def _ratio(then: float | None, now: float | None) -> str:
    return f"{now / then:.3f}" if then and now is not None else ""


if __name__ == "__main__":
    sys.exit(main())
