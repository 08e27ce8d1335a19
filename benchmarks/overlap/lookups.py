# SPDX-License-Identifier: Apache-2.0
"""Lookups next to collectives in the schedules of TPU compilers: as programs have them, and as pipelines.

    python -m benchmarks.overlap.lookups [--targets tpu:v5e:2x4,tpu:v5p:2x2x2] [--patterns embedding,embedding_rows]
        [--sizes 4096,8192] [--bags 1,2,4,8] [--out FILE.md]

Each pattern is compiled ahead of time: stock, as the pass overlap-collectives leaves it, and with the pipeline whatever
the pass says. A table has 65,536 rows of `size` elements in bfloat16; `size` bags of rows are added up. The compiler's
price for a lookup is that of its rows alone, however long they are, so times are modelled: collectives by the planner's
cost, what runs beside them in the compiler's schedule, and bytes of all other work at the bandwidth of memory.

The exit status is 1 if what the pass leaves is longer than stock by more than 3 %.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.progress import shown
from benchmarks.overlap.schedules import LONGER, compiled_for, network_of, overlapped
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.program_time import ProgramTime

_HEADINGS = (
    "target", "pattern", "size", "bag", "stock in us", "pipeline in us", "stock / pipeline", "collectives, stock",
    "pipeline", "beside other work", "the pass takes", "temporaries in MB, stock", "pipeline", "estimate in us, stock",
    "pipeline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """What a compiler makes of one form of a pattern: the modelled times of its schedule, and its own estimate."""

    time: ProgramTime
    temp_bytes: int
    estimate_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """A pattern on a target, as it is and as a pipeline."""

    target: str
    name: str
    size: int
    bag: int
    takes: bool
    stock: Form
    pipeline: Form

    @property
    def speedup(self) -> float:
        return self.stock.time.seconds / self.pipeline.time.seconds

    @property
    def is_right(self) -> bool:
        """Returns whether the pass takes what is faster; within 3 % both are."""
        return 1 / LONGER <= self.speedup <= LONGER or self.takes == (self.speedup > 1)

    def cells(self) -> list[str]:
        stock, pipeline = self.stock.time, self.pipeline.time
        times = stock.seconds, pipeline.seconds, stock.collectives_s, pipeline.collectives_s, pipeline.hidden_s
        whole, cut, *collectives = (f"{1e6 * seconds:,.0f}" for seconds in times)
        forms = self.stock, self.pipeline
        return [
            self.target, self.name, str(self.size), str(self.bag), whole, cut, f"{self.speedup:.2f}", *collectives,
            "the pipeline" if self.takes else "stock", *(f"{each.temp_bytes / 1e6:,.0f}" for each in forms),
            *(f"{1e6 * each.estimate_s:,.0f}" for each in forms),
        ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="tpu:v5e:2x4,tpu:v5p:2x2x2")
    parser.add_argument("--patterns", default="embedding,embedding_rows")
    parser.add_argument("--sizes", default="4096,8192")
    parser.add_argument("--bags", default="1,2,4,8", help="rows that are added up")
    parser.add_argument("--out", type=Path, help="a file for the table besides stdout")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    targets, names = options.targets.split(","), options.patterns.split(",")
    use_devices(max(Target.parse(each).devices for each in targets))
    sizes, bags = (list(map(int, each.split(","))) for each in (options.sizes, options.bags))
    cases = [(target, name, size, bag) for target in targets for name in names for size in sizes for bag in bags]
    rows = [measured(*case) for case in shown(cases, "patterns")]
    text = report(rows)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any(row.takes and row.speedup < 1 / LONGER for row in rows))


def measured(target: str, name: str, size: int, bag: int) -> Row:
    """Returns a pattern's row."""
    from benchmarks.overlap.patterns import pattern

    program = pattern(name, Target.parse(target).devices, size, bag)
    stock, pipeline = (_form(compiled_for(program, target, policy), target) for policy in ("", "always"))
    return Row(target, name, size, bag, overlapped(program, target, "better")[1], stock, pipeline)


def _form(compiled: Compiled, target: str) -> Form:
    time = present(network_of(target).final_time_of(compiled, Target.parse(target).devices))
    return Form(time, compiled.temp_bytes or 0, present(compiled.estimated_seconds))


def report(rows: Sequence[Row]) -> str:
    """Returns the table and what it comes to."""
    right = sum(row.is_right for row in rows)
    worst = max((1 / row.speedup for row in rows if row.takes), default=1.0)
    return "\n".join(
        (
            markdown_table(_HEADINGS, [row.cells() for row in rows], "ll" + "r" * 8 + "lrrrr"),
            "",
            f"The pass takes what is faster, within 3 %, in {right} of {len(rows)}; the longest program that it leaves "
            f"is {max(worst, 1.0):.2f} times as long as stock's.",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
