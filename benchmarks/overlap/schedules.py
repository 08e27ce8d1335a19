# SPDX-License-Identifier: Apache-2.0
"""The schedules of TPU compilers for products next to collectives: as programs have them, and as pipelines.

    python -m benchmarks.overlap.schedules [--targets tpu:v5e:2x4,tpu:v5p:2x2x2] [--patterns NAME,...]
        [--sizes 4096,8192,16384] [--ratios 4,1,0.25] [--random 0] [--checked] [--out FILE.md]

Each pattern is compiled ahead of time: stock, as the pass overlap-collectives leaves it, and with the pipeline whatever
the pass says. A ratio is the time of the product by that of the collective, both by the compiler's own prices: those of
one product and one all_gather alone, from which the width of a product is chosen. Times are the ends of the compiler's
schedules. It has no price for a reduce_scatter that the program has; ours is added: that of an all_gather of as many
bytes, by the compiler's price. With `--random N`, N random shapes take the place of the sizes and ratios.

The compiler's prices know neither distance nor contention, and count a product some three times as long as its own
code generator does. *Generated* are times by that: local work by its prices, and what nothing hides of the collectives
by our model of the target's network. With `--checked` what counts as left is what `reshard.optimize` with
`compile_for` leaves, so that the whole-module check has asked the compiler about what the pass proposes.

The exit status is 1 if what is left is longer than stock by more than 3 %: by the schedule, or with `--checked`, which
goes by it, by the code generator, which has to say a time of each.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reshard
from benchmarks.harness.progress import shown
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.dialect_utils.xla.compile_targets import Target, TargetError
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import SiteNetwork, of_target_over
from reshard.synthesis.common.text_table import markdown_table

if TYPE_CHECKING:  # it loads jax, whose number of devices is set first
    from benchmarks.overlap.patterns import Pattern

LONGER = 1.03
_REFERENCE = 8192
_HEADINGS = (
    "target", "pattern", "size", "width", "product : collective", "stock in us", "pipeline in us", "stock / pipeline",
    "bound / pipeline", "generated in us, stock", "pipeline", "stock / pipeline", "stock / what is left",
    "the same by the schedule", "temporaries in MB, stock", "pipeline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A pattern on a target. Times in us: of the program as it is, its collective alone, as a pipeline, and as it is
    left by the pass, or with `--checked` by the check, which may take one of two pipelines; `generated` are those of
    the program as it is, as a pipeline and as it is left by the code generator, None where it says none."""

    target: str
    name: str
    size: int
    width: int
    stock_us: float
    collective_us: float
    pipeline_us: float
    ours_us: float
    takes: bool
    stock_temp: int
    pipeline_temp: int
    generated_us: tuple[float, float, float] | None = None

    @property
    def product_us(self) -> float:
        return self.stock_us - self.collective_us

    @property
    def bound_us(self) -> float:
        """Returns the time of what takes longer, the product or the collective."""
        return max(self.product_us, self.collective_us)

    @property
    def is_right(self) -> bool:
        """Returns whether what is left is the fastest of the three, within 3 %."""
        return self.ours_us <= LONGER * min(self.stock_us, self.pipeline_us)

    @property
    def is_right_as_generated(self) -> bool | None:
        """Returns the same by the code generator's times; None where it says none."""
        if self.generated_us is None:
            return None
        stock_us, pipeline_us, ours_us = self.generated_us
        return ours_us <= LONGER * min(stock_us, pipeline_us)

    @property
    def pipeline_needs_more(self) -> bool:
        """Returns whether the program with all pipelines needs more temporaries, but for 0.2 %."""
        return self.pipeline_temp > 1.002 * self.stock_temp

    @property
    def ours_as_generated(self) -> float | None:
        """Returns the time of what is left, as a share of stock's, by the code generator's times."""
        return self.generated_us[2] / self.generated_us[0] if self.generated_us else None

    def cells(self) -> list[str]:
        return [
            self.target,
            self.name,
            str(self.size),
            str(self.width),
            f"{self.product_us / self.collective_us:.2f}",
            f"{self.stock_us:,.0f}",
            f"{self.pipeline_us:,.0f}",
            f"{self.stock_us / self.pipeline_us:.2f}",
            f"{self.bound_us / self.pipeline_us:.2f}",
            *self._generated_cells(),
            f"{self.stock_us / self.ours_us:.2f}" if self.takes else "stock",
            f"{self.stock_temp / 1e6:,.0f}",
            f"{self.pipeline_temp / 1e6:,.0f}",
        ]

    def _generated_cells(self) -> list[str]:
        if self.generated_us is None:
            return ["none", "none", "", ""]
        stock_us, pipeline_us, ours_us = self.generated_us
        times = [f"{stock_us:,.0f}", f"{pipeline_us:,.0f}"]
        return [*times, f"{stock_us / pipeline_us:.2f}", f"{stock_us / ours_us:.2f}" if self.takes else "stock"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="tpu:v5e:2x4,tpu:v5p:2x2x2")
    parser.add_argument("--patterns", default="gather_rows,gather_inner,scatter,combine,dispatch,layer")
    parser.add_argument("--sizes", default="4096,8192,16384")
    parser.add_argument("--ratios", default="4,1,0.25", help="of the product's time to the collective's")
    parser.add_argument("--random", type=int, default=0, help="random shapes per target, in place of sizes and ratios")
    parser.add_argument("--checked", action="store_true", help="what the whole-module check leaves, not the pass alone")
    parser.add_argument("--out", type=Path, help="a file for the table besides stdout")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        use_devices(max(Target.parse(each).devices for each in options.targets.split(",")))
    except TargetError as error:
        parser.error(str(error))
    cases = list(_random_cases(options) if options.random else _cases(options))
    rows = [measured(*case, is_checked=options.checked) for case in shown(cases, "patterns")]
    text = report(rows, "check" if options.checked else "pass")
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if options.checked:
        return int(any(row.ours_as_generated is None or row.ours_as_generated > LONGER for row in rows))
    return int(any(row.ours_us > LONGER * row.stock_us for row in rows))


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, str, int, int]]:
    from benchmarks.overlap.patterns import GRAIN

    for target in options.targets.split(","):
        for name in options.patterns.split(","):
            for size in map(int, options.sizes.split(",")):
                for ratio in map(float, options.ratios.split(",")):
                    width = width_for(target, name, ratio)
                    yield target, name, size, max(GRAIN, round(width / GRAIN) * GRAIN)


