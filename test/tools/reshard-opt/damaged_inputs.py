#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs reshard-opt on damaged files: each must exit with 0 or 1 in time, without a traceback or a partial output file.

    python3 test/tools/reshard-opt/damaged_inputs.py --count 10000 --seed 0 --keep /tmp/finds

Files of each form are cut off, get bits flipped, bytes replaced, or pieces of their text exchanged. Each runs in a child of
this process, forked before any MLIR context exists, through the command's own containment.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from reshard.tools import contained, reshard_opt  # noqa: E402

PIPELINE = "--pass-pipeline=builtin.module(import-gspmd,find-mismatches)"
CPU_LIMIT_S = 10.0
PATIENCE_S = 90.0  # of wall clock, for a machine that does other things too
TEXTS = (
    "test/passes/import_gspmd_round_trip.mlir",
    "test/passes/plan_sites_chains.mlir",
    "test/tools/reshard-opt/gspmd.mlir",
    "test/tools/reshard-opt/vhlo_text.mlir",
    "docs/tiny.mlir",
)


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if any file was handled wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="damaged files to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FOLDER", help="where files go that were handled wrongly")
    flags = parser.parse_args(argv)
    rng = random.Random(flags.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # for reproducers
        seeds = _seeds(Path(folder))
        for number in range(flags.count):
            form = rng.choice(sorted(seeds))
            content = _damaged(rng, rng.choice(seeds[form]), form)
            outcome, problem = _try(Path(folder), content)
            outcomes[form, outcome] += 1
            if problem:
                wrong += 1
                print(f"{number}: {form}: {problem}", flush=True)
                if flags.keep:
                    Path(flags.keep).mkdir(parents=True, exist_ok=True)
                    Path(flags.keep, f"{flags.seed}-{number}").write_bytes(content)
            if number % 500 == 499:
                print(f"{number + 1} of {flags.count}", flush=True)
    for (form, outcome), count in sorted(outcomes.items()):
        print(f"{form:18} {outcome:28} {count}")
    print(f"{flags.count} damaged files, {wrong} handled wrongly")
    return 1 if wrong else 0


def _seeds(folder: Path) -> dict[str, list[bytes]]:
    """Returns whole files by form; bytecode and artifacts are made by the tool itself."""
    texts = [ROOT / path for path in TEXTS]
    hlo = ROOT / "test/tools/reshard-opt/Inputs/dump.hlo"
    seeds = {"text": [path.read_bytes() for path in texts], "HLO text": [hlo.read_bytes()]}
    for form, flag in (("bytecode", "--emit-bytecode"), ("portable artifact", "--emit-portable-artifact")):
        for path in texts:
            status = _run([str(path), flag, "--pass-pipeline=builtin.module()", "-o", str(folder / "seed")], folder)[0]
            if status == 0:
                seeds.setdefault(form, []).append((folder / "seed").read_bytes())
    artifact = seeds["portable artifact"][0]
    seeds["export file"] = [b"\x10\0\0\0" + bytes(60) + artifact]
    return seeds


def _damaged(rng: random.Random, content: bytes, form: str) -> bytes:
    damaged = bytearray(content)
    kind = rng.choice(("cut", "flip", "replace", "exchange") if "text" in form else ("cut", "flip", "replace"))
    if kind == "cut":
        return bytes(damaged[: rng.randrange(1, len(damaged))])
    if kind == "exchange":
        words = content.split(b" ")
        for _ in range(rng.choice((1, 2, 5))):
            words[rng.randrange(len(words))] = rng.choice(words)
        return b" ".join(words)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(damaged))
        damaged[at] = damaged[at] ^ (1 << rng.randrange(8)) if kind == "flip" else rng.randrange(256)
    return bytes(damaged)


def _try(folder: Path, content: bytes) -> tuple[str, str]:
    """Returns the outcome, and what is wrong with it, if anything is."""
    source, output = folder / "in", folder / "out"
    source.write_bytes(content)
    output.unlink(missing_ok=True)
    before = {path.name for path in folder.iterdir()}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    status, text = _run([str(source), PIPELINE, "-o", str(output)], folder)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    left = {path.name for path in folder.iterdir()} - before - {"out", "stderr"}
    if status is None:
        return "hang", f"does not end in {PATIENCE_S:.0f} s"
    if seconds > CPU_LIMIT_S:
        return "slow", f"takes {seconds:.0f} s of processor time"
    if "Traceback" in text:
        return "traceback", "prints a traceback"
    if "fault of its own" in text:
        return "fault", " ".join(text.split())[:300]
    if status not in (0, 1) or (status == 1) == output.exists():
        return "status", f"exit status {status}, output {'exists' if output.exists() else 'missing'}: {text[:200]}"
    if left:
        return "left", f"leaves {', '.join(sorted(left))}"
    if status == 1 and "error:" not in text:
        return "silent", "fails without an error"
    return ("ended by a signal, contained" if "ended the process" in text else f"exit status {status}"), ""


def _run(arguments: list[str], folder: Path) -> tuple[int | None, str]:
    """Returns the exit status of the command, None after PATIENCE_S, and what it printed on stderr."""
    log = folder / "stderr"
    harness = os.fork()
    if harness == 0:
        os.setpgid(0, 0)
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        outputs = [arguments[arguments.index("-o") + 1]]
        status = contained.run(lambda: reshard_opt.main(arguments), arguments[0], outputs)
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


if __name__ == "__main__":
    import reshard.passes.find_mismatches  # noqa: F401  loaded once, here, for all children
    import reshard.tools.reshard_opt_driver  # noqa: F401

    sys.exit(main())
