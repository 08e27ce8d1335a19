# SPDX-License-Identifier: Apache-2.0
"""Measures one example both ways, with stock XLA and with reshard: two processes, whose runs take turns."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.xla.child import Compiled, XlaChild
from reshard.tools.demo import outputs as demo_outputs
from reshard.tools.demo.outputs import Comparison

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 8
_REPLY_TIMEOUT_S = 600.0
_FEWEST_RUNS, _MOST_RUNS, _ENOUGH_SECONDS = 7, 25, 5.0


@dataclass(frozen=True, slots=True)
class Way:
    """One program as XLA compiled and ran it.

    Fields:
      compiled: the costs of the program, or how XLA failed on it.
      seconds: the time of each run, in order; empty if the program did not run.
      compile_seconds: the time to compile the executable that ran.
      problem: why it did not run; empty if it did.
    """

    compiled: Compiled
    seconds: tuple[float, ...] = ()
    compile_seconds: float = 0.0
    problem: str = ""

    @property
    def median_seconds(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    def middle_half(self) -> tuple[float, float]:
        """Returns the first and third quartile of the run times."""
        ordered = sorted(self.seconds)
        return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


@dataclass(frozen=True, slots=True)
class Measured:
    """One example, both ways.

    Fields:
      report: `reshard.optimize(...).report.to_dict()`.
      comparison: how the outputs compare; None if one of the two programs did not run.
    """

    name: str
    summary: str
    mesh: dict[str, int]
    stock: Way
    ours: Way
    report: dict
    is_rewritten: bool
    optimize_seconds: float
    comparison: Comparison | None

    @property
    def worse(self) -> tuple[str, ...]:
        """Returns the costs in which ours is worse than stock XLA: "received bytes", "temporaries"."""
        if not (self.stock.compiled.is_ok and self.ours.compiled.is_ok):
            return ()
        pairs = (("received bytes", "bytes_received"), ("temporaries", "temp_bytes"))
        return tuple(
            name for name, field in pairs if getattr(self.ours.compiled, field) > getattr(self.stock.compiled, field)
        )

    @property
    def is_time_within_noise(self) -> bool:
        """Returns whether the middle halves of both ways' run times overlap; true if both programs are the same."""
        if not self.is_rewritten:
            return True
        (stock_low, stock_high), (our_low, our_high) = self.stock.middle_half(), self.ours.middle_half()
        return stock_low <= our_high and our_low <= stock_high


class WorkerFailed(Exception):
    """A worker that died, hung or reported an error; the message says which."""


