# SPDX-License-Identifier: Apache-2.0
"""Compares our rules for ops on tiles with XLA's partitioner, one op at a time, in random layouts on 2 to 12 devices.

    python -m benchmarks.atlas.op_rules --cases 2000             # resumable
    python -m benchmarks.atlas.op_rules --cases 500 --families slice,pad

The cases are those of `partitioner_atlas.py`. Each is written with `--emit=local`, run on CPU devices, and held against
the op on one device; XLA compiles it both ways, and the bytes that a device receives are compared. The exit status is 1
if a value is wrong. `--show 5` lists the cases of each family in which ours receives most more than stock XLA's, as
arguments of `partitioner_atlas.py --show`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.atlas import layouts, programs
from benchmarks.atlas.worker import written
from benchmarks.harness.journal import Journal, default_folder
from benchmarks.harness.progress import shown
from benchmarks.partitioner_atlas import CASES_PER_PROGRAM, RIGHT, Worker, fingerprint
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.xla.child import shared_child
from reshard.synthesis.common import store
from reshard.synthesis.common.text_table import markdown_head, markdown_line

EMISSION = "local"
LEAST_BYTES = 64  # of a ratio: less is a handful of scalars


@dataclass(frozen=True, slots=True)
class Row:
    """A case: what became of its values, and the bytes that a device receives with stock XLA and with our rules.

    Attributes:
      status: that of our form, as `partitioner_atlas.py` has it. message: the reason if it is refused.
      stock_bytes, our_bytes: None if XLA does not compile the form.
    """

    program: int
    case: int
    family: str
    status: str
    message: str = ""
    stock_bytes: int | None = None
    our_bytes: int | None = None

    @property
    def is_compared(self) -> bool:
        return self.status == RIGHT and self.stock_bytes is not None and self.our_bytes is not None

    @property
    def ratio(self) -> float:
        """Returns ours / stock's; differences of a few bytes count little."""
        return ((self.our_bytes or 0) + LEAST_BYTES) / ((self.stock_bytes or 0) + LEAST_BYTES)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a value is wrong."""
    options = _parser().parse_args(argv)
    families = tuple(options.families.split(",")) if options.families else ()
    rows = list(_rows(options, families))
    _tell(rows, options.show)
    return int(any(row.status not in (RIGHT, "refused", "no reference") for row in rows))


def _rows(options: argparse.Namespace, families: Sequence[str]) -> Iterator[Row]:
    from reshard.dialect_utils.platform import compat

    rules = store.fingerprint(("reshard.synthesis", "reshard.dialect_utils")) or "unknown"  # other rules, other answers
    name = "-".join(["rules", compat.jaxlib_version(), fingerprint(), rules[:16], *families])
    folder = Path(options.journal) if options.journal else default_folder() / "op_rules"
    journal, worker = Journal(folder / f"{name}.jsonl"), Worker(EMISSION)
    numbers = range(options.first, options.first + -(-options.cases // CASES_PER_PROGRAM))
    try:
        for number in shown(list(numbers), "programs"):
            kept = journal.get(str(number))
            if kept is None:
                kept = {"rows": [asdict(row) for row in _of_program(number, families, worker)]}
                journal.add(str(number), kept)
            yield from (Row(**each) for each in kept["rows"])
    finally:
        worker.close()


def _of_program(number: int, families: Sequence[str], worker: Worker) -> Iterator[Row]:
    program = programs.drawn(number, families)
    for outcome in worker.outcomes(number, families, range(CASES_PER_PROGRAM)):
        at, status, message = outcome["case"], outcome["status"], outcome.get("message", "")
        stock = ours = None
        if status == RIGHT:
            case = layouts.drawn(program, f"{number} {at}")
            text = layouts.text(program, case)
            stock = _received(text, case.devices)
            try:
                ours = _received(written(text, EMISSION), case.devices)
            except DiagnosedError as error:
                message = str(error).splitlines()[0]
        yield Row(number, at, program.family, status, message, stock, ours)


def _received(text: str, devices: int) -> int | None:
    compiled = shared_child().compile(text, devices)
    return compiled.bytes_received if compiled.is_ok else None


def _tell(rows: Sequence[Row], show: int) -> None:
    by_family: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_family[row.family].append(row)
    names = ("op", "cases", "right", "wrong", "refused", "no more bytes", "ours / stock, geomean", "worst")
    print(markdown_head(names))
    for family, some in [*sorted(by_family.items()), ("all", list(rows))]:
        status = Counter(row.status for row in some)
        compared = [row for row in some if row.is_compared]
        ratios = [row.ratio for row in compared]
        no_more = sum((row.our_bytes or 0) <= (row.stock_bytes or 0) for row in compared)
        share = f"{no_more} of {len(compared)}"
        mean = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"
        worst = f"{max(ratios):.2f}" if ratios else "-"
        wrong = len(some) - status[RIGHT] - status["refused"] - status["no reference"]
        cells = (family, len(some), status[RIGHT], wrong, status["refused"], share, mean, worst)
        print(markdown_line(tuple(map(str, cells))))
    reasons = Counter(row.message for row in rows if row.status == "refused")
    for reason, count in reasons.most_common(show):
        print(f"refused {count} times: {reason}")
    for family, some in sorted(by_family.items()):
        more = sorted((row for row in some if row.is_compared and row.ratio > 1), key=lambda row: -row.ratio)
        for row in more[:show]:
            print(f"{family} {row.program}:{row.case}: {row.our_bytes:,} bytes, stock {row.stock_bytes:,}")
    for row in rows:
        if row.status not in (RIGHT, "refused", "no reference"):
            print(f"{row.status}: {row.family} {row.program}:{row.case} {row.message}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="number of cases (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first program (default: 0)")
    parser.add_argument("--families", metavar="A,B", help=f"only these: {', '.join(sorted(programs.FAMILIES))}")
    parser.add_argument("--journal", metavar="FOLDER", help="the folder for the answers (default: in the cache)")
    parser.add_argument("--show", type=int, default=3, help="cases to list under each heading (default: 3)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
