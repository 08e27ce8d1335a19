# SPDX-License-Identifier: Apache-2.0
"""A child process that runs the passes on modules of the user, because MLIR may end the process that it runs in.

`reshard-opt` forks before it loads anything. A library cannot do this, because its caller has threads, among them those
of XLA. So this module has one child process. It is started when it is first needed, works on any number of modules one
after another, and is started again if it dies.

Shardy and XLA are made for the modules that JAX lowers, so the passes work on these modules in the caller's process.
The exception is a rare feature that has ended processes before: partial sums.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from reshard.dialect_utils.ir.diagnostics import ERROR, DiagnosedError, Diagnostic, Place, note
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.xla.child import cause_of_death, child_environment
from reshard.dialect_utils.xla.worker import LENGTH, pack_frame, unpack
from reshard.passes.driver.base import Session
from reshard.passes.results import result_cache
from reshard.passes.results.result_cache import Output

_WORKER = ("-m", "reshard.compiling.child_process_worker")
_SEEN_BY_CHILD = ("RESHARD_", "XDG_", "HOME", "TMPDIR")

_log = logging.getLogger("reshard.optimize")


def output(source: bytes, settings: Mapping[str, Any], name: str, session: Session) -> Output | None:
    """Returns the pipeline's output for a module, made in the child; the session gets its messages and results.

    Returns: None if there can be no child here.
    Raises: DiagnosedError, also where MLIR ended the child; what else was raised there.
    """
    try:
        reply = _child().ask({"source": source, "settings": dict(settings), "name": name})
    except OSError as error:
        _log.debug("no child process can be started: %s", error)
        return None
    except _Ended as ended:
        raise DiagnosedError([ended.diagnostic(f"<{name}>")]) from None
    if reply["status"] == "diagnosed":
        raise DiagnosedError([result_cache.diagnostic(each) for each in reply["diagnostics"]])
    if reply["status"] == "fault":
        reply["error"].add_note(reply["traceback"])
        raise reply["error"]
    made = result_cache.replayed(reply["entry"], session)
    return Output(made.content, made.is_unchanged, reply["is_lasting"])


@dataclass(eq=False)
class _Ended(Exception):
    """Raised if the child process has ended. `stage`: its last stage; `how`: the signal, and its last message."""

    stage: str
    how: str

    @property
    def is_out_of_time(self) -> bool:
        return self.how.startswith("SIGXCPU")

    def diagnostic(self, name: str) -> Diagnostic:
        """Returns the error message for the caller; `name` is the place that it gives."""
        if self.is_out_of_time:
            return Diagnostic(ERROR, f"{self.stage} took too long; the input may be damaged", Place(name))
        signal_name, _, said = self.how.partition(": ")
        whose = (
            "the input is damaged, or shows a fault of"
            if self.stage == "reading"
            else "this is a fault of reshard or of"
        )
        versions = ", ".join(
            f"{package} {version}" for package, version in zip(("jax", "jaxlib"), compat.jax_versions())
        )
        notes = [note(said.splitlines()[0])] if said else []
        notes.append(note(f"{whose} the MLIR in jaxlib; the module can be compiled as it came; versions: {versions}"))
        return Diagnostic(
            ERROR, f"{self.stage} ended the process that it ran in ({signal_name})", Place(name), tuple(notes)
        )


@dataclass
class _Child:
    """The child process of this process, started when it is needed.

    Invariant: `_process` is None, or a child that has answered all requests so far and sees what its parent sees in
    `_seen`.
    """

    _process: subprocess.Popen | None = None
    _said: BinaryIO | None = None
    _seen: tuple = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the child's answer to a request. Raises: _Ended; OSError if no child can be started.

        A child that runs out of time may have spent it on what earlier requests left, so a new one is asked then.
        """
        with self._lock:
            before, process = self._process, self._ready()
            try:
                return self._asked(process, request)
            except _Ended as ended:
                if process is not before or not ended.is_out_of_time:
                    raise
            return self._asked(self._ready(), request)

    def _asked(self, process: subprocess.Popen, request: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None  # pipes, by _start
        stage = "starting"
        try:
            process.stdin.write(pack_frame(request))
            process.stdin.flush()
            while "status" not in (reply := _frame(process.stdout)):
                stage = reply.get("stage", stage)
                progress.at(reply.get("progress", stage))
            return reply
        except (EOFError, BrokenPipeError):
            code = process.wait()
            raise _Ended(stage, cause_of_death(code, self._what_it_said())) from None
        except BaseException:  # such as Ctrl-C: a late answer must not meet the next request
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the child, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None and self._said is not None
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            self._said.close()

    def _ready(self) -> subprocess.Popen:
        seen = _surroundings()
        if self._process is not None and self._process.poll() is None and seen == self._seen:
            return self._process
        self.stop()
        process = self._start()
        self._seen = seen
        return process

    def _start(self) -> subprocess.Popen:
        self._said = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", *_WORKER]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, env=child_environment(1))
        self._process = process
        return process

    def _what_it_said(self) -> str:
        assert self._said is not None  # since _start
        self._said.seek(0)
        return self._said.read().decode(errors="replace")


def _surroundings() -> tuple:
    """Returns the working directory and the environment variables that the child must share."""
    steering = sorted((name, value) for name, value in os.environ.items() if name.startswith(_SEEN_BY_CHILD))
    return os.getcwd(), tuple(steering)


def _frame(stream) -> dict[str, Any]:
    return unpack(_exactly(stream, LENGTH.unpack(_exactly(stream, LENGTH.size))[0]))


def _exactly(stream, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        part = stream.read(min(size - len(read), 1 << 20))
        if not part:
            raise EOFError
        read += part
    return bytes(read)


@functools.cache
def _child_of(process: int) -> _Child:
    child = _Child()
    atexit.register(lambda: child.stop() if os.getpid() == process else None)
    return child


def _child() -> _Child:
    """Returns the child of this process; a forked process has its own child."""
    return _child_of(os.getpid())
