# SPDX-License-Identifier: Apache-2.0
"""A checkout that plans, in child processes that import it alone, and the version of its planner."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.before_after.problems import Call

WORKER = Path(__file__).with_name("worker.py")
CALLS_PER_PROCESS = 500  # planners keep plans in memory, which fills up


class CheckoutError(ValueError):
    """A folder is no checkout, or the processes do not import `reshard` from it."""


def sources_digest(root: Path) -> str:
    """Returns a digest of all sources and presets of a checkout's planner, with its subfolders.

    Raises: CheckoutError if there are none.
    """
    top = root / "synthesis"
    paths = sorted(path for path in top.rglob("*") if path.suffix in (".py", ".toml"))
    if not paths:
        raise CheckoutError(f"{root} is no checkout of reshard: it has no sources in synthesis")
    digest = hashlib.sha256()
    for path in paths:
        text = path.read_bytes()
        digest.update(f"{path.relative_to(top).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]


def answers(root: Path, calls: Sequence[Call], jobs: int) -> Iterator[tuple[Call, dict]]:
    """Yields each call with the checkout's answer as soon as the answer exists; `jobs` processes plan at once."""
    answered: SimpleQueue = SimpleQueue()
    is_over = threading.Event()

    def plan_batch(batch: Sequence[Call]) -> None:
        try:
            with Planner(root) as planner:
                for call in itertools.takewhile(lambda _: not is_over.is_set(), batch):
                    answered.put((call, planner.ask(call)))
        except BaseException as error:  # the waiting thread raises it
            answered.put(error)

    pool = ThreadPoolExecutor(jobs)
    try:
        for at in range(0, len(calls), CALLS_PER_PROCESS):
            pool.submit(plan_batch, calls[at : at + CALLS_PER_PROCESS])
        for _ in calls:
            found = answered.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)


class Planner:
    """A child process that plans with a checkout; a context manager, which starts and ends it.

    If the process ends by itself, the answer to its call is an error, and another process starts.
    """

    def __init__(self, root: Path):
        self.root = root.resolve()

    def __enter__(self) -> Planner:
        self._stderr = tempfile.TemporaryFile("w+")
        self._start()
        return self

    def __exit__(self, *exception) -> None:
        self._stop()
        self._stderr.close()

    def ask(self, call: Call) -> dict:
        """Returns the answer to a call. Raises: CheckoutError if no process can be started after one that ended."""
        said = ""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(call.arguments), file=self._process.stdin, flush=True)
            said = self._reply()
        if said:
            return json.loads(said)
        words = self._last_words()
        self._stop()
        self._start()
        return {"status": "error", "message": words, "seconds": 0.0}

    def _start(self) -> None:
        """Starts the process. Raises: CheckoutError if it imports `reshard` from elsewhere, or not at all."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "RESHARD_CACHE": "off"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr, "text": True}
        self._process = subprocess.Popen([sys.executable, "-P", str(WORKER)], env=environment, **pipes)
        said = self._reply()
        if not said:
            raise CheckoutError(f"{self.root} cannot plan: {self._last_words()}")
        if not Path(json.loads(said)).resolve().is_relative_to(self.root):
            raise CheckoutError(f"reshard is imported from {json.loads(said)}, not from {self.root}")

    def _reply(self) -> str:
        """Returns the next line of the process's output; empty if the process has ended."""
        assert self._process.stdout is not None  # stdout is a pipe
        return self._process.stdout.readline()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines() or ["no message"]
        return f"the process ended with {status}: {lines[-1][:400]}"

    def _stop(self) -> None:
        self._process.kill()
        self._process.communicate()  # closes the pipes, and waits for the process
