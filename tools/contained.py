# SPDX-License-Identifier: Apache-2.0
"""Work in a child process whose end by a signal is a diagnostic.

MLIR and XLA end the process at what they do not expect, above all in damaged bytecode. No handler in that process could put
this right, so the tool forks before it loads anything: the child does all the work, the parent waits. On success this costs
the fork. Where there is no fork (Windows), the work runs in this process.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

_STAGE_BYTES = 256
_PR_SET_PDEATHSIG = 1

# What the child is at, for the parent to read when the child is gone; None in a process that nobody watches.
_stage: mmap.mmap | None = None


def run(
    work: Callable[[], int], name: str, outputs: Sequence[str] = (), on_death: Callable[[str, str], None] | None = None
) -> int:
    """Returns the exit status of `work`, run in a child process; 1, with a diagnostic, if a signal ended that.

    Args:
      name: of the input, for the diagnostic. outputs: files that the child may have begun, beside which nothing is to be left.
      on_death: called after the diagnostic with the stage that the child was at and what became of it.
    """
    global _stage
    if not hasattr(os, "fork"):
        return work()
    _stage = mmap.mmap(-1, _STAGE_BYTES)
    parent = os.getpid()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _end_with_parent(parent)
        return leave(work())
    for forwarded in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(forwarded, lambda number, _: os.kill(child, number))
    status = _wait(child)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    _remove_begun(outputs, child)
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        return 128 + number
    stage = bytes(_stage).rstrip(b"\0").decode() or "starting"
    what = "took too long" if number == signal.SIGXCPU else f"ended the process ({signal.Signals(number).name})"
    _explain(name, stage, what)
    if on_death is not None:
        on_death(stage, what)
    return 1


def leave(status: int) -> int:
    """Ends this process with what is due at its end, but as it stands: to free all that it has, a large module say, takes long.

    Returns: the status, for Python to end with, where a stream cannot be flushed; it says so.
    """
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return status
    os._exit(status)


def enter(stage: str, cpu_s: float | None = None) -> None:
    """Notes what the work is at, as in `reading ended the process`; a stage may be given a limit of processor time."""
    if _stage is None:
        return
    import resource

    _stage[:] = stage.encode()[:_STAGE_BYTES].ljust(_STAGE_BYTES, b"\0")
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = most if cpu_s is None else math.ceil(time.process_time() + cpu_s)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, most))


def _wait(child: int) -> int:
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:  # the child has it too, and ends in its own way
            continue


def _explain(name: str, stage: str, what: str) -> None:
    print(f"{name}: error: {stage} {what}; no output is written", file=sys.stderr)
    where = "the file is damaged, or shows a fault of" if stage == "reading" else "this is a fault of reshard or of"
    from reshard.tools.versions import versions_text

    versions = ", ".join(versions_text().splitlines())
    print(f"{name}: note: {where} the MLIR in jaxlib; versions: {versions}", file=sys.stderr)


def _remove_begun(outputs: Sequence[str], child: int) -> None:
    from reshard.dialect_utils.module_files import unfinished

    for path in outputs:
        with contextlib.suppress(OSError):
            os.unlink(unfinished(path, child))


def _end_with_parent(parent: int) -> None:
    """Asks the kernel to end this process with its parent, where it can (Linux): nobody would read what it writes."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