class Worker:
    """A process that compiles and runs one example one way, see worker.py; a context manager, which ends it."""

    def __init__(self, name: str, way: str, size: str, policy: str, folder: Path):
        self._folder = folder / way
        self._folder.mkdir()
        command = [sys.executable, "-P", "-m", "reshard.tools.demo.worker", name, way, str(self._folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--size={size}", f"--policy={policy}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=_environment(),
                cwd=ROOT,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @property
    def _log(self) -> Path:
        return self._folder / "log.txt"

    def send(self, command: str) -> None:
        """Starts a command; `reply` waits for its end."""
        assert self._process.stdin is not None  # it is a pipe
        try:
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `reply` raises with the way in which the worker died

    def reply(self) -> dict:
        """Returns the reply to the last command. Raises: WorkerFailed."""
        assert self._process.stdout is not None  # it is a pipe
        timer = threading.Timer(_REPLY_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise WorkerFailed(self._cause_of_death())
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply

    def ask(self, command: str) -> dict:
        self.send(command)
        return self.reply()

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"the process ended with {how}: {lines[-1] if lines else 'it wrote nothing'}"


def _environment() -> dict[str, str]:
    """Returns the worker's environment: this process's, with eight CPU devices and no other settings of jax and XLA."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    search_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, **compat.cpu_devices_environment(DEVICES), "PYTHONPATH": os.pathsep.join(search_path)}


def measure(
    name: str, *, size: str, policy: str, runs: int | None, child: XlaChild, say: Callable[[str], None]
) -> Measured:
    """Returns the measurements of one example both ways.

    Args:
      runs: the number of timed runs of each program; None means as many as fit into a few seconds.
      child: compiles the programs for their costs. say: told what is going on.
    Raises: WorkerFailed if the example cannot be built or optimized.
    """
    with (
        tempfile.TemporaryDirectory(prefix="reshard-demo-") as folder,
        Worker(name, "stock", size, policy, Path(folder)) as stock,
        Worker(name, "ours", size, policy, Path(folder)) as ours,
        Worker(name, "one", size, policy, Path(folder)) as one,
    ):
        return _Measurement(name, stock, ours, one, child, say).run(runs)


class _Measurement:
    """One measurement. State: `problems` has the reason for each way that does not run."""

    def __init__(
        self, name: str, stock: Worker, ours: Worker, one: Worker, child: XlaChild, say: Callable[[str], None]
    ):
        self.name, self.one, self.child, self.say = name, one, child, say
        self.workers = {"stock": stock, "ours": ours}
        self.problems: dict[str, str] = {}

    def run(self, runs: int | None) -> Measured:
        lowered = self._lowered()
        self.say("compiling both ways")
        compiled = {way: self._costs(way, reply) for way, reply in lowered.items()}
        ready = self._ask_both("compile")
        comparison = self._compare(ready)
        self.say("running both ways in turn")
        seconds = self._alternate(runs)
        found = {way: self._way(way, compiled[way], ready, seconds) for way in self.workers}
        told = lowered["ours"]
        return Measured(
            self.name,
            told["summary"],
            told["mesh"],
            found["stock"],
            found["ours"],
            told["report"],
            told["is_rewritten"],
            told["optimize_seconds"],
            comparison,
        )

    def _lowered(self) -> dict[str, dict]:
        """Returns the replies of both ways to `lower`. Raises: WorkerFailed."""
        self.say("lowering, finding and planning sites")
        lowered = self._ask_both("lower")
        for problem in self.problems.values():
            raise WorkerFailed(problem)
        return lowered

    def _way(self, way: str, compiled: Compiled, ready: dict[str, dict], seconds: dict[str, list[float]]) -> Way:
        compile_seconds = ready.get(way, {}).get("compile_seconds", 0.0)
        return Way(compiled, tuple(seconds.get(way, ())), compile_seconds, self.problems.get(way, ""))

    def _ask_both(self, command: str) -> dict[str, dict]:
        """Returns the replies of the ways that have had no problem so far; both ways work at the same time."""
        asked = [way for way in self.workers if way not in self.problems]
        for way in asked:
            self.workers[way].send(command)
        replies = {}
        for way in asked:
            try:
                replies[way] = self.workers[way].reply()
            except WorkerFailed as failure:
                self.problems[way] = str(failure)
        return replies

    def _costs(self, way: str, lowered: dict) -> Compiled:
        """Returns the costs of a module as XLA compiles it, in a child process, since XLA may abort."""
        compiled = self.child.compile(Path(lowered["module"]).read_text(), DEVICES)
        if not compiled.is_ok:
            self.problems[way] = f"XLA: {compiled.status}: {compiled.message}"
        return compiled

    def _compare(self, ready: dict[str, dict]) -> Comparison | None:
        if len(ready) < 2:
            return None
        stock, ours = (
            demo_outputs.load(reply["outputs"], reply["dtypes"]) for reply in (ready["stock"], ready["ours"])
        )
        names = ready["stock"]["names"]
        found = demo_outputs.compare(names, stock, ours)
        if found.is_equal:
            return found
        self.say("running on one device")
        try:
            self.one.ask("lower")
            reply = self.one.ask("compile")
        except WorkerFailed:
            return found
        return demo_outputs.compare_with_one_device(
            names, stock, ours, demo_outputs.load(reply["outputs"], reply["dtypes"])
        )

    def _alternate(self, runs: int | None) -> dict[str, list[float]]:
        """Returns the seconds of each run. Stock and ours take turns, and their order changes after each turn."""
        order = [way for way in self.workers if way not in self.problems]
        seconds: dict[str, list[float]] = {way: [] for way in order}
        while order and not _is_enough(len(seconds[order[0]]), sum(map(sum, seconds.values())), runs):
            for way in order:
                seconds[way].append(self.workers[way].ask("run")["seconds"])
            order.reverse()
        return seconds


def _is_enough(done: int, seconds: float, wanted: int | None) -> bool:
    if wanted is not None:
        return done >= wanted
    return done >= _MOST_RUNS or done >= _FEWEST_RUNS and seconds > _ENOUGH_SECONDS
