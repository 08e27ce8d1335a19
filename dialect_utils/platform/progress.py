# SPDX-License-Identifier: Apache-2.0
"""Progress of long work on stderr: on a terminal one line that is rewritten, elsewhere a line now and then.

Code that works says where it is, `at("plan-sites: op", 3, 40)`, which costs next to nothing. The code that starts the
work decides with `shown` whether this is shown. A thread shows it, since XLA may compile for minutes in between. Short
work is silent.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

VARIABLE = "RESHARD_PROGRESS"
AUTO, ON, OFF = MODES = ("auto", "on", "off")
QUIET_S = 2.0  # shorter work is silent
REWRITTEN_EVERY_S = 0.5
LINE_EVERY_S = 30.0


@dataclass(slots=True)
class _Stage:
    """The stage of one thread's work; `waits_for` names the answer that the thread waits for, if any."""

    what: str = "starting"
    done: int = 0
    total: int = 0
    waits_for: str = ""

    def __str__(self) -> str:
        count = f" {self.done:,} of {self.total:,}" if self.total else ""
        return f"{self.what}{count}" + (f" ({self.waits_for})" if self.waits_for else "")


class _Here(threading.local):
    stage: _Stage | None = None  # None if progress is not shown


_here = _Here()


def at(what: str, done: int = 0, total: int = 0) -> None:
    """Says where this thread is now.

    Args:
      what: the work. done: the number of the current item, from 1. total: how many items there are; 0 if uncounted.
    """
    if (stage := _here.stage) is not None:
        stage.what, stage.done, stage.total = what, done, total


@contextlib.contextmanager
def waiting_for(answer: str) -> Iterator[None]:
    """Says that this thread waits for an answer inside the `with`, for example "XLA compiles"."""
    stage = _here.stage
    if stage is not None:
        stage.waits_for = answer
    try:
        yield
    finally:
        if stage is not None:
            stage.waits_for = ""


@contextlib.contextmanager
def shown(title: str, mode: str = AUTO) -> Iterator[None]:
    """Shows the progress of this thread inside the `with`, once that takes longer than QUIET_S.

    Args:
      title: the beginning of each line. mode: "auto" shows it on a terminal only, "on" everywhere, "off" nowhere.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if mode == OFF or sys.stderr is None or _here.stage is not None or (mode == AUTO and not is_terminal):
        yield
        return
    with _watched(lambda stage, is_over: _tell(title, stage, is_over, is_terminal)):
        yield


@contextlib.contextmanager
def forwarded(tell: Callable[[str], None]) -> Iterator[None]:
    """Forwards the progress of this thread inside the `with`, for another process to show; not before QUIET_S.

    Args:
      tell: called in another thread with the progress as text, every REWRITTEN_EVERY_S.
    """

    def relay(stage: _Stage, is_over: threading.Event) -> None:
        wait_s = QUIET_S
        while not is_over.wait(wait_s):
            wait_s = REWRITTEN_EVERY_S
            tell(str(stage))

    with _watched(relay):
        yield


@contextlib.contextmanager
def _watched(watch: Callable[[_Stage, threading.Event], None]) -> Iterator[None]:
    """Runs `watch` in another thread, with the progress of this one, until the `with` ends; the event says so."""
    _here.stage = stage = _Stage()
    is_over = threading.Event()
    watcher = threading.Thread(target=watch, args=(stage, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _here.stage = None
        is_over.set()
        watcher.join()


def command_mode() -> str:
    """Returns the mode for a command, which a person watches: "on", unless the environment says "off"."""
    return OFF if os.environ.get(VARIABLE, "").lower() == OFF else ON


def _tell(title: str, stage: _Stage, is_over: threading.Event, is_terminal: bool) -> None:
    start_s, every_s = time.monotonic(), REWRITTEN_EVERY_S if is_terminal else LINE_EVERY_S
    is_shown = False
    while not is_over.wait(every_s if is_shown else QUIET_S):
        is_shown = True
        line = f"{title}: {stage}, {time.monotonic() - start_s:.0f} s"
        _write(f"\r\033[K{_fitting(line)}" if is_terminal else f"{line}\n")
    if is_shown and is_terminal:
        _write("\r\033[K")


def _fitting(line: str) -> str:
    """Returns the end of a line that fits into one line of the terminal; a longer one could not be rewritten."""
    columns = 0
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    room = (columns or 80) - 1  # some terminals report 0
    return line if len(line) <= room else f"..{line[-room + 2 :]}"


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the reader may be gone
        sys.stderr.write(text)
        sys.stderr.flush()
