#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the pipeline with random JAX programs, each against stock XLA, in a worker process that may die.

    python3 test/fuzz/run.py --seed 0 --count 100 --policy better
    python3 test/fuzz/run.py --seed 0 --count 2000 --wide    # the long tier: meshes of 4 to 16 devices
    python3 test/fuzz/run.py --seed 17 --reduce              # the smallest recipe that still fails, as JSON
    python3 test/fuzz/run.py --recipe failing.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEVICES, WIDE_DEVICES = 8, 16
PROGRAM_TIMEOUT_S = 180.0
_COUNTED = ("found", "rewritten", "kept", "skipped")


class Worker:
    """A process that checks programs; started again when it has died or hung.

    What it runs is compiled fast and runs slowly. What is compared in bytes is compiled in a child of its own, as always.
    """

    def __init__(self, devices: int = DEVICES):
        self.devices = devices
        self._process: subprocess.Popen | None = None
        self._stderr = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def check(self, recipe: Mapping, policy: str) -> dict:
        """Returns the outcome, see `checks.Outcome`; a death or hang of the worker is a failure too."""
        self._ensure_started()
        self._process.stdin.write((json.dumps({"recipe": recipe, "policy": policy}) + "\n").encode())
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            is_ready = bool(selector.select(PROGRAM_TIMEOUT_S))
        answer = self._process.stdout.readline() if is_ready else b""
        if answer:
            return json.loads(answer)
        if not is_ready:
            self.kill()  # or its answer would be there for the next recipe
        outcome = {"seed": recipe["seed"], "invalid": "", "stock": "", "ours": "", "seconds": 0.0}
        outcome |= {"dropped": 0, "again": 0, "stock_wrong": 0}
        outcome |= {name: {} for name in _COUNTED}
        return outcome | {"failures": [["died", self._last_words()] if is_ready else ["hang", f"{PROGRAM_TIMEOUT_S} s"]]}

    def close(self) -> None:
        """Stops the process; the next check starts another."""
        if self._process is not None:
            self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process.wait()
            self._process = None

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._stderr = tempfile.TemporaryFile()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        flags = f"--xla_force_host_platform_device_count={self.devices} --xla_backend_optimization_level=0"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "checks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        )

    def _last_words(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        fatal = [line for line in lines if "Check failed" in line or line.startswith("F0")]
        self._process = None
        return f"exit {code}: " + "\n".join(fatal[-2:] or lines[-12:])

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def failing_kinds(outcome: Mapping) -> set[str]:
    return {kind for kind, _ in outcome["failures"]}


def main(argv: list[str] | None = None) -> int:
    flags = _parser().parse_args(argv)
    sys.path[:0] = [str(ROOT), str(HERE)]
    os.environ["JAX_PLATFORMS"] = "cpu"
    import programs

    seeds = range(flags.seed, flags.seed + (1 if flags.reduce else flags.count))
    recipes = [json.loads(flags.recipe.read_text())] if flags.recipe else (programs.recipe(seed, flags.wide) for seed in seeds)
    totals = Totals()
    with Worker(WIDE_DEVICES if flags.wide else DEVICES) as worker:
        for recipe in recipes:
            outcome = worker.check(recipe, flags.policy)
            totals.add(outcome)
            for kind, detail in outcome["failures"]:
                print(f"seed {outcome['seed']}: {kind}: {detail}", flush=True)
            if outcome["failures"] and flags.reduce:
                from reducing import reduced

                smallest = reduced(recipe, lambda each: worker.check(each, flags.policy), failing_kinds(outcome))
                print(json.dumps(smallest))
            if flags.progress and totals.programs % flags.progress == 0:
                print(totals.line(), flush=True)
            if flags.seconds and time.monotonic() - totals.start > flags.seconds:
                print(f"out of time after seed {outcome['seed']}")
                break
    print(totals.text())
    return int(bool(totals.failures))


class Totals:
    """Sums over outcomes."""

    def __init__(self):
        self.start = time.monotonic()
        self.programs = self.invalid = self.dropped = self.again = self.stock_wrong = self.with_rewrites = 0
        self.failures: Counter = Counter()
        self.statuses: Counter = Counter()
        self.counted: dict[str, Counter] = {name: Counter() for name in _COUNTED}

    def add(self, outcome: Mapping) -> None:
        self.programs += 1
        self.invalid += bool(outcome["invalid"])
        self.dropped += outcome["dropped"]
        self.again += outcome["again"]
        self.stock_wrong += outcome["stock_wrong"]
        self.with_rewrites += bool(outcome["rewritten"])
        self.failures.update(failing_kinds(outcome))
        self.statuses[f"stock {outcome['stock'] or 'unknown'}, ours {outcome['ours'] or 'as it came'}"] += 1
        for name in _COUNTED:
            self.counted[name].update(outcome[name])

    def line(self) -> str:
        found, rewritten = (sum(self.counted[name].values()) for name in ("found", "rewritten"))
        return (
            f"{self.programs} programs ({self.invalid} invalid), {found} sites, {rewritten} rewritten in "
            f"{self.with_rewrites} programs, {sum(self.failures.values())} failures, {time.monotonic() - self.start:.0f} s"
        )

    def text(self) -> str:
        """Returns the totals, one line per counter."""
        rows = {**self.counted, "compiled": self.statuses, "failures": self.failures}
        counts = {name: [f"{count} {what}" for what, count in each.most_common()] for name, each in rows.items()}
        lines = [f"  {name}: {', '.join(each) or 'none'}" for name, each in counts.items()]
        single = {"taken back by the check": self.dropped, "rewritten again": self.again}
        single["outputs wrong in stock alone"] = self.stock_wrong
        return "\n".join([self.line(), *(f"  {name}: {count}" for name, count in single.items()), *lines])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first program; go on where a run ended")
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time, at the end of a program")
    parser.add_argument("--policy", choices=("better", "always"), default="better")
    parser.add_argument("--recipe", type=Path, help="check the recipe in this JSON file")
    parser.add_argument("--wide", action="store_true", help=f"programs on meshes of 4 to {WIDE_DEVICES} devices")
    parser.add_argument("--reduce", action="store_true", help="reduce what fails, and print the recipe")
    parser.add_argument("--progress", type=int, default=50, help="print totals after this many programs; 0 never")
    return parser


if __name__ == "__main__":
    sys.exit(main())
