# SPDX-License-Identifier: Apache-2.0
"""Lays out small random programs, and tries all their layouts: the same optimum, or the command fails.

    python -m benchmarks.exhaustive [--count 200] [--first-seed 0] [--most 50000] [--untied] [--out FILE.md]

For each program all combinations of layouts are tried twice: the states of the problem that the solver is given, and
the layouts of all values, each priced anew from the program. Programs with more than `--most` combinations are left
out, and the next ones drawn. Exit status 1 if the solver has another optimum, a bound above it, or layouts where there
are none.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.progress import replace_line
from benchmarks.harness.tables import show

from .comparing import MOST, Compared, drawn
from .drawing import MESHES
from .stated import SAME, is_same

_HEADINGS = (
    *("mesh", "programs", "most ops", "most choices", "searched", "pinned", "limited", "slower by that"),
    *("impossible: by pins", "by the limit", "combinations", "most of one", "disagree"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--untied", action="store_true", help="how much layouts for each value would gain")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    found, left_out = [], 0
    for each in drawn(options.count, options.first_seed, options.most, is_untied_too=options.untied):
        if each is None:
            left_out += 1
        else:
            found.append(each)
            replace_line(f"{len(found)} of {options.count} programs")
    by_mesh = {mesh: [each for each in found if each.case.mesh_text == mesh] for mesh in MESHES}
    rows = [_row(mesh, some) for mesh, some in by_mesh.items() if some]
    show(_HEADINGS, [*rows, _row("all", found)], "l" + "r" * (len(_HEADINGS) - 1), options.out)
    print(f"\n{left_out} programs of more than {options.most:,} combinations were left out")
    above = sum(not is_same(each.usual_s, each.seconds) for each in found)
    print(f"{above} times the solver ends above the best if it is not asked for the best one, but for a good one")
    gains = [each.seconds / each.untied_s - 1 for each in found if each.untied_s]
    if gains:
        print(
            f"of {len(gains)} programs that have ties and no limit, {sum(gain > SAME for gain in gains)} may be faster "
            f"if each value has a layout of its own, by {max(gains):.0%} at most"
        )
    wrong = [each for each in found if each.problems]
    for each in wrong:
        case = each.case
        print(f"\nseed {case.seed} on {case.mesh_text}, {case.network}: {'; '.join(each.problems)}\n{case.text}")
    return 1 if wrong else 0


def _row(name: str, found: Sequence[Compared]) -> list[str]:
    counts = (
        len(found),
        max((len(each.case.ops) for each in found), default=0),
        max((each.nodes for each in found), default=0),
        sum(each.left > 0 for each in found),
        sum(each.case.pins > 0 for each in found),
        sum(each.limit is not None for each in found),
        sum(each.is_limit_felt and each.is_possible for each in found),
        sum(math.isinf(each.free_s) for each in found),
        sum(math.isfinite(each.free_s) and not each.is_possible for each in found),
        sum(each.anew.combinations for each in found),
        max((each.anew.combinations for each in found), default=0),
        sum(bool(each.problems) for each in found),
    )
    return [name, *(f"{count:,}" for count in counts)]


if __name__ == "__main__":
    sys.exit(main())
