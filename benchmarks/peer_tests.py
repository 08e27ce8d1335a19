#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the library on each part of other projects' .mlir tests, in four forms; no run may end the process.

    git clone --depth 1 https://github.com/openxla/shardy
    git clone --depth 1 https://github.com/openxla/stablehlo
    python benchmarks/peer_tests.py shardy stablehlo

Files are split at `// -----`. Each part is given to `reshard.optimize` in worker processes, with default options, with
policy="always", and with emit="local"; and to `reshard-opt --report=html`. The output is written, read back and
verified by MLIR. Every answer is kept at once, so a run that was stopped continues where it ended.

The outcomes that are allowed: `rewritten`; `nothing to do`; `left`, unchanged with a remark; `diagnosed`, an error at
its place, because MLIR's own reader refuses the part; `refused`, an error at its place although MLIR reads the part;
`contained`, an error because MLIR ended the child process that had the part. The outcomes that are not allowed: `death`
of the worker; `fault`, an exception that is no diagnostic; `invalid`, an output that MLIR refuses, or that is another
module although nothing was rewritten; `late`, out of time. The exit status is 1 if one of these occurs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import queue
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.journal import Journal, default_folder  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402

MARKER = "// -----"
FORMS = ("default", "always", "local", "html")
FINE = ("rewritten", "nothing to do", "left", "diagnosed", "refused", "contained")
BAD = ("death", "fault", "invalid", "late")
LIMIT_S = 120.0
INTERRUPTED = 130
_OPTIONS = {"default": {}, "always": {"policy": "always"}, "local": {"emit": "local"}}


@dataclass(frozen=True, slots=True)
class Part:
    """One module of a file. `name`, which the lists show, is the file's path with the number of the part, from 1."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def parts_in(folders: Sequence[Path]) -> list[Part]:
    """Returns the parts of all .mlir files in folders, without empty parts, in the order of the files' names."""
    files = sorted({path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("*.mlir"))})
    return [part for path in files for part in _parts_of(path)]


