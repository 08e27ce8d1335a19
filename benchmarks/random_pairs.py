# SPDX-License-Identifier: Apache-2.0
"""Compares our chains with those of all peers on random redistributions, compiled for CPU devices.

    python benchmarks/random_pairs.py [--devices 8,64 --count 300] [--report] [--curves FILE.svg] ...

Peers are stock XLA, Shardy's pass, PyTorch's DTensor where torch is installed, and the paper's normal form; see
`conversions/compiled.py`. Each answer is put into a file at once, so a run that was stopped continues where it ended.
The exit status is 1 if a number that must be 0 is above 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import curves  # noqa: E402
from benchmarks.conversions.answers import planner_version  # noqa: E402
from benchmarks.conversions.compiled import NAMES, OURS, PEERS, Compiler, Found  # noqa: E402
from benchmarks.conversions.pairs import Pair, random_pairs  # noqa: E402
from benchmarks.conversions.pairs_report import Row, as_curves, as_markdown, failings  # noqa: E402
from benchmarks.harness.arguments import among, device_counts  # noqa: E402
from benchmarks.harness.journal import Journal, default_folder  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402
from reshard.dialect_utils.compare import peers_dtensor  # noqa: E402
from reshard.dialect_utils.platform.compat import jaxlib_version  # noqa: E402
from reshard.tools.common.versions import versions  # noqa: E402

DEVICES = (8, 12, 16, 24, 32, 36, 48, 64)
ELEMENTS = ("i1", "i4", "i8", "bf16", "f32", "f64")
INTERRUPTED = 130


class Benchmark:
    """Pairs, and the journals with their answers. First call `ask`, then `rows`.

    The peers' answers depend on their versions. Our plans, and chains that are lowered like ours, also depend on the
    planner's sources.
    """

    def __init__(self, pairs: Sequence[Pair], who: Sequence[str], element: str, folder: Path):
        self.pairs, self.who, self.element = pairs, who, element
        compiler = f"jaxlib-{jaxlib_version()}"
        self._theirs = Journal(folder / f"compiled-{compiler}.jsonl")
        self._lowered = Journal(folder / f"compiled-plans-{planner_version()}-{compiler}.jsonl")

    def ask(self) -> None:
        open_ = [
            (who, pair)
            for pair in self.pairs
            for who in self.who
            if self._question(who, pair) not in self._journal(who)
        ]
        if not open_:
            return
        with Compiler(max(pair.mesh.size for _, pair in open_), self.element) as compiler:
            for who, pair in shown(open_, "pairs"):
                self._journal(who).add(self._question(who, pair), asdict(compiler.ask(who, pair)))

    def rows(self) -> list[Row]:
        """Returns a row for each pair for which all answers are known."""
        found = []
        for pair in self.pairs:
            entries = {who: self._journal(who).get(self._question(who, pair)) for who in self.who}
            known = {who: Found(**entry) for who, entry in entries.items() if entry is not None}
            if len(known) == len(entries):
                found.append(Row(pair, self.element, known))
        return found

    def how_far(self) -> str:
        return (
            f"{len(self.rows()):,} of {len(self.pairs):,} pairs answered by {', '.join(NAMES[who] for who in self.who)}"
        )

    def _journal(self, who: str) -> Journal:
        return self._theirs if who in ("xla", "dtensor") else self._lowered

    def _question(self, who: str, pair: Pair) -> str:
        name = f"dtensor {metadata.version('torch')}" if who == "dtensor" else who
        return f"{name} {self.element} {pair}"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    who = [*OURS, *options.peers]
    if "dtensor" in who and not peers_dtensor.is_installed():
        who.remove("dtensor")
        print(peers_dtensor.LEFT_OUT, file=sys.stderr)
    benchmark = Benchmark(_pairs(options), who, options.element, options.state)
    try:
        if not options.report:
            benchmark.ask()
    except KeyboardInterrupt:
        print(f"\nstopped with {benchmark.how_far()}; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    rows = benchmark.rows()
    text = f"{benchmark.how_far()}; {_environment_text()}\n\n{as_markdown(rows, who, options.show)}"
    print(text)
    if options.markdown:
        options.markdown.write_text(f"{text}\n")
    if options.out:
        options.out.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
    if rows and (options.curves or options.ratios):
        _write_curves(as_curves(rows, who, _environment_text()), options)
    return int(any(failing.rows for failing in failings(rows, who)))


def _write_curves(drawn: curves.Figure, options: argparse.Namespace) -> None:
    if options.ratios:
        options.ratios.write_text(drawn.to_json())
    if options.curves:
        options.curves.write_text(curves.svg(drawn))
    print(f"\n{curves.as_markdown(drawn)}")


def _environment_text() -> str:
    torch = [f"torch {metadata.version('torch')}"] if peers_dtensor.is_installed() else []
    known = [f"{name} {version}" for name, version in versions().items() if name != "jax"]
    return ", ".join([*known, *torch, f"{os.cpu_count()} cores"])


def _pairs(options: argparse.Namespace) -> list[Pair]:
    """Returns the pairs; the numbers of devices take turns, so that an unfinished run has pairs with all of them."""
    least = {"least_elements": options.least_elements}
    columns = (random_pairs(options.seed, options.count, (each,), **least) for each in options.devices)
    return [pair for row in zip(*columns, strict=True) for pair in row]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--devices", type=device_counts, default=DEVICES, help="mesh sizes, default %(default)s")
    add("--count", type=int, default=100, help="pairs per mesh size, default %(default)s")
    add("--seed", type=int, default=0)
    add("--least-elements", type=int, default=1 << 16, help="least elements of the global array, default %(default)s")
    add("--element", choices=ELEMENTS, default="f32", help="element type, default %(default)s")
    add("--peers", type=among(PEERS), default=PEERS, help="the peers to compare with; xla is needed; default all")
    add("--report", action="store_true", help="only print the tables of the pairs that have answers")
    add("--show", type=int, default=5, help="pairs listed under each heading, default %(default)s")
    add("--state", type=Path, default=default_folder(), help="the folder of the answers, default %(default)s")
    add("--markdown", type=Path, help="write the tables to a file too")
    add("--out", type=Path, help="write every row as JSON")
    add("--curves", type=Path, help="draw the sorted ratios, as SVG")
    add("--ratios", type=Path, help="write the values of the curves as JSON, for curves.py")
    options = parser.parse_args(arguments)
    if "xla" not in options.peers:
        parser.error("--peers: xla has to be among them, since temporaries are held against stock XLA's")
    return options


if __name__ == "__main__":
    sys.exit(main())
