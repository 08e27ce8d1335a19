#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the pipeline with random JAX programs, each against stock XLA, in a worker process that may die.

python3 test/fuzz/run.py --seed 0 --count 100 --policy better
python3 test/fuzz/run.py --seed 0 --count 2000 --wide    # the long tier: meshes of 4 to 16 devices
python3 test/fuzz/run.py --ops extended --policy both --jobs 2 --count 4000 --journal found.jsonl    # goes on
python3 test/fuzz/run.py --seed 17 --reduce              # the smallest recipe that still fails, as JSON
python3 test/fuzz/run.py --recipe failing.json
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEVICES, WIDE_DEVICES = 8, 16
POLICIES = ("better", "always")
PROGRAM_TIMEOUT_S = 180.0
_FAST_FLAGS = ["--xla_backend_optimization_level=0"]
if metadata.version("jaxlib").startswith("0.10."):  # later ones do not have it
    _FAST_FLAGS.append(
        "--xla_cpu_use_fusion_emitters=false"
    )  # the partitioner stays the same, and the rest of XLA takes a third of the time
_COUNTED = ("found", "rewritten", "kept", "skipped", "values")
_SUMMED = ("dropped", "again", "stock_wrong", "wrong_alike", "wrong_left")


class Worker:
    """A process that checks programs; after a death or hang the next check starts a new process.

    The programs that it runs are compiled fast and run slowly. The programs whose bytes are compared are compiled in
    its own child, as always.
    """

    def __init__(self, devices: int = DEVICES, is_fast: bool = False):
        self.devices, self.is_fast = devices, is_fast
        self._process: subprocess.Popen | None = None
        self._stderr = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def check(self, recipe: Mapping, policy: str, with_reference: bool = False, verifies_values: bool = False) -> dict:
        """Returns the outcome, see `checks.Outcome`; a death or hang of the worker is a failure too."""
        self._ensure_started()
        request = {"recipe": recipe, "policy": policy, "reference": with_reference, "values": verifies_values}
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            is_ready = bool(selector.select(PROGRAM_TIMEOUT_S))
        answer = self._process.stdout.readline() if is_ready else b""
        if answer:
            return json.loads(answer)
        if not is_ready:
            self.kill()  # otherwise its late answer would be taken for the next recipe's
        outcome = {"seed": recipe["seed"], "invalid": "", "stock": "", "ours": "", "seconds": 0.0}
        outcome |= {name: 0 for name in _SUMMED} | {"notes": []}
        outcome |= {name: {} for name in _COUNTED}
        return outcome | {
            "failures": [["died", self._last_words()] if is_ready else ["hang", f"{PROGRAM_TIMEOUT_S} s"]]
        }

    def close(self) -> None:
        """Stops the process; the next check starts another process."""
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
        flags = " ".join([f"--xla_force_host_platform_device_count={self.devices}", *_FAST_FLAGS])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "checks.py"), *(["--fast"] if self.is_fast else [])],
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
    totals, journal = Totals(), Journal(flags)
    for outcome in journal.known:
        totals.add(outcome)
    if journal.known:
        print(f"{len(journal.known)} checks are in {flags.journal}", flush=True)
    for policy, outcome in _outcomes(flags, journal):
        totals.add(outcome)
        journal.add(policy, outcome)
        _tell(policy, outcome)
        if flags.progress and totals.programs % flags.progress == 0:
            print(totals.line(), flush=True)
    print(totals.text())
    return int(bool(totals.failures))


def _tell(policy: str, outcome: Mapping) -> None:
    for kind, detail in [*outcome["failures"], *(["note", each] for each in outcome["notes"])]:
        print(f"seed {outcome['seed']}, {policy}: {kind}: {detail}", flush=True)
    if "smallest" in outcome:
        print(json.dumps(outcome["smallest"]), flush=True)


def _recipes(flags: argparse.Namespace) -> Iterator[dict]:
    import extended
    import programs

    if flags.recipe:
        yield json.loads(flags.recipe.read_text())
        return
    draw = extended.recipe if flags.ops == "extended" else programs.recipe
    for seed in range(flags.seed, flags.seed + (1 if flags.reduce else flags.count)):
        yield draw(seed, flags.wide)


def _outcomes(flags: argparse.Namespace, journal: Journal) -> Iterator[tuple[str, dict]]:
    """Yields pairs of a policy and an outcome as they are ready; each of the `--jobs` workers takes the next recipe."""
    recipes, found, lock = _recipes(flags), queue.Queue(), threading.Lock()
    deadline = time.monotonic() + flags.seconds if flags.seconds else float("inf")

    def work() -> None:
        try:
            with Worker(WIDE_DEVICES if flags.wide else DEVICES, flags.fast) as worker:
                while (recipe := _next(recipes, lock)) is not None and time.monotonic() < deadline:
                    for policy in POLICIES if flags.policy == "both" else (flags.policy,):
                        if not journal.has(policy, recipe["seed"]):
                            found.put((policy, _outcome(worker, recipe, policy, flags)))
        finally:
            found.put(None)

    for _ in range(flags.jobs):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(flags.jobs):
        yield from iter(found.get, None)
    if time.monotonic() > deadline:
        print("out of time")


def _next(recipes: Iterator[dict], lock: threading.Lock) -> dict | None:
    with lock:
        return next(recipes, None)


