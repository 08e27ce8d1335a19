# SPDX-License-Identifier: Apache-2.0
"""Lays programs out for less and less memory, and prints what the time becomes.

    python -m benchmarks.whole_modules.memory_limits [--programs NAME,...] [--topology v5e:2x4] [--size demo]
        [--shares 1,0.9,...] [--mesh x=8] [--verify] [--out FILE.md]

The first row of a program has no limit, the others a share of what the compiled program of the first one needs; the
program as its authors annotated it, compiled by stock XLA, stands beside. Times are modelled on the topology. A limit
that cannot be kept says why. The exit status is 1 if a compiled program is above its limit, or a smaller limit gives a
program that is more than 2 % faster than one of a larger limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.progress import replace_line
from benchmarks.harness.tables import show
from benchmarks.programs.__main__ import use_devices
from benchmarks.whole_modules.automatic import values_of
from reshard.compiling.automatic import choose
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.layouts.mesh import Mesh

_SHARES = "1,0.9,0.8,0.7,0.6,0.5,0.4,0.3"
_FASTER = 0.02
_PROGRAMS = "llama_train_step,vision_transformer,moe_layer,sequence_parallel_attention"
_HEADINGS = (
    "program", "limit in MiB", "of that without limit", "the model needs", "compiled", "time in us",
    "without limit = 1", "annotated stock needs", "annotated stock us", "values",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A program with a limit. Bytes per device, times in us; `problem` is why the limit cannot be kept."""

    program: str
    limit: int | None
    share: float
    modelled: int = 0
    compiled: int = 0
    us: float = 0.0
    stock: int = 0
    stock_us: float = 0.0
    values: str = ""
    problem: str = ""


def main(arguments: list[str] | None = None) -> int:
    use_devices(8)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=lambda text: text.split(","), default=_PROGRAMS.split(","))
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--size", default="demo")
    parser.add_argument("--shares", type=lambda text: [float(each) for each in text.split(",")], default=_SHARES)
    parser.add_argument("--mesh", type=Mesh.parse, default="x=8")
    parser.add_argument("--verify", action="store_true", help="compare outputs with those on one device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = [row for name in options.programs for row in _swept(name, options)]
    show(_HEADINGS, list(_cells(rows)), "l" + "r" * 8 + "l", options.out)
    return int(any(_is_wrong(rows, row) for row in rows))


def _swept(name: str, options: argparse.Namespace) -> Iterator[Row]:
    from benchmarks.programs.catalogue import every_program

    program = next(each for each in every_program() if each.name == name)
    content = compat.bytecode(program.lower(options.size).compiler_ir("stablehlo"))
    network = SiteNetwork(option_text(options.topology))
    has_final, stands_in = network.has_final, network.stands_in
    stock = shared_child().compile(content, options.mesh.size, has_final=has_final, stands_in=stands_in)
    stock_us = network.time_of(stock, options.mesh.size).seconds * 1e6
    whole: int | None = None
    for share in (None, *options.shares):
        limit = None if share is None else int(share * present(whole))
        replace_line(f"{name}: {'no limit' if limit is None else f'{mebibytes(limit, 1)} MiB'}")
        limited = SiteNetwork(network.text, limit)
        try:
            best = choose(content, name, [options.mesh], limited, keeps_annotations=False, is_from_jax=False).best
        except DiagnosedError as error:
            yield Row(name, limit, share or 1.0, problem=error.diagnostics[0].message)
            return
        faster = present(best.stock if best.stock_s < best.ours_s else best.ours)
        whole = whole or faster.limited_bytes
        modelled = best.assigned.assignment.memory_bytes
        values = values_of(best.content, name) if options.verify else ""
        needs = stock.limited_bytes
        yield Row(name, limit, share or 1.0, modelled, faster.limited_bytes, best.best_s * 1e6, needs, stock_us, values)


def _is_wrong(rows: list[Row], row: Row) -> bool:
    if row.problem:
        return False
    larger = [each.us for each in rows if each.program == row.program and (each.limit or 0) >= (row.limit or 0)]
    is_above = row.limit is not None and row.compiled > row.limit
    return is_above or row.values == "wrong" or row.us < min(larger, default=row.us) * (1 - _FASTER)


def _cells(rows: list[Row]) -> Iterator[list[str]]:
    free = 0.0
    for row in rows:
        limit = "none" if row.limit is None else mebibytes(row.limit, 1)
        if row.problem:
            yield [row.program, limit, f"{row.share:.0%}", row.problem, *[""] * 6]
            continue
        free = row.us if row.limit is None else free
        needs = [mebibytes(each, 1) for each in (row.modelled, row.compiled)]
        yield [
            row.program, limit, f"{row.share:.0%}", *needs, f"{row.us:,.0f}", f"{row.us / free:.2f}",
            mebibytes(row.stock, 1), f"{row.stock_us:,.0f}", row.values,
        ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
