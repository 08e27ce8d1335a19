# SPDX-License-Identifier: Apache-2.0
"""What the commands share: how they end, and how they read numbers."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from types import FrameType

# What a command may lack; the values are what pip installs.
_PACKAGES = {"jaxlib": "jax jaxlib", "jax": "jax jaxlib", "numpy": "numpy"}

# What the commands that rewrite have in common.
ORACLE_HELP = (
    "what a rewrite is compared with: what stock XLA makes of the site alone, or of its op with all its operands, compiled in a "
    "child process (lone, default; there is no other)"
)


# The signals that ask a process to end: Ctrl-C, `kill`, a terminal that is closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end; `number` is the signal's."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class UserError(Exception):
    """What the user should read in one line."""


def prepare_streams() -> None:
    """Lets a process that was started without a standard stream have one, and print any text on those that it has.

    Without, Python has None for the stream, and the next file that is opened gets its number. What is read from such a stream, or
    written to standard output, fails as it does in other programs: bad file descriptor. What is said on standard error is lost.
    """
    for number, (name, flags) in enumerate((("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            raw = open(os.open(os.devnull, flags), "wb" if number else "rb", buffering=0)
            os.set_inheritable(raw.fileno(), True)  # else a child would be without it again
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    sys.stdout.reconfigure(errors="backslashreplace")  # a name may be no UTF-8


def run(work: Callable[[], int], tool: str, arguments: Sequence[str], is_process: bool = False) -> int:
    """Returns the exit status of `work`, or 1 and says why; 130 after Ctrl-C, 143 and 129 after SIGTERM and SIGHUP.

    Args:
      tool: the command's name, before what it says. arguments: for the reproducer, if the failure is a fault of ours.
      is_process: whether nothing follows but the end of the process, which is not to be interrupted.
    """
    try:
        with interruptible(is_process):
            status = work()
            sys.stdout.flush()
            return status
    except UserError as error:
        return _failed(f"{tool}: error: {error}")
    except BrokenPipeError:  # the reader of our output went away
        return _without_stdout()
    except KeyboardInterrupt as interrupt:
        return 128 + getattr(interrupt, "number", signal.SIGINT)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EBADF):
            _without_stdout()
            return _failed(f"<stdout>: error: {error.strerror.lower()}")
        if isinstance(error, ModuleNotFoundError) and (said := _missing(error)):
            return _failed(f"{tool}: error: {said}")
        from reshard.tools.reproducer import Reproducer, report_crash

        report_crash(error, Reproducer(tool, arguments))
        return 1


@contextlib.contextmanager
def interruptible(is_process: bool = False) -> Iterator[None]:
    """Within it the first signal that asks the process to end raises Interrupted, so that what is begun is cleaned up; more of
    them would stop the cleaning up, and are ignored. So are those that whoever started the process has it ignore (`nohup`).

    Args:
      is_process: whether the process ends with it: signals are ignored from then on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            return
        if _is_loading(frame):
            os._exit(128 + number)  # those of MLIR and XLA abort at an exception
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in handled()}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_process else handler)


def _is_loading(frame: FrameType | None) -> bool:
    """Returns whether an extension module is being initialized."""
    while frame is not None:
        if frame.f_code.co_name == "exec_module" and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def handled() -> list[int]:
    """Returns the signals of ENDING that this process is not to ignore."""
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def ignore_interrupts() -> None:
    """What is left to do is short, and is done to its end."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def print_versions() -> int:
    """Prints what a bug report needs, and returns the exit status."""
    from reshard.tools.versions import versions_text

    print(versions_text())
    return 0


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Prints what a shell evaluates to complete the command's flags, and returns the exit status."""
    from reshard.tools import completion

    print(completion.script(parser, shell), end="")
    return 0


def whole_number(text: str) -> int:
    """Returns a number of at least 1. Raises: argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def _failed(said: str) -> int:
    print(said, file=sys.stderr)
    return 1


def _without_stdout() -> int:
    """Drops what is not yet written: Python would try once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _missing(error: ModuleNotFoundError) -> str | None:
    """Returns what to install, None for a module that is not a package of its own."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        return None
    return f"{package} is not installed; run: pip install {_PACKAGES[package]}"
