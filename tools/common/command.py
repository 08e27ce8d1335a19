# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: exit status, signals, standard streams, and numbers on the command line."""

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
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from reshard.planning.byte_sizes import ByteSizeError, byte_size, limit_text

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.compile_targets import Target

# Modules that may be missing, each with the packages that pip has to install.
_PACKAGES = {"jaxlib": "jax jaxlib", "jax": "jax jaxlib", "numpy": "numpy"}

# Help text that all commands that rewrite modules share.
ORACLE_HELP = (
    "how the costs of stock XLA are found: lone compiles each site, or its op with all operands, on its own in a child "
    "process (default, and the only choice)"
)


def topology_text(text: str) -> str:
    """Returns the topology that a flag names, as the text of a pass option. Raises: argparse.ArgumentTypeError."""
    from reshard.passes.sites.network import option_text
    from reshard.synthesis.network.topology import TopologyError  # loads numpy

    try:
        return option_text(text)
    except TopologyError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


# The signals that ask a process to end: Ctrl-C, `kill`, a terminal that is closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end; `number` is the number of the signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class UserError(Exception):
    """A mistake of the user; the message is one line for the user."""


def prepare_streams() -> None:
    """Opens the standard streams that this process lacks, and lets standard output print any text.

    If a stream is missing, Python has None for it, and the next file that is opened gets its number. On a stream that
    is opened here, reading standard input and writing standard output fail as in other programs: bad file descriptor.
    Text for standard error is lost.
    """
    for number, (name, flags) in enumerate((("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            raw = open(os.open(os.devnull, flags), "wb" if number else "rb", buffering=0)
            os.set_inheritable(raw.fileno(), True)  # else a child process would lack the stream
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be invalid UTF-8


def run(work: Callable[[], int], tool: str, arguments: Sequence[str], is_process: bool = False) -> int:
    """Returns the exit status of `work`; 1 after an error, which it prints; 128 + number for a signal.

    Args:
      tool: the name of the command, with which its messages begin.
      arguments: the command line, for the reproducer if the failure is a fault of ours.
      is_process: whether nothing follows but the end of the process, which is not to be interrupted.
    """
    try:
        with interruptible(is_process):
            status = work()
            sys.stdout.flush()
            return status
    except UserError as error:
        return _failed(f"{tool}: error: {error}")
    except BrokenPipeError:  # the reader of our output has ended
        return _without_stdout()
    except KeyboardInterrupt as interrupt:
        return 128 + getattr(interrupt, "number", signal.SIGINT)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EBADF):
            _without_stdout()
            return _failed(f"<stdout>: error: {(error.strerror or '').lower()}")
        if isinstance(error, ModuleNotFoundError) and (said := _missing(error)):
            return _failed(f"{tool}: error: {said}")
        if _is_of_settings(error):
            return _failed(f"{tool}: error: {error}")
        from reshard.tools.common.reproducer import Reproducer, report_crash

        report_crash(error, Reproducer(tool, arguments))
        return 1


def _is_of_settings(error: Exception) -> bool:
    """Returns whether an error says that an option in the environment or in a file is wrong."""
    if not isinstance(error, ValueError):
        return False
    from reshard.configuration.settings import SettingError

    return isinstance(error, SettingError)


@contextlib.contextmanager
def interruptible(is_process: bool = False) -> Iterator[None]:
    """Makes the first signal that asks the process to end raise Interrupted in the `with` block.

    So work that has begun is cleaned up. Later signals are ignored, because they would interrupt the cleaning up.
    Signals that the process was started to ignore (`nohup`) stay ignored.

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
            os._exit(128 + number)  # the extension modules of MLIR and XLA abort at an exception
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
    """Returns whether the process is initializing an extension module."""
    while frame is not None:
        if frame.f_code.co_name == "exec_module" and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def handled() -> list[int]:
    """Returns the signals of ENDING that this process does not ignore."""
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def ignore_interrupts() -> None:
    """Makes the process ignore the signals in ENDING, for the rest of its work, which is short and must be finished."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def print_versions() -> int:
    """Prints the versions that a bug report needs, and returns the exit status."""
    from reshard.tools.common.versions import versions_text

    print(versions_text())
    return 0


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Prints the script with which a shell completes the command's flags, and returns the exit status."""
    from reshard.tools.common import completion

    print(completion.script(parser, shell), end="")
    return 0


def size(text: str) -> int:
    """Returns the bytes of a size such as `16GiB`, as the value of a flag. Raises: argparse.ArgumentTypeError."""
    try:
        return byte_size(text)
    except ByteSizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def memory(text: str) -> str:
    """Returns a limit of memory, such as `16GiB` or `device`, as the value of a flag. Raises:
    argparse.ArgumentTypeError."""
    try:
        return limit_text(text)
    except ByteSizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def input_name(path: str) -> str:
    """Returns the name of an input file for people."""
    return "<stdin>" if path == "-" else path


def whole_number(text: str) -> int:
    """Returns the number in a text, at least 1. Raises: argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def _failed(said: str) -> int:
    print(said, file=sys.stderr)
    return 1


def _without_stdout() -> int:
    """Drops the output that is not written yet, and returns 1. Otherwise Python would write it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _missing(error: ModuleNotFoundError) -> str | None:
    """Returns an error that names the package to install; None if pip installs no package for the missing module."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        return None
    return f"{package} is not installed; run: pip install {_PACKAGES[package]}"


def write_output(path: str, text: str) -> None:
    """Writes text to a file, or to standard output for `-`. Raises: UserError."""
    if path == "-":
        print(text, end="")
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def refuse_unwritable(path: str) -> None:
    """Raises UserError if nothing can be written to `path`, before any work is done for it; `-` is standard output."""
    file = Path(path)
    if path == "-":
        return
    if not path:
        raise UserError("the name of an output file is empty")
    if file.is_dir():
        raise UserError(f"{path}: is a directory")
    if not file.parent.is_dir():
        raise UserError(f"{path}: no such directory: {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{path}: permission denied")


def target_of(text: str | None) -> Target | None:
    """Returns the target that `--compile-for` names, whose compiler is there; None without one. Raises: UserError."""
    from reshard.dialect_utils.xla.compile_targets import Target, TargetError, missing_compiler, unheard_flags

    if text is None:
        return None
    try:
        target = Target.parse(text)
    except TargetError as error:
        raise UserError(str(error)) from None
    if missing := missing_compiler(target):
        raise UserError(missing)
    if unheard := unheard_flags(target):
        print(f"note: {unheard}", file=sys.stderr)
    return target
