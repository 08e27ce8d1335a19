# SPDX-License-Identifier: Apache-2.0
"""Compiles programs for targets that need not be there: as their authors annotated them, and laid out from nothing.

    python -m benchmarks.whole_modules.automatic_targets [--targets tpu:v5e:2x4,...] [--programs NAME,...]
        [--size large] [--limit 1.0] [--meshes 1] [--journal FILE.jsonl] [--out FILE.md]

It is `automatic` with another judge: the target's own compiler. The annotated program goes through the compiler as it
is and after `reshard-opt --compile-for=TARGET`. Then its shardings are taken out, and it is laid out as
`reshard auto --compile-for=TARGET` does, with a memory limit of `--limit` times what the annotated stock program needs.
The exit status is 1 if a program fails, needs more memory, or is more than 2 % longer by the compiler's own estimate
than the annotated stock program.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import ahead_of_time
from benchmarks.ahead_of_time import Row, Side
from benchmarks.harness.journal import Journal
from benchmarks.harness.progress import replace_line
from benchmarks.programs.catalogue import every_program
from benchmarks.programs.program import Program
from reshard.compiling.automatic import choose
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S
from reshard.dialect_utils.xla.compile_targets import Target, compiler_version
from reshard.passes.layouts.choosing import mesh_text, meshes_for
from reshard.passes.sites.network import SiteNetwork, of_target
from reshard.passes.whole_module.module_cost import LONGER_ESTIMATE
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.layouts.mesh import Mesh

_HEADINGS = (
    "program", "annotated mesh", "mesh", "estimate in us: annotated, stock", "ours", "auto", "stock / auto",
    "ours / auto", "modelled in us: stock", "ours", "auto", "stock / auto", "received MiB: stock", "ours", "auto",
    "memory MiB: stock", "ours", "auto", "s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A program on a target: as its authors annotated it, and with layouts that were chosen.

    Attributes:
      seconds: that the choice took, with its compilations. problem: why there are none; empty if there are.
      limit: of the memory, times that of the annotated stock program.
    """

    annotated: Row
    automatic: Row | None = None
    seconds: float = 0.0
    problem: str = ""
    limit: float = 1.0

    @property
    def sides(self) -> tuple[Side, Side, Side] | None:
        """Returns what the compiler makes of the annotated program, stock and ours, and of the one laid out."""
        found = self.annotated.stock, self.annotated.ours, self.automatic and self.automatic.ours
        return None if None in found or any(each and each.problem for each in found) else found  # pyright: ignore

    @property
    def is_worse(self) -> bool:
        if not self.sides:
            return True
        stock, _, auto = self.sides
        then, now = stock.estimate_us, auto.estimate_us
        is_longer = then is not None and now is not None and now > then * (1 + LONGER_ESTIMATE)
        return is_longer or present(auto.memory) > present(stock.memory) * self.limit


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    ahead_of_time.have_cpu_devices()
    pairs = list(_pairs(options))
    text = "\n\n".join(_markdown(pairs, options.targets))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any(each.is_worse for each in pairs))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=ahead_of_time.targets_of, default="tpu:v5e:2x4", help="default: tpu:v5e:2x4")
    parser.add_argument("--programs", type=ahead_of_time.programs_of, help="default: all whose libraries are installed")
    parser.add_argument("--size", default="large", help="of programs that have it; others have their largest one")
    parser.add_argument("--limit", type=float, default=1.0, help="of the memory, times that of the annotated program")
    parser.add_argument("--meshes", type=int, default=1, help="shapes of a mesh that are laid out")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=DEFAULT_TIMEOUT_S, help="of a compilation")
    parser.add_argument("--journal", type=Path, metavar="FILE.jsonl", help="keep rows here, and read those it has")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables to this file")
    options = parser.parse_args(arguments)
    options.programs = options.programs or [each for each in every_program() if not each.missing]
    return options


def _pairs(options: argparse.Namespace) -> Iterator[Pair]:
    journal = Journal(options.journal) if options.journal else None
    some = [(target, entry) for target in options.targets for entry in options.programs]
    for number, (target, entry) in enumerate(some, 1):
        replace_line(f"{number} of {len(some)}: {entry.name} on {target}")
        size = options.size if options.size in entry.sizes else entry.sizes[-1]
        question = f"{entry.name} {size} {target} {options.limit} {options.meshes} {compiler_version(target)}"
        if journal and (kept := journal.get(question)):
            rows = {name: kept[name] and Row.from_dict(kept[name]) for name in ("annotated", "automatic")}
            yield Pair(**{**kept, **rows})
            continue
        found = _compared(entry, target, size, options)
        if journal:
            journal.add(question, asdict(found))
        yield found
    replace_line("")