def _parts_of(path: Path) -> Iterator[Part]:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    lines: list[str] = []
    number = 1
    for line in [*text.splitlines(), MARKER]:
        if line.rstrip() != MARKER:
            lines.append(line)
            continue
        if "".join(lines).strip():
            yield Part(f"{path}#{number}", "\n".join(lines) + "\n")
        number, lines = number + 1, []


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*", help=".mlir files, or folders with them")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"some of {','.join(FORMS)}")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="worker processes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for one part in one form")
    parser.add_argument("--check", action="store_true", help="let XLA compile rewritten modules before and after")
    parser.add_argument(
        "--again",
        default="",
        metavar="KINDS",
        help="ask again for parts with one of these outcomes, such as death,fault",
    )
    parser.add_argument("--report", action="store_true", help="only print the tables of the answers so far")
    parser.add_argument("--show", type=int, default=100, help="how many to list of each kind of failure")
    parser.add_argument("--list", default="", metavar="KINDS", help="list these kinds too, such as contained")
    parser.add_argument(
        "--state", type=Path, help="the file of answers; default: one for each state of the sources of reshard"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return work()
    if not flags.folders:
        parser.error("which folders? give those of .mlir files that you have checked out")
    parts = parts_in(flags.folders)
    if not parts:
        parser.error(f"no .mlir file in {', '.join(map(str, flags.folders))}")
    forms = tuple(flags.forms.split(","))
    if wrong := sorted({*forms} - {*FORMS}):
        parser.error(f"--forms={wrong[0]}: choose from {', '.join(FORMS)}")
    return _run(flags, parts, forms)


def _run(flags: argparse.Namespace, parts: list[Part], forms: tuple[str, ...]) -> int:
    journal = Journal(flags.state or default_folder() / f"peer-tests-{_version()}.jsonl")
    status = 0
    if not flags.report:
        again = {*flags.again.split(",")}
        asked = [
            (part, form)
            for part in parts
            for form in forms
            if _is_open(journal.get(_question(part, form, flags)), again)
        ]
        try:
            _ask(asked, journal, flags)
        except KeyboardInterrupt:
            status = INTERRUPTED
    answers = {(part.name, form): journal.get(_question(part, form, flags)) for part in parts for form in forms}
    print(as_text(answers, flags.show, tuple(filter(None, flags.list.split(",")))))
    return status or int(any(answer and answer["kind"] in BAD for answer in answers.values()))


def _is_open(answer: dict | None, again: set[str]) -> bool:
    return answer is None or answer["kind"] in again


def _question(part: Part, form: str, flags: argparse.Namespace) -> str:
    return f"{part.digest} {form}{' check' if flags.check else ''}"


def _version() -> str:
    from reshard.passes.driver.stores import RESULTS

    fingerprint = RESULTS.fingerprint()
    return "unknown" if fingerprint is None else fingerprint[:16]


# Asking


def _ask(asked: list[tuple[Part, str]], journal: Journal, flags: argparse.Namespace) -> None:
    """Gives questions to workers, and puts each answer into the journal at once."""
    open_: queue.SimpleQueue = queue.SimpleQueue()
    done: queue.SimpleQueue = queue.SimpleQueue()
    for each in asked:
        open_.put(each)
    threads = [threading.Thread(target=_serve, args=(open_, done, flags), daemon=True) for _ in range(flags.jobs)]
    for thread in threads:
        thread.start()
    for _ in shown(asked, "parts in forms"):
        (part, form), answer = done.get()
        journal.add(_question(part, form, flags), answer)


def _serve(open_: queue.SimpleQueue, done: queue.SimpleQueue, flags: argparse.Namespace) -> None:
    worker = Worker(flags.limit)
    with contextlib.suppress(queue.Empty):
        while True:
            part, form = open_.get_nowait()
            done.put(((part, form), worker.ask({"text": part.text, "form": form, "check": flags.check})))
    worker.stop()


class Worker:
    """A process that answers one question after another; if a question ends it, the next one starts a new process."""

    def __init__(self, limit_s: float):
        self._limit_s = limit_s
        self._process: subprocess.Popen | None = None

    def ask(self, question: dict) -> dict:
        """Returns the answer to a question; it is `death` or `late` if the process ended or took too long."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended(process)
        deadline_s = time.monotonic() + self._limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            is_there = selector.select(max(0.0, deadline_s - time.monotonic()))
        if not is_there:
            self.stop()
            return {"kind": "late", "message": f"no answer after {self._limit_s:g} s"}
        line = process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else self._ended(process)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ended(self, process: subprocess.Popen) -> dict:
        code = process.wait()
        self._process = None
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return {"kind": "death", "message": name}

    def _started(self) -> subprocess.Popen:
        command = [sys.executable, __file__, "--worker"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


# In the worker


def work() -> int:
    """Answers the questions on stdin, each a line of JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        start_s = time.monotonic()
        answer = _answer(json.loads(line))
        answers.write(json.dumps({**answer, "seconds": round(time.monotonic() - start_s, 3)}) + "\n")
        answers.flush()
    return 0


def _answer(question: dict) -> dict:
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    text = question["text"].encode("utf-8", "surrogateescape")
    try:
        if question["form"] == "html":
            return _by_command_line(text)
        return _by_library(text, {**_OPTIONS[question["form"]], "check": question["check"]})
    except DiagnosedError as error:
        return _diagnosed(str(error), text)
    except Exception as error:
        return {"kind": "fault", "message": _with_place(error)}


def _diagnosed(said: str, text: bytes) -> dict:
    first = said.splitlines()[0]
    if " ended the process" in first or " took too long" in first:
        return {"kind": "contained", "message": first}
    return {"kind": "refused" if _is_readable(text) else "diagnosed", "message": first}


def _is_readable(text: bytes) -> bool:
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    try:
        _read(text)
    except DiagnosedError:
        return False
    return True


def _by_library(text: bytes, options: dict) -> dict:
    import reshard

    result = reshard.optimize(text, **options)
    report = result.report.to_dict()
    result.report.text()
    result.report._repr_html_()
    if wrong := _what_is_wrong(text, result.module.encode(), result.is_rewritten):
        return {"kind": "invalid", "message": wrong}
    return {"kind": _kind(result.is_rewritten, [*report["remarks"], *report["warnings"]])}


def _kind(is_rewritten: bool, remarks: list[str]) -> str:
    if is_rewritten:
        return "rewritten"
    return "left" if remarks else "nothing to do"


def _by_command_line(text: bytes) -> dict:
    """Returns the outcome of a part in `reshard-opt` with an HTML report, which must be complete."""
    from reshard.passes import find_mismatches, plan_sites, synthesize_collectives  # noqa: F401  loaded once, not in each child
    from reshard.pictures import report_page  # noqa: F401
    from reshard.tools.common import contained
    from reshard.tools.opt import driver as reshard_opt_driver  # noqa: F401
    from reshard.tools.reshard_opt import main

    folder = tempfile.mkdtemp()  # a child would remove a TemporaryDirectory at its end
    try:
        given, made, report = (Path(folder, name) for name in ("in.mlir", "out.mlir", "report.html"))
        given.write_bytes(text)
        arguments = [str(given), "--policy=always", "--report=html", f"--report-file={report}", "-o", str(made)]

        def in_child() -> int:
            sys.stderr = Path(folder, "said").open("w", buffering=1)
            return main(arguments)

        with contextlib.redirect_stderr(io.StringIO()) as of_parent:
            status = contained.run(in_child, str(given))
        said = of_parent.getvalue() or Path(folder, "said").read_text(errors="replace")
        if status:
            return _of_failure(status, said, text)
        remarks = [line for line in said.splitlines() if "remark:" in line]
        is_rewritten = b'"is_rewritten": true' in report.read_bytes() or not _is_same(text, made.read_bytes())
        wrong = _what_is_wrong(text, made.read_bytes(), is_rewritten)
        if not report.read_text().rstrip().endswith("</html>"):
            wrong = "the report is no whole page"
        return {"kind": "invalid", "message": wrong} if wrong else {"kind": _kind(is_rewritten, remarks)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_failure(status: int, said: str, text: bytes) -> dict:
    lines = [line for line in said.splitlines() if "error:" in line] or said.splitlines() or [f"exit {status}"]
    if "Traceback" in said or "through a fault of its own" in said or status != 1:
        return {"kind": "fault", "message": lines[0]}
    return _diagnosed(lines[0], text)


def _what_is_wrong(before: bytes, after: bytes, is_rewritten: bool) -> str:
    """Returns the fault of an output, or "" if it is valid, and unchanged where nothing was rewritten."""
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    try:
        _read(after)
    except DiagnosedError as error:
        return f"MLIR refuses what was written: {str(error).splitlines()[0]}"
    return "" if is_rewritten or _is_same(before, after) else "nothing was rewritten, and another module was written"


def _is_same(before: bytes, after: bytes) -> bool:
    return before == after or _read(before) == _read(after)


def _read(text: bytes) -> str:
    """Returns a module's text as MLIR prints it, after MLIR has read and verified it. Raises: DiagnosedError."""
    from reshard.dialect_utils.ir.module_files import ModuleFile
    from reshard.dialect_utils.platform.bindings import make_context

    return str(ModuleFile("<part>", text).chunks()[0].parse(make_context()))  # parsing verifies too


def _with_place(error: Exception) -> str:
    import traceback

    text = "".join([*traceback.format_exception(error), *getattr(error, "__notes__", ())])
    path, line, function = re.findall(r'File "([^"]*)", line (\d+), in (\S+)', text)[
        -1
    ]  # a child's traceback is in a note
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({Path(path).name}:{line}, {function})"


# Tables


def as_text(answers: dict[tuple[str, str], dict | None], most: int, also: tuple[str, ...] = ()) -> str:
    """Returns the table of counts by form and kind, and a list of the outcomes that are not allowed."""
    from reshard.synthesis.common.text_table import table

    forms = list(dict.fromkeys(form for _, form in answers))
    counts = {
        form: Counter(answer["kind"] if answer else "open" for (_, of), answer in answers.items() if of == form)
        for form in forms
    }
    kinds = [*FINE, *BAD, *(["open"] if any(each["open"] for each in counts.values()) else [])]
    rows = [[kind, *(f"{counts[form][kind]:,}" for form in forms)] for kind in kinds]
    total = ["parts", *(f"{sum(counts[form].values()):,}" for form in forms)]
    lines = [table(["", *forms], [*rows, total], "l" + "r" * len(forms))]
    for kind in (*BAD, *also):
        found = [(name, form, answer) for (name, form), answer in answers.items() if answer and answer["kind"] == kind]
        if found:
            lines += [
                "",
                f"{kind}:",
                *(f"  {name} {form}: {answer.get('message', '')}" for name, form, answer in found[:most]),
            ]
            lines += [f"  and {len(found) - most} more"] if len(found) > most else []
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
