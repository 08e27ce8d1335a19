# SPDX-License-Identifier: Apache-2.0
"""What the atlas found, in words."""

from __future__ import annotations

from collections import Counter

from benchmarks.atlas import layouts, programs


def tell(rows: dict[int, list[dict]], families: tuple[str, ...]) -> int:
    counts: dict[str, Counter] = {}
    for number, outcomes in sorted(rows.items()):
        program = programs.drawn(number, families)
        for each in outcomes:
            counts.setdefault(program.family, Counter())[each["status"]] += 1
            if each["status"] in ("wrong",):
                case = layouts.drawn(program, f"{number} {each['case']}")
                print(number, each["case"], program.family, program.traits, each.get("results"), case)
    for name, each in sorted(counts.items()):
        print(name, dict(each))
    return 0
