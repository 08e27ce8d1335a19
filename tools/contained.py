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

from reshard.tools import command

_STAGE_BYTES = 256
_PR_SET_PDEATHSIG = 1
_GRACE_S = 1.0  # from a signal until a child that does not end in its own way is killed

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
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, command.ENDING)  # what comes now is handed on to the child
    child = os.fork()
    if child == 0:
        _end_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return leave(work())
    status, asked = _wait(child, mask)
    if asked is not None:
        command.ignore_interrupts()
    if os.WIFSIGNALED(status):
        _clear_after(outputs, child)
    if asked is not None:
        return 128 + asked if status else 0  # 0: it was done before it had the signal
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    if number in command.ENDING:
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
    command.ignore_interrupts()
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


def finish() -> None:
    """Says that the work is done and is only to be written down, which is not interrupted; does so if somebody watches."""
    if _stage is not None:
        command.ignore_interrupts()


def _wait(child: int, mask: set[int]) -> tuple[int, int | None]:
    """Returns how a child ended, and the first signal that asked this process to end meanwhile.

    The child gets it too; it can only end in its own way when it is back from C++, and is killed if that takes long.

    Args:
      mask: of signals, set as soon as they are handled here.
    """
    asked: list[int] = []

    def hand_on(number: int, _frame) -> None:
        asked.append(number)
        if len(asked) == 1:
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
        _send(child, number)

    before = {number: signal.signal(number, hand_on) for number in command.handled()}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: _send(child, signal.SIGKILL))
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return os.waitpid(child, 0)[1], next(iter(asked), None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _explain(name: str, stage: str, what: str) -> None:
    print(f"{name}: error: {stage} {what}; no output is written", file=sys.stderr)
    where = "the file is damaged, or shows a fault of" if stage == "reading" else "this is a fault of reshard or of"
    from reshard.tools.versions import versions_text

    versions = ", ".join(versions_text().splitlines())
    print(f"{name}: note: {where} the MLIR in jaxlib; versions: {versions}", file=sys.stderr)


def _clear_after(outputs: Sequence[str], child: int) -> None:
    """Removes what a child that was killed had begun, and waits for what it had started."""
    from reshard.dialect_utils.module_files import unfinished
    from reshard.dialect_utils.xla_child import clear_after

    clear_after(child)

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