def _outcome(worker: Worker, recipe: dict, policy: str, flags: argparse.Namespace) -> dict:
    outcome = worker.check(recipe, policy, flags.reference, flags.verify_values)
    if failing_kinds(outcome) == {"hang"}:
        worker.kill()
    if outcome["failures"] and flags.reduce:
        from reducing import reduced

        outcome["smallest"] = reduced(
            recipe, lambda each: worker.check(each, policy, verifies_values=flags.verify_values), failing_kinds(outcome)
        )
    return outcome


class Journal:
    """The outcomes of a run in a file, one line of JSON each; another run continues from this file.

    Attributes:
      known: outcomes in the file of checks that the flags ask for.
    """

    def __init__(self, flags: argparse.Namespace):
        self.path = flags.journal
        self.which = {name: getattr(flags, name) for name in ("ops", "wide", "reference", "verify_values")}
        policies = POLICIES if flags.policy == "both" else (flags.policy,)
        seeds = range(flags.seed, flags.seed + flags.count)
        rows = [row for row in self._rows() if all(row[name] == value for name, value in self.which.items())]
        self._known = {
            (row["policy"], row["seed"]): row for row in rows if row["policy"] in policies and row["seed"] in seeds
        }
        self.known = list(self._known.values())

    def has(self, policy: str, seed: int) -> bool:
        return (policy, seed) in self._known

    def add(self, policy: str, outcome: Mapping) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps({**self.which, "policy": policy, **outcome}) + "\n")

    def _rows(self) -> Iterator[dict]:
        """Yields the rows of the file; removes an incomplete last line, which an interrupted run leaves."""
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole)
        yield from map(json.loads, whole.splitlines())


class Totals:
    """Sums over outcomes."""

    def __init__(self):
        self.start = time.monotonic()
        self.programs = self.invalid = self.with_rewrites = 0
        self.summed = Counter()
        self.failures: Counter = Counter()
        self.statuses: Counter = Counter()
        self.counted: dict[str, Counter] = {name: Counter() for name in _COUNTED}

    def add(self, outcome: Mapping) -> None:
        self.programs += 1
        self.invalid += bool(outcome["invalid"])
        self.summed.update({name: outcome[name] for name in _SUMMED})
        self.with_rewrites += bool(outcome["rewritten"])
        self.failures.update(failing_kinds(outcome))
        self.statuses[f"stock {outcome['stock'] or 'unknown'}, ours {outcome['ours'] or 'as it came'}"] += 1
        for name in _COUNTED:
            self.counted[name].update(outcome[name])

    def line(self) -> str:
        found, rewritten = (sum(self.counted[name].values()) for name in ("found", "rewritten"))
        return (
            f"{self.programs} checks ({self.invalid} invalid), {found} sites, {rewritten} rewritten in "
            f"{self.with_rewrites} programs, {sum(self.failures.values())} failures, "
            f"{time.monotonic() - self.start:.0f} s"
        )

    def text(self) -> str:
        """Returns the totals, one line per counter."""
        rows = {**self.counted, "compiled": self.statuses, "failures": self.failures}
        counts = {name: [f"{count} {what}" for what, count in each.most_common()] for name, each in rows.items()}
        lines = [f"  {name}: {', '.join(each) or 'none'}" for name, each in counts.items()]
        names = ("taken back by the check", "rewritten again", "outputs wrong in stock alone")
        names += ("outputs wrong in stock and ours alike", "outputs wrong where nothing was rewritten")
        single = {name: self.summed[each] for name, each in zip(names, _SUMMED, strict=True)}
        single["seconds of processor time"] = round(_processor_seconds())
        return "\n".join([self.line(), *(f"  {name}: {count}" for name, count in single.items()), *lines])


def _processor_seconds() -> float:
    """Returns the processor seconds of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seed", type=int, default=0, help="the number of the first program; a later run can continue there"
    )
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time, at the end of a program")
    parser.add_argument(
        "--policy",
        choices=(*POLICIES, "both", "auto", "local", "released", "held", "chosen"),
        default="better",
        help="how sites are chosen; auto and local write the module with this --emit, released is local with "
        "conversions repeated, held is local with all held that loops would convert in each turn, chosen is auto with "
        "chosen layouts wherever they can be taken",
    )
    parser.add_argument(
        "--ops", choices=("base", "extended"), default="base", help="the family of programs; see extended.py"
    )
    parser.add_argument("--reference", action="store_true", help="compare every program with one device, too")
    parser.add_argument(
        "--verify-values",
        action="store_true",
        help="let optimize also check values; sites that it gives back are noted",
    )
    parser.add_argument("--jobs", type=int, default=1, help="workers")
    parser.add_argument(
        "--fast", action="store_true", help="let XLA's child compile as fast as it can: for values, not for temporaries"
    )
    parser.add_argument(
        "--journal", type=Path, help="write outcomes to this file, and skip programs that it has already"
    )
    parser.add_argument("--recipe", type=Path, help="check the recipe in this JSON file")
    parser.add_argument("--wide", action="store_true", help=f"programs on meshes of 4 to {WIDE_DEVICES} devices")
    parser.add_argument("--reduce", action="store_true", help="reduce programs that fail, and print their recipes")
    parser.add_argument("--progress", type=int, default=50, help="print totals after this many checks; 0 never")
    return parser


if __name__ == "__main__":
    sys.exit(main())