def _random_cases(options: argparse.Namespace) -> Iterator[tuple[str, str, int, int]]:
    draw = random.Random(0)
    for target in options.targets.split(","):
        for _ in range(options.random):
            name = draw.choice(options.patterns.split(","))
            size = 128 * 8 * 2 ** draw.randint(0, 3) * draw.choice((1, 1, 3)) // draw.choice((1, 1, 2))
            yield target, name, size, 128 * draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 32, 64))


@cache
def _prices(target: str) -> tuple[float, float, float]:
    """Returns the compiler's seconds for an operation of a product, a gathered byte, and an exchanged one."""
    from benchmarks.overlap.patterns import pattern

    devices, size = Target.parse(target).devices, _REFERENCE
    whole = {name: compiled_for(pattern(name, devices, size, 1024), target) for name in ("gather_rows", "dispatch")}
    half = compiled_for(pattern("gather_rows", devices, size, 512), target)
    per_column = (_seconds(whole["gather_rows"]) - _seconds(half)) / 512
    gather, exchange = (_seconds(each) - 1024 * per_column for each in whole.values())
    return per_column / (2 * size * size), gather / (2 * size * size), exchange / (2 * size * size)


def width_for(target: str, name: str, ratio: float) -> float:
    """Returns the width for which the product takes so many times as long as the collective."""
    operation, gathered, exchanged = _prices(target)
    return ratio * (exchanged if name in ("combine", "dispatch") else gathered) / operation


