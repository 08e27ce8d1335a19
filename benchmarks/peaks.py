# SPDX-License-Identifier: Apache-2.0
"""Holds the modelled peak of plans, whole and in chunks, against XLA's buffer assignment on CPU devices.

    python benchmarks/peaks.py --devices 4,8,16 --count 20 --seed 0

Every plan on the Pareto list of a random pair is compiled in a child process. XLA's peak is that of arguments, outputs
and temporaries. The results are cached on disk, so a run that was stopped continues where it ended.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.conversions.compiled import tensor_type  # noqa: E402
from benchmarks.conversions.pairs import random_pairs  # noqa: E402
from benchmarks.harness.arguments import device_counts  # noqa: E402
from benchmarks.random_pairs import ELEMENTS  # noqa: E402
from reshard.dialect_utils.emission.mini_modules import rewritten_pair  # noqa: E402
from reshard.dialect_utils.xla.child import XlaChild  # noqa: E402
from reshard.planning.element_types import element_type  # noqa: E402
from reshard.synthesis.common.text_table import table  # noqa: E402
from reshard.synthesis.planner.entry import Plan, pareto  # noqa: E402


@dataclass(frozen=True, slots=True)
class Row:
    """A compiled plan with its peaks, in bytes per device."""

    pair: str
    plan: Plan
    xla_peak: int
    temp_bytes: int

    @property
    def kind(self) -> str:
        ops = [each.op for each in self.plan.steps]
        return next((op for op in ("chunks", "exchange") if op in ops), "chain")

    @property
    def ratio(self) -> float:
        return self.xla_peak / self.plan.peak_bytes


def measured(options: argparse.Namespace, child: XlaChild) -> Iterator[Row]:
    """Yields a row for each plan of each pair. Raises: RuntimeError if XLA does not compile one."""
    for devices in options.devices:
        for pair in random_pairs(options.seed, options.count, (devices,), least_elements=options.least_elements):
            for exchange in (False, True):
                plans = pareto(
                    pair.mesh,
                    pair.shape,
                    element_type(options.element).bits,
                    pair.source,
                    pair.target,
                    with_exchange=exchange,
                )
                for plan in plans[: options.plans]:
                    compiled = child.compile(rewritten_pair(tensor_type(pair, options.element), plan), devices)
                    if compiled.peak_bytes is None or compiled.temp_bytes is None:
                        raise RuntimeError(f"{pair}: {plan.chain_text}: {compiled.message}")
                    yield Row(str(pair), plan, compiled.peak_bytes, compiled.temp_bytes)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    with XlaChild(num_devices=max(options.devices)) as child:
        rows = list(measured(options, child))
    headings = ("", "plans", "XLA's peak / model: least", "geomean", "most", "bytes above, at most")
    print(table(headings, [_cells(kind, rows) for kind in ("chain", "exchange", "chunks")], "lrrrrr"))
    print()
    for row in sorted(rows, key=lambda row: -row.ratio)[: options.show]:
        print(f"{row.ratio:.3f}  {row.pair}\n       {row.plan.chain_text}")
        print(f"       peak {row.plan.peak_bytes:,}, XLA's {row.xla_peak:,}")
    return 0


def _cells(kind: str, rows: list[Row]) -> tuple[str, ...]:
    mine = [row for row in rows if row.kind == kind]
    if not mine:
        return (kind, "0", "-", "-", "-", "-")
    ratios = [row.ratio for row in mine]
    geomean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    above = max(row.xla_peak - row.plan.peak_bytes for row in mine)
    return (kind, str(len(mine)), f"{min(ratios):.3f}", f"{geomean:.3f}", f"{max(ratios):.3f}", f"{max(0, above):,}")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--devices", type=device_counts, default=(4, 6, 8, 12, 16), help="mesh sizes, default %(default)s"
    )
    parser.add_argument("--count", type=int, default=20, help="pairs per mesh size, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--least-elements", type=int, default=1 << 18, help="least elements of the global array, default %(default)s"
    )
    parser.add_argument("--element", choices=ELEMENTS, default="f32", help="element type, default %(default)s")
    parser.add_argument(
        "--plans", type=int, default=4, help="number of plans of each list, the fastest first, default %(default)s"
    )
    parser.add_argument("--show", type=int, default=3, help="plans listed with the highest ratio, default %(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
