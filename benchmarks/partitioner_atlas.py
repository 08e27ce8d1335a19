#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches for what XLA's partitioner computes wrongly, one op at a time, in random layouts, against one device.

    python benchmarks/partitioner_atlas.py --cases 20000              # resumable; an hour or so
    python benchmarks/partitioner_atlas.py --cases 2000 --families scatter,pad
    python benchmarks/partitioner_atlas.py --show 1234:5              # the module of one case
    python benchmarks/partitioner_atlas.py --reduce 1234:5            # the simplest layouts in which it is still wrong

Each difference is held against the table of `reshard.dialect_utils.analysis.miscompilations`, which the passes ask.
If the table does not explain some differences, they are listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.atlas import layouts, programs  # noqa: E402
from benchmarks.harness.journal import Journal, default_folder  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402

CASES_PER_PROGRAM = 10
TIMEOUT_S = 60.0
DIED, HUNG, WRONG, RIGHT, REFUSED = "died", "hung", "wrong", "right", "refused"


class Worker:
    """A process that runs cases; it is started again after it has died or hung.

    Args:
      emission: how modules are written before they run, as `--emit` says; empty: they run as they are.
    """

    def __init__(self, emission: str = "") -> None:
        self.emission = emission
        self._process: subprocess.Popen | None = None
        self._stderr = tempfile.TemporaryFile("a+b")

    def outcomes(self, program: int, families: Sequence[str], cases: Sequence[int]) -> list[dict]:
        """Returns the outcome of each case of a program; a death or a hang is an outcome."""
        left, found = list(cases), []
        while left:
            for answer in self._answers({"program": program, "families": list(families), "cases": left}, len(left)):
                found.append({"case": left[0], **answer})
                left.pop(0)
        return found

    def given(self, program: int, families: Sequence[str], case: layouts.Case) -> str:
        """Returns the status of a given case, which need not be a drawn one."""
        request = {"program": program, "families": list(families), "given": [case.to_json()]}
        return next(self._answers(request, 1))["status"]

    def _answers(self, request: dict, count: int) -> Iterator[dict]:
        """Yields an answer for each case; after a death or a hang of the worker there are no more answers."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        process.stdin.write((json.dumps({**request, "emission": self.emission}) + "\n").encode())
        for _ in range(count):
            if not select.select([process.stdout], [], [], TIMEOUT_S)[0]:
                self.close()
                yield {"status": HUNG}
                return
            answer = json.loads(process.stdout.readline())
            if answer["status"] == DIED:
                yield {**answer, "message": self._last_words()}
                return
            yield answer

    def _last_words(self) -> str:
        """Returns XLA's last message before it died."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        self._stderr.truncate(0)
        said = [line for line in lines if line.startswith("F") and "Check failed" in line]
        return said[-1].partition("] ")[2][:200] if said else ""

    def _started(self) -> subprocess.Popen:
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.atlas.worker"]
            root = Path(__file__).resolve().parent.parent
            environment = {**os.environ, "PYTHONPATH": str(root)}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr}
            self._process = subprocess.Popen(
                command, cwd=root, env=environment, bufsize=0, start_new_session=True, **pipes
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 1 if the table leaves a difference unexplained."""
    flags = _parser().parse_args(argv)
    families = tuple(flags.families.split(",")) if flags.families else ()
    if unknown := set(families) - set(programs.FAMILIES):
        _parser().error(
            f"no family is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(programs.FAMILIES))}"
        )
    if flags.show:
        program, case = _asked(flags.show, families)
        print(layouts.text(program, case), end="")
        return 0
    if flags.reduce or flags.upstream:
        return _reduce(flags.reduce or flags.upstream, families, flags.upstream is not None)
    rows = _run(flags, families)
    from benchmarks.atlas import report

    return report.tell(list(report.outcomes(rows, families)))


def _run(flags: argparse.Namespace, families: tuple[str, ...]) -> dict[int, list[dict]]:
    """Returns the outcomes of each program; programs that the journal lacks are run."""
    from reshard.dialect_utils.platform import compat

    folder = Path(flags.journal) if flags.journal else default_folder() / "atlas"
    name = "-".join([compat.jaxlib_version(), fingerprint(), *families])
    journal = Journal(folder / f"{name}.jsonl")
    numbers = range(flags.first, flags.first + -(-flags.cases // CASES_PER_PROGRAM))
    missing = [number for number in numbers if str(number) not in journal]
    with ThreadPoolExecutor(flags.jobs) as pool:
        workers = [Worker() for _ in range(flags.jobs)]
        ask = functools.partial(_ask, workers, families)
        try:
            for number, found in zip(shown(missing, "programs"), pool.map(ask, missing)):
                journal.add(str(number), {"outcomes": found})
        finally:
            for worker in workers:
                worker.close()
    kept = {number: journal.get(str(number)) for number in numbers}
    return {number: entry["outcomes"] for number, entry in kept.items() if entry is not None}


def fingerprint() -> str:
    """Returns a digest of the sources that draw the cases, since other sources draw other cases."""
    sources = [Path(inspect.getfile(module)).read_bytes() for module in (programs, layouts)]
    return hashlib.sha256(b"".join([*sources, str(CASES_PER_PROGRAM).encode()])).hexdigest()[:10]


def _ask(workers: list[Worker], families: tuple[str, ...], number: int) -> list[dict]:
    worker = workers.pop()
    try:
        return worker.outcomes(number, families, range(CASES_PER_PROGRAM))
    finally:
        workers.append(worker)


def _asked(text: str, families: tuple[str, ...]) -> tuple[programs.Program, layouts.Case]:
    number, case = map(int, text.split(":"))
    program = programs.drawn(number, families)
    return program, layouts.drawn(program, f"{number} {case}")


def _reduce(text: str, families: tuple[str, ...], is_report: bool) -> int:
    """Removes axes from a case's layouts while its outcome stays the same, and prints the smallest case."""
    from benchmarks.atlas.reducing import reduced

    number = int(text.split(":")[0])
    program, case = _asked(text, families)
    worker = Worker()
    status = worker.given(number, families, case)
    smallest = reduced(program, case, lambda each: worker.given(number, families, each) == status)
    worker.close()
    if is_report:
        from benchmarks.atlas import upstream
        from reshard.dialect_utils.platform import compat

        print(
            upstream.report(number, program, smallest, f"wrong values of {program.family}", compat.jaxlib_version()),
            end="",
        )
    else:
        print(f"// {status}\n{layouts.text(program, smallest)}", end="")
    return 0 if status == WRONG else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", type=int, default=2000, help=f"number of cases, {CASES_PER_PROGRAM} of each program (default: 2000)"
    )
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first program (default: 0)")
    parser.add_argument("--families", metavar="A,B", help=f"only these: {', '.join(sorted(programs.FAMILIES))}")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--journal", metavar="FOLDER", help="the folder for the answers (default: in the cache)")
    parser.add_argument("--show", metavar="PROGRAM:CASE", help="print the module of a case")
    parser.add_argument("--reduce", metavar="PROGRAM:CASE", help="take axes away while the outcome stays the same")
    parser.add_argument(
        "--upstream", metavar="PROGRAM:CASE", help="print the reduced case as a report for XLA's maintainers"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
