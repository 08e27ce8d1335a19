#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the costs of plans before and after a change of the planner: no plan may be worse.

    python benchmarks/plan_costs.py --before ../before           # a checkout of the version before
    python benchmarks/plan_costs.py --before 0123456789abcdef    # its answers are in the journal already

Two checkouts plan the same problems, each in its own processes and only through the public interface: 5,000 random
problems, and the pairs of `redistributions.py --suite networks`; by bytes and by time on several networks, without a
memory limit and with one. Every answer is put into a journal at once, under a digest of the planner's sources. So a run
that was stopped continues where it ended, and the version before plans only once.

The exit status is 1 if a plan by bytes is worse, if a plan by time is worse by more than 1 %, if more than 0.1 % of the
plans are worse at all, or if a call ends in an error; it is 2 if a checkout cannot plan. A refusal where there was a
plan is worse, and so is a refusal that names a higher least memory limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.before_after.checkouts import CheckoutError, answers, sources_digest  # noqa: E402
from benchmarks.before_after.comparison import Row, as_json, as_markdown, failures  # noqa: E402
from benchmarks.before_after.problems import COUNT, Call, problems  # noqa: E402
from benchmarks.harness.journal import Journal, default_folder  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Side:
    """A version of the planner: the digest of its sources, and a checkout of it, or None without one."""

    name: str
    digest: str
    root: Path | None

    @classmethod
    def of(cls, name: str, text: str) -> Side:
        """Returns the side for a checkout's path or a digest. Raises: CheckoutError for a folder without sources."""
        root = Path(text)
        return cls(name, sources_digest(root), root) if root.is_dir() else cls(name, text, None)

    def question(self, call: Call) -> str:
        """Returns the journal's key of this version's answer to a call."""
        return f"{self.digest} {call.key}"

    def plan(self, calls: Sequence[Call], journal: Journal, jobs: int) -> None:
        """Plans the calls whose answers are missing in the journal, and adds the answers.

        Raises: CheckoutError if there is no checkout to plan with, or it cannot plan.
        """
        still_open = [call for call in calls if self.question(call) not in journal]
        if not still_open:
            return
        if self.root is None:
            words = f"{len(still_open):,} of {len(calls):,} plans are not in {journal.path}"
            raise CheckoutError(f"{self.digest} is no folder, and as the digest of a planner it lacks answers: {words}")
        found = answers(self.root, still_open, jobs)
        for _ in shown(still_open, f"{self.name}, {self.digest}"):
            call, answer = next(found)
            journal.add(self.question(call), answer)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    calls = [call for problem in problems(options.count) for call in problem.calls(on_all=options.all_networks)]
    journal = Journal(options.journal)
    try:
        sides = [Side.of(name, getattr(options, name)) for name in ("before", "after")]
        for side in sides:
            side.plan(calls, journal, options.jobs)
    except CheckoutError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    rows = [Row(call, *(journal.answer(side.question(call)) for side in sides)) for call in calls]
    print(f"before: {sides[0].digest}, after: {sides[1].digest}\n\n{as_markdown(rows, options.show)}")
    if options.json:
        found = {"before": sides[0].digest, "after": sides[1].digest, **as_json(rows)}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return int(bool(failures(rows)))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--before", required=True, help="a checkout, or the digest under which its answers are in the journal")
    add("--after", default=str(ROOT), help="the same for the newer state, default this checkout")
    add(
        "--count",
        type=int,
        default=COUNT,
        help="number of random problems, default %(default)s; network pairs become fewer in proportion",
    )
    add("--all-networks", action="store_true", help="time meshes of many devices on four networks each, not on one")
    add("--jobs", type=int, default=1, help="processes that plan at once, default %(default)s")
    add("--journal", type=Path, default=default_folder() / "plan_costs.jsonl", help="default %(default)s")
    add("--show", type=int, default=100, help="command lines of plans that are worse, default %(default)s")
    add("--json", type=Path, metavar="FILE", help="the file for the table and all plans that are worse")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