def measured(target: str, name: str, size: int, width: int, *, is_checked: bool = False) -> Row:
    """Returns a pattern's row. `is_checked`: what the whole-module check leaves counts, not the pass alone."""
    from benchmarks.overlap.patterns import pattern

    program = pattern(name, Target.parse(target).devices, size, width)
    stock, pipeline = (compiled_for(program, target, policy) for policy in ("", "always"))
    left, is_taken = checked(program, target) if is_checked else overlapped(program, target, "better")
    ours = _compiled(program, left, target) if is_taken else stock
    _, gathered, exchanged = _prices(target)
    collective = (exchanged if name in ("combine", "dispatch") else gathered) * 2 * size * size
    unpriced = collective if name in ("scatter", "layer") else 0.0
    collective *= 2 if name == "layer" else 1
    return Row(
        target, name, size, width, 1e6 * (_seconds(stock) + unpriced), 1e6 * collective, 1e6 * _seconds(pipeline),
        1e6 * (_seconds(ours) + (unpriced if "reduce_scatter" in left else 0.0)), is_taken, stock.temp_bytes or 0,
        pipeline.temp_bytes or 0, _generated(target, stock, pipeline, ours),
    )  # fmt: skip


def _generated(target: str, *compiled: Compiled) -> tuple[float, float, float] | None:
    """Returns the microseconds of three programs by the code generator, if it says them of all."""
    asked, network = Target.parse(target), network_of(target)
    stock_s, pipeline_s, ours_s = (network.generated_time_of(each, asked.devices) for each in compiled)
    if stock_s is None or pipeline_s is None or ours_s is None:
        return None
    return 1e6 * stock_s, 1e6 * pipeline_s, 1e6 * ours_s


def network_of(target: str) -> SiteNetwork:
    """Returns the network of a target, with the partitions of a mesh of one axis where its compiler has them."""
    return SiteNetwork(of_target_over(Target.parse(target), (Target.parse(target).devices,)))


def overlapped(program: Pattern, target: str, policy: str) -> tuple[str, bool]:
    """Returns the module after the pass, as it is without a policy, and whether a pipeline is in it."""
    module: Any = program.lowered(has_marker=True).compiler_ir("stablehlo")
    session = Session()
    if policy:
        options = {"topology": network_of(target).text, "policy": policy, "platform": "tpu"}
        Pipeline.parse("overlap-collectives").with_options(options).run(module, session)
    return str(module), bool(session.results.statistics.get(("overlap-collectives", "overlapped")))


def checked(program: Pattern, target: str) -> tuple[str, bool]:
    """Returns the module that `reshard.optimize` leaves for a target, and whether anything in it is rewritten."""
    found = reshard.optimize(str(program.lowered(has_marker=True).compiler_ir("stablehlo")), compile_for=target)
    (check,) = found.report.to_dict()["checks"]
    return str(found.module), bool(check["is_rewritten"])


def compiled_for(program: Pattern, target: str, policy: str = "") -> Compiled:
    """Returns what the compiler of a target makes of a pattern, behind the pass if there is a policy."""
    return _compiled(program, overlapped(program, target, policy)[0], target)


def _compiled(program: Pattern, text: str, target: str) -> Compiled:
    compiled = shared_child().compile(text, program.devices, target=Target.parse(target), with_estimate=True)
    if not compiled.is_ok:
        raise SystemExit(f"error: {program.name} on {target}: {compiled.message}")
    return compiled


def _seconds(compiled: Compiled) -> float:
    if compiled.estimated_seconds is None:
        raise SystemExit("error: the compiler has written no schedule")
    return compiled.estimated_seconds


def report(rows: Sequence[Row], what: str = "pass") -> str:
    """Returns the table and what it comes to. `what` leaves programs: the pass, or the check."""
    right = sum(row.is_right for row in rows)
    worst = max((row.ours_us / row.stock_us for row in rows), default=1.0)
    generated = [row for row in rows if row.generated_us]
    also_right = sum(bool(row.is_right_as_generated) for row in generated)
    longest = max((row.ours_as_generated or 0.0 for row in generated), default=1.0)
    larger = sum(row.pipeline_needs_more for row in generated if not row.is_right_as_generated)
    return "\n".join(
        (
            markdown_table(_HEADINGS, [row.cells() for row in rows], "ll" + "r" * 14),
            "",
            f"What the {what} leaves is the fastest of three, within 3 %, in {right} of {len(rows)}; the longest "
            f"program that it leaves is {worst:.2f} times as long as stock's. By the code generator's times: "
            f"{also_right} of {len(generated)}, and {longest:.2f}. In {larger} of the others all pipelines need more "
            "memory.",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