def _compared(entry: Program, target: Target, size: str, options: argparse.Namespace) -> Pair:
    child = ahead_of_time.child_for(options.timeout)
    axes, lowered = entry.lower_over(target.devices, size)
    own, text = Mesh(axes), lowered.as_text()
    annotated = ahead_of_time.measured(entry.name, mesh_text(own), text, target, "auto", "better", child)
    if annotated.stock is None or annotated.stock.problem:
        return Pair(annotated)
    limit = int(options.limit * present(annotated.stock.memory))
    meshes = (own,) if _is_bound(text) else meshes_for(own.size)[: options.meshes]
    network, start_s = SiteNetwork(of_target(target), limit), time.perf_counter()
    try:
        choice = choose(text.encode(), entry.name, meshes, network, keeps_annotations=False, child=child, target=target)
    except DiagnosedError as error:
        return Pair(annotated, None, problem=str(error).splitlines()[0], limit=options.limit)
    best = choice.best
    faster = best.stock if best.stock_s < best.ours_s else best.ours
    stock, ours = ahead_of_time.sides_of(present(best.stock), present(faster), target)
    found = Row(entry.name, str(target), mesh_text(best.mesh), stock=stock, ours=ours)
    return Pair(annotated, found, time.perf_counter() - start_s, limit=options.limit)


def _is_bound(text: str) -> bool:
    """Returns whether a module has computations that name the axes of its own mesh."""
    return "manual_computation" in text or "maximal" in text


def _markdown(pairs: Sequence[Pair], targets: Sequence[Target]) -> Iterator[str]:
    for target in targets:
        own = [pair for pair in pairs if pair.annotated.target == str(target)]
        table = markdown_table(_HEADINGS, [_cells(pair) for pair in own], "lll" + "r" * (len(_HEADINGS) - 3))
        yield "\n".join([f"### {target}, {target.devices} devices", "", table, "", _summary(own)])


def _cells(pair: Pair) -> tuple[str, ...]:
    name, mesh = pair.annotated.name, pair.annotated.mesh
    if not pair.sides:
        sides = (pair.annotated.stock, pair.annotated.ours, pair.automatic and pair.automatic.ours)
        said = (pair.problem, pair.annotated.problem, *(each.problem for each in sides if each))
        return (name, mesh, next(filter(None, said), "no answer"), *[""] * (len(_HEADINGS) - 3))
    assert pair.automatic is not None
    stock, ours, auto = pair.sides
    return (
        name, mesh, pair.automatic.mesh,
        *(_us(each.estimate_us) for each in pair.sides),
        _ratio(stock.estimate_us, auto.estimate_us), _ratio(ours.estimate_us, auto.estimate_us),
        *(_us(each.modelled_us) for each in pair.sides),
        _ratio(stock.modelled_us, auto.modelled_us),
        *(_mib(each.final_received) for each in pair.sides),
        *(_mib(each.memory) for each in pair.sides),
        f"{pair.seconds:.1f}",
    )  # fmt: skip


def _summary(pairs: Sequence[Pair]) -> str:
    sides = [pair.sides for pair in pairs if pair.sides]
    lines = []
    for what, of in (("estimate", lambda side: side.estimate_us), ("modelled time", lambda side: side.modelled_us)):
        for at, form in enumerate(("stock", "ours")):
            some = [(of(each[at]), of(each[2])) for each in sides if of(each[at]) and of(each[2])]
            if some:
                mean = math.exp(sum(math.log(then / now) for then, now in some) / len(some))
                lines.append(f"geomean of {len(some)}, {what}, annotated {form} / auto: {mean:.2f}")
    worse = [pair.annotated.name for pair in pairs if pair.is_worse]
    return "\n".join([*lines, f"worse or failed: {', '.join(worse) or 'none'}"])


def _mib(num_bytes: int | None) -> str:
    return mebibytes(num_bytes, 1, missing="")


def _us(time_us: float | None) -> str:
    return "none" if time_us is None else f"{time_us:,.0f}"


def _ratio(then: float | None, now: float | None) -> str:
    return f"{then / now:.2f}" if then and now else ""


if __name__ == "__main__":
    sys.exit(main())
