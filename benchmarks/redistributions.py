# SPDX-License-Identifier: Apache-2.0
"""Compares our plans with stock XLA's and Shardy's: received bytes over the bound, and modelled time on every network.

    python benchmarks/redistributions.py [--suite random|networks] [--fraction 0.02] [--report] ...

Every answer is put into a file at once, so a run that was stopped continues where it ended. The peers' answers and our
plans are in two files: our plans are made anew if the planner's sources change, the peers' answers if jaxlib changes.
The exit status is 1 if a number that must be 0 is above 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.conversions.answers import PEERS, Peers, as_entry, our_answer, planner_version  # noqa: E402
from benchmarks.conversions.cases import Case, network_cases, random_cases  # noqa: E402
from benchmarks.conversions.report import Row, as_markdown, failings, given_tile, rows_of, with_larger_tiles  # noqa: E402
from benchmarks.harness.arguments import among, device_counts  # noqa: E402
from benchmarks.harness.journal import Journal, default_folder  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402
from reshard.dialect_utils.platform.compat import jaxlib_version  # noqa: E402
from reshard.synthesis.network.topology_text import preset_names  # noqa: E402
from reshard.synthesis.plans.request import OBJECTIVES  # noqa: E402

DEVICES = (8, 12, 16, 24, 36, 64, 100, 256, 512)
INTERRUPTED = 130


class Benchmark:
    """Cases, and the journals with their answers. First call `ask_peers` and `plan`, in any order, then `rows`."""

    def __init__(self, cases: Sequence[Case], folder: Path):
        self.cases = cases
        self.answers = Journal(folder / f"peers-charged-for-slices-jaxlib-{jaxlib_version()}.jsonl")
        self.plans = Journal(folder / f"plans-{planner_version()}.jsonl")

    def ask_peers(self) -> None:
        open_ = [(case, name) for case in self.cases for name in PEERS if question(case, name) not in self.answers]
        if not open_:
            return
        with Peers(max(case.pair.mesh.size for case, _ in open_)) as peers:
            for case, name in shown(open_, "peers"):
                self.answers.add(question(case, name), as_entry(peers.ask(name, case)))

    def plan(self, objectives: Sequence[str] = OBJECTIVES) -> None:
        asked = [(case, on) for case in self.cases for on in _networks(case, objectives)]
        open_ = [(case, on) for case, on in asked if question(case, on or "bytes") not in self.plans]
        for case, on in shown(open_, "plans"):
            self.plans.add(question(case, on or "bytes"), asdict(our_answer(case, on)))
        if "time" in objectives:
            self._plan_with_their_tiles()

    def _plan_with_their_tiles(self) -> None:
        """Plans again with a peer's tile as the tile limit, if the peer is faster with a tile that R2 forbids."""
        wanted = [(row, tile) for row in self.rows() for tile in with_larger_tiles(row)]
        open_ = [
            each for each in wanted if question(each[0].case, given_tile(each[0].topology, each[1])) not in self.plans
        ]
        for row, tile_bytes in shown(open_, "plans with larger tiles"):
            found = our_answer(row.case, row.topology, tile_bytes)
            self.plans.add(question(row.case, given_tile(row.topology, tile_bytes)), asdict(found))

    def rows(self) -> list[Row]:
        return list(rows_of(self.cases, self.plans, self.answers, question))

    def how_far(self) -> str:
        """Returns in one line how many questions are answered."""
        asked = [question(case, name) for case in self.cases for name in PEERS]
        planned = [question(case, on or "bytes") for case in self.cases for on in _networks(case, OBJECTIVES)]
        answered, made = sum(each in self.answers for each in asked), sum(each in self.plans for each in planned)
        return (
            f"{len(self.cases):,} pairs; {answered:,} of {len(asked):,} answers of peers, {made:,} of "
            f"{len(planned):,} plans"
        )


def question(case: Case, asked: str) -> str:
    """Returns the key of a question in a journal: a peer, "bytes" or a topology, and the case."""
    return f"{asked} {case}"


def _networks(case: Case, objectives: Sequence[str]) -> list[str | None]:
    """Returns the networks on which to plan; None stands for the objective bytes, which needs none."""
    return [*([None] if "bytes" in objectives else []), *(case.topologies if "time" in objectives else ())]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    benchmark = Benchmark(_cases(options), options.state)
    try:
        if not options.report and options.only != "plans":
            benchmark.ask_peers()
        if not options.report and options.only != "peers":
            benchmark.plan(options.objectives)
    except KeyboardInterrupt:
        print(f"\nstopped with {benchmark.how_far()}; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    if options.only == "peers":
        return 0
    rows = benchmark.rows()
    head = f"{benchmark.how_far()}; jaxlib {jaxlib_version()}, planner {planner_version()}"
    text = f"{head}\n\n{as_markdown(rows, options.show)}"
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n")
    return int(any(failing.rows for failing in failings(rows)))


def _cases(options: argparse.Namespace) -> list[Case]:
    count = max(1, round(options.count * options.fraction))
    if options.suite == "networks":
        return network_cases(count, options.seed)
    return random_cases(options.devices, count, options.seed, options.presets)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "--suite",
        choices=("random", "networks"),
        default="random",
        help="random pairs, or programs' meshes on named networks",
    )
    add("--devices", type=device_counts, default=DEVICES, help="mesh sizes of random pairs, default %(default)s")
    add("--count", type=int, help="pairs for each number of devices, or each mesh; default 1000, or 100")
    add("--fraction", type=float, default=1.0, help="only this fraction of the pairs, e.g. 0.02")
    add("--seed", type=int, default=0)
    add(
        "--presets",
        type=among(preset_names()),
        default=preset_names(),
        help="topologies of random pairs, default all that fit",
    )
    add("--objectives", type=among(OBJECTIVES), default=OBJECTIVES, help="default both: bytes,time")
    add("--only", choices=("peers", "plans"), help="ask only the peers, or make only our plans")
    add("--report", action="store_true", help="only print the tables of the answers so far")
    add("--show", type=int, default=5, help="number of command lines of the worst pairs, default %(default)s")
    add("--state", type=Path, default=default_folder(), help="the folder of the journals, default %(default)s")
    add("--out", type=Path, help="write the tables to a Markdown file too")
    options = parser.parse_args(arguments)
    if options.count is None:
        options.count = 100 if options.suite == "networks" else 1000
    return options


if __name__ == "__main__":
    sys.exit(main())
