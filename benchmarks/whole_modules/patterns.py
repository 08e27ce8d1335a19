# SPDX-License-Identifier: Apache-2.0
"""Compares small programs, each around one pattern of communication, with the least that a device has to receive.

    python -m benchmarks.whole_modules.patterns [--patterns NAME,...] [--target tpu:v5e:2x4]

Each program of `benchmarks/programs/patterns.py` is lowered for 8 devices and compiled by stock XLA, and written per
device (`--emit=local`, with all held in memory that loops would convert or reduce in each turn) and compiled again.
Received bytes and temporaries are those of XLA's compiler for CPU devices, bytes also those of the final program of a
target. The exit status is 1 if a form written per device receives more than 1.05 of the ideal on CPU devices, or fails.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.dialect_utils.xla.compile_targets import Target, missing_compiler
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.forms.platforms import platform_of

if TYPE_CHECKING:  # jax is imported once the number of its devices is set
    from benchmarks.programs.patterns import Pattern

N = 8
ALLOWED = 1.05  # of the ideal
MUCH_MEMORY = 10**12  # bytes
SLACK_BYTES = 64  # loop counters and single numbers


def main(arguments: list[str] | None = None) -> int:
    use_devices(N)
    options = _parse(arguments)
    from benchmarks.programs.patterns import PATTERNS

    target = None if options.target == "none" else Target.parse(options.target)
    if target is not None and (missing := missing_compiler(target)):
        print(f"without {target}: {missing}", file=sys.stderr)
        target = None
    if options.write:
        (named,) = (each for each in PATTERNS if each.program.name == options.write)
        print(_written(named.program.lower("demo").as_text(), "cpu"))
        return 0
    rows, is_well = [], True
    chosen = [each for each in PATTERNS if not options.patterns or each.program.name in options.patterns]
    for number, pattern in enumerate(chosen, 1):
        replace_line(f"{number} of {len(chosen)}: {pattern.program.name}")
        row, is_good = _measured(pattern, target)
        rows.append(row)
        is_well &= is_good
    replace_line("")
    final = [f"stock, final for {target}", "ours, final"] if target else []
    temporaries = "temporaries: stock", "ours"
    heads = ("pattern", "ideal", "stock", "ours", "stock / ideal", "ours / ideal", *temporaries, *final)
    print(markdown_table(heads, rows))
    return int(not is_well)


def _measured(pattern: Pattern, target: Target | None) -> tuple[list[str], bool]:
    """Returns the cells of a pattern's row, and whether ours is near enough to the ideal."""
    text, ideal = pattern.program.lower("demo").as_text(), pattern.ideal_bytes
    stock = shared_child().compile(text, N)
    try:
        ours = shared_child().compile(_written(text, "cpu"), N)
    except DiagnosedError as error:
        return [pattern.program.name, f"{ideal:,}", _bytes(stock), str(error).splitlines()[0]], False
    ratios = [_ratio(each, ideal) for each in (stock, ours)]
    cells = [pattern.program.name, f"{ideal:,}", _bytes(stock), _bytes(ours), *(f"{each:.2f}" for each in ratios)]
    cells += [f"{each.costs.temp_bytes:,}" if each.is_ok else each.status for each in (stock, ours)]
    for form in (text, _written(text, platform_of(target.platform))) if target else ():
        compiled = shared_child().compile(form, N, target=target)
        cells.append(f"{compiled.final_bytes_received:,}" if compiled.is_ok else compiled.status)
    return cells, ratios[1] <= ALLOWED


def _bytes(compiled: Compiled) -> str:
    return f"{compiled.bytes_received:,}" if compiled.is_ok else compiled.status


def _ratio(compiled: Compiled, ideal: int) -> float:
    return (compiled.costs.bytes_received + SLACK_BYTES) / (ideal + SLACK_BYTES) if compiled.is_ok else math.inf


def _written(text: str, platform: str) -> str:
    """Returns a module written per device. Raises: DiagnosedError."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        options = {"platform": platform, "hold": str(MUCH_MEMORY)}
        Pipeline.emitting("local", options).run(module, Session(RunOptions()))
        return str(module)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--patterns", type=lambda text: text.split(","), help="their names, default: all")
    parser.add_argument("--target", default="tpu:v5e:2x4", help="for final programs, default %(default)s; or none")
    parser.add_argument("--write", metavar="NAME", help="print a pattern's module per device, and end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
