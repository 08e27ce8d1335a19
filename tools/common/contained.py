# SPDX-License-Identifier: Apache-2.0
"""Runs work in a child process; if a signal ends the child, that is a diagnostic.

MLIR and XLA end the process at unexpected input, above all at damaged bytecode. No handler in the same process can
prevent that. So the tool forks before it loads anything: the child does all the work, and the parent waits. On success
the only cost is the fork. Without fork (Windows), the work runs in this process.
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

from reshard.tools.common import command

_STAGE_BYTES = 256
_PR_SET_PDEATHSIG = 1
_GRACE_S = 1.0  # time from a signal until a child that has not ended is killed
_FINISHING_S = 20.0  # the same for one that says that it is `FINISHING`
FINISHING = "finishing"  # the stage of a child that a signal has ended early, and that writes what it has

# The child's current stage, which the parent reads after the child's death; None in a process that is no such child.
_stage: mmap.mmap | None = None


def run(
    work: Callable[[], int], name: str, outputs: Sequence[str] = (), on_death: Callable[[str, str], None] | None = None
) -> int:
    """Returns the exit status of `work` in a child process; 1, with a diagnostic, if a signal ended the child.

    Args:
      name: of the input, for the diagnostic. outputs: files that the child may have begun, beside which nothing is to
        be left.
      on_death: called after the diagnostic with the stage that the child was at and what became of it.
    """
    global _stage
    if not hasattr(os, "fork"):
        return work()
    _stage = mmap.mmap(-1, _STAGE_BYTES)
    parent = os.getpid()
    sys.stdout.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, command.ENDING)  # later signals are passed to the child
    child = os.fork()
    if child == 0:
        return _work_as_child(work, parent, mask)
    status, asked = _wait(child, mask)
    if asked is not None:
        command.ignore_interrupts()
    if os.WIFSIGNALED(status):
        _clear_after(outputs, child)
    if asked is not None:
        return 128 + asked if status else 0  # 0: the child was done before the signal arrived
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    return _ended_by_signal(os.WTERMSIG(status), name, on_death)


def _work_as_child(work: Callable[[], int], parent: int, mask: set[int]) -> int:
    """Does the work in the child, and ends it."""
    _end_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return leave(work())


def _ended_by_signal(number: int, name: str, on_death: Callable[[str, str], None] | None) -> int:
    """Returns the exit status after a signal has ended the child; explains a signal that nobody sent."""
    if number in command.ENDING:
        return 128 + number
    stage, what = _current_stage(), f"ended the process ({signal.Signals(number).name})"
    if number == signal.SIGXCPU:
        what = "took too long"
    _explain(name, stage, what)
    if on_death is not None:
        on_death(stage, what)
    return 1


def _current_stage() -> str:
    return (bytes(_stage).rstrip(b"\0").decode() if _stage is not None else "") or "starting"


def leave(status: int) -> int:
    """Ends this process, after the functions registered for its exit, without freeing its memory.

    To free the memory of a large module takes long.

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
    """Notes the current stage of the work, for messages such as `reading ended the process`.

    A stage may have a limit of processor time.
    """
    if _stage is None:
        return
    import resource

    _stage[:] = stage.encode()[:_STAGE_BYTES].ljust(_STAGE_BYTES, b"\0")
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = most if cpu_s is None else math.ceil(time.process_time() + cpu_s)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, most))


def finish() -> None:
    """Notes that only the output is left to write: a child ignores signals from now on, to finish the output.

    In a process that is no such child it does nothing.
    """
    if _stage is not None:
        command.ignore_interrupts()


def _wait(child: int, mask: set[int]) -> tuple[int, int | None]:
    """Returns the wait status of a child, and the first signal that asked this process to end in the meantime.

    The child gets the signal too. It can clean up and end only when C++ code returns; if that takes long, it is killed.

    Args:
      mask: the signal mask that is set as soon as signals are handled here.
    """
    asked: list[int] = []

    def hand_on(number: int, _frame) -> None:
        asked.append(number)
        if len(asked) == 1:
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
        _send(child, number)

    def at_end(_number: int, _frame) -> None:
        if len(asked) == 1 and _current_stage() == FINISHING:
            asked.append(asked[0])  # so that it is killed the next time
            signal.setitimer(signal.ITIMER_REAL, _FINISHING_S)
        else:
            _send(child, signal.SIGKILL)

    before = {number: signal.signal(number, hand_on) for number in command.handled()}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, at_end)
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
    from reshard.tools.common.versions import versions_text

    versions = ", ".join(versions_text().splitlines())
    print(f"{name}: note: {where} the MLIR in jaxlib; versions: {versions}", file=sys.stderr)


def _clear_after(outputs: Sequence[str], child: int) -> None:
    """Removes the files that a killed child had begun to write, and waits for the processes that it had started."""
    from reshard.dialect_utils.ir.module_files import unfinished
    from reshard.dialect_utils.xla.child import clear_after

    clear_after(child)

    for path in outputs:
        with contextlib.suppress(OSError):
            os.unlink(unfinished(path, child))


def _end_with_parent(parent: int) -> None:
    """Asks the kernel to end this process when its parent ends; only Linux can do that.

    After the parent's end nobody reads the output.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
