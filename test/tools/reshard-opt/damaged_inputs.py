#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs reshard-opt on damaged files: each must exit with 0 or 1 in time, without a traceback or a partial output file.

    nice -n 10 python3 test/tools/reshard-opt/damaged_inputs.py --count 10000 --seed 0 --keep finds

Files of each form are damaged in the ways of `mutations`. Each runs in a child of this process, forked before any MLIR
context exists, through the command's own containment. File number N of a seed is the same file in every run: `--first N
--count 1`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(Path(__file__).parent))

import mutations  # noqa: E402

from reshard.tools import reshard_opt  # noqa: E402
from reshard.tools.common import contained  # noqa: E402

REWRITE = (
    "--pass-pipeline=builtin.module("
    "import-gspmd,find-mismatches,plan-sites{policy=always},synthesize-collectives,strip-findings)"
)
NOTHING = "--pass-pipeline=builtin.module()"
OUTPUTS = ((), (), ("--emit-bytecode",), ("--emit-portable-artifact",))
CPU_LIMIT_S = 10.0
PATIENCE_S = 90.0  # wall-clock time, which is also enough on a busy machine
GSPMD = (
    "test/passes/import_gspmd.mlir",
    "test/passes/import_gspmd_round_trip.mlir",
    "test/tools/reshard-opt/gspmd.mlir",
)
TEXTS = (
    "docs/tiny.mlir",
    "examples/fft_pencil.mlir",
    "test/passes/find_mismatches.mlir",
    "test/passes/plan_sites_chains.mlir",
    "test/passes/synthesize_collectives.mlir",
    "test/tools/reshard-opt/vhlo_text.mlir",
)


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if any file was handled wrongly, and else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="damaged files to try")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FOLDER", help="where files go that were handled wrongly")
    flags = parser.parse_args(argv)
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong, slowest_s, start = 0, 0.0, time.monotonic()
    with _folder() as folder:
        wholes = _whole_files(Path(folder))
        for number in range(flags.first, flags.first + flags.count):
            rng = random.Random(f"{flags.seed}.{number}")
            form = rng.choice(sorted(wholes))
            mutation, content = mutations.mutate(rng, rng.choice(wholes[form]), is_text="text" in form)
            outcome, problem, seconds = _try(Path(folder), content, rng.choice(OUTPUTS))
            outcomes[form, outcome] += 1
            slowest_s = max(slowest_s, seconds)
            if problem:
                wrong += 1
                print(f"{number}: {form}, {mutation}: {problem}", flush=True)
                _keep(flags.keep, f"{flags.seed}-{number}", content)
            done = number + 1 - flags.first
            if done % 500 == 0:
                print(f"{done} of {flags.count}, {wrong} handled wrongly, {time.monotonic() - start:.0f} s", flush=True)
    for (form, outcome), count in sorted(outcomes.items()):
        print(f"{form:18} {outcome:54} {count}")
    print(f"{flags.count} damaged files, {wrong} handled wrongly; the slowest took {slowest_s:.1f} s of processor time")
    return 1 if wrong else 0


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Yields a folder for all files, including reproducers, and removes it itself, since each child runs atexit."""
    tempfile.tempdir = tempfile.mkdtemp()
    try:
        yield tempfile.tempdir
    finally:
        shutil.rmtree(tempfile.tempdir)


def _keep(folder: str | None, name: str, content: bytes) -> None:
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_bytes(content)


def _whole_files(folder: Path) -> dict[str, list[bytes]]:
    """Returns undamaged files by form; the tool itself writes bytecode and artifacts, one for each part of a text."""
    parts = [part for path in TEXTS for part in _parts(path)]
    gspmd = [part for path in GSPMD for part in _parts(path)]
    hlo = ROOT / "test/tools/reshard-opt/Inputs/dump.hlo"
    wholes = {"text": parts, "GSPMD text": gspmd, "HLO text": [hlo.read_bytes()]}
    for form, flag in (("bytecode", "--emit-bytecode"), ("portable artifact", "--emit-portable-artifact")):
        wholes[form] = [made for part in (*parts[::3], *gspmd[::3]) if (made := _converted(folder, part, flag))]
    if importlib.util.find_spec("flatbuffers"):  # jax.export needs this package for its files
        wholes["export file"] = [_export_file(folder)]
    return wholes


def _parts(path: str) -> list[bytes]:
    return (ROOT / path).read_bytes().split(b"// -----\n")


def _converted(folder: Path, part: bytes, flag: str) -> bytes | None:
    source, output = folder / "part", folder / "converted"
    source.write_bytes(part)
    output.unlink(missing_ok=True)
    _run([str(source), flag, NOTHING, "-o", str(output)], folder)
    return output.read_bytes() if output.exists() else None


def _export_file(folder: Path) -> bytes:
    path = folder / "export.bin"
    subprocess.run([sys.executable, ROOT / "test/tools/reshard-opt/Inputs/make_export.py", path], check=True)
    return path.read_bytes()


def _try(folder: Path, content: bytes, form: tuple[str, ...]) -> tuple[str, str, float]:
    """Returns the outcome, a description of the error or "", and the seconds of processor time."""
    source, output = folder / "in", folder / "out"
    source.write_bytes(content)
    output.unlink(missing_ok=True)
    before = {path.name for path in folder.iterdir()}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    status, text = _run([str(source), REWRITE, *form, "-o", str(output)], folder)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    left = {path.name for path in folder.iterdir()} - before - {"out", "stderr"}
    outcome, problem = _judged(status, text, seconds, output.exists(), left)
    return outcome, problem, seconds


def _judged(status: int | None, text: str, seconds: float, has_output: bool, left: set[str]) -> tuple[str, str]:
    if status is None:
        return "hang", f"does not end in {PATIENCE_S:.0f} s"
    if seconds > CPU_LIMIT_S:
        return "slow", f"takes {seconds:.0f} s of processor time"
    if "Traceback" in text:
        return "traceback", "prints a traceback"
    if "fault of its own" in text:
        return "fault", " ".join(text.split())[:300]
    if status not in (0, 1) or (status == 1) == has_output:
        return "status", f"exit status {status}, output {'exists' if has_output else 'missing'}: {text[:200]}"
    if left:
        return "left", f"leaves {', '.join(sorted(left))}"
    if status == 1 and "error:" not in text:
        return "silent", "fails without an error"
    died = re.search(r"error: (.*) (ended the process|took too long)", text)
    return (f"{died[1]} {died[2]}, contained" if died else f"exit status {status}"), ""


def _run(arguments: list[str], folder: Path) -> tuple[int | None, str]:
    """Returns the exit status of the command, or None after PATIENCE_S, and its stderr."""
    log = folder / "stderr"
    harness = os.fork()
    if harness == 0:
        os.setpgid(0, 0)
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        outputs = [arguments[arguments.index("-o") + 1]]
        status = contained.run(lambda: reshard_opt.main(arguments), arguments[0], outputs)
        atexit._run_exitfuncs()  # ends XLA's child processes and cleans up, as at the end of a real process
        sys.stderr.flush()
        os._exit(status)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done, status = os.waitpid(harness, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")
        if time.monotonic() > deadline:
            os.killpg(harness, signal.SIGKILL)
            os.waitpid(harness, 0)
            return None, ""
        time.sleep(0.005)


def _load_once() -> None:
    """Loads the modules that each child would load, before the children fork."""
    import jax.export  # noqa: F401

    import reshard.tools.opt.driver  # noqa: F401
    from reshard.passes.driver import registry

    for name in registry.PASSES:
        registry.load(name)


if __name__ == "__main__":
    _load_once()
    sys.exit(main())
