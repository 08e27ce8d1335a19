# SPDX-License-Identifier: Apache-2.0
"""Measures how long planning takes: new pairs at several mesh sizes, and repeated ones.

    python benchmarks/planner.py [--devices 8,16,64] [--count 300] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Pair, random_pairs  # noqa: E402
from reshard.synthesis import plan as planning  # noqa: E402
from reshard.synthesis.plan import plan  # noqa: E402

QUANTILES = (0.5, 0.9, 0.99, 1.0)


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    print("| devices | pairs | median ms | p90 | p99 | max | optimal | at the bound |")
    print("|---|---|---|---|---|---|---|---|")
    for devices in options.devices:
        pairs = random_pairs(options.seed, options.count, (devices,))
        planning._planned.cache_clear()
        found = [_plan(pair) for pair in pairs]
        new = [each.seconds for each in found]
        optimal = sum(each.plan.is_optimal for each in found)
        at_bound = sum(each.plan.bytes_received == each.plan.bound_bytes for each in found)
        print(_row(str(devices), new, f"{optimal / len(found):.1%}", f"{at_bound / len(found):.1%}"))
        print(_row(f"{devices}, again", [_plan(pair).seconds for pair in pairs], "", ""))


class _Timed:
    """A plan and the seconds it took."""

    def __init__(self, function: Callable):
        start_s = time.perf_counter()
        self.plan = function()
        self.seconds = time.perf_counter() - start_s


def _plan(pair: Pair) -> _Timed:
    return _Timed(lambda: plan(pair.mesh, pair.shape, 32, pair.source, pair.target))


def _row(title: str, seconds: list[float], optimal: str, at_bound: str) -> str:
    ordered = sorted(seconds)
    quantiles = [ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] for quantile in QUANTILES]
    cells = [title, str(len(seconds)), *(f"{1e3 * each:.3f}" for each in quantiles), optimal, at_bound]
    return f"| {' | '.join(cells)} |"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=_numbers, default=(8, 16, 64), help="mesh sizes, default %(default)s")
    parser.add_argument("--count", type=int, default=300, help="pairs per mesh size, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
