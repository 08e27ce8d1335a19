# SPDX-License-Identifier: Apache-2.0
"""What long work is at, on stderr: on a terminal a line that is rewritten, elsewhere a line now and then; short work is silent.

Those who work say what they are at, `at("plan-sites: op", 3, 40)`, which costs next to nothing. Whoever started the work decides
by `told` whether that is shown. A thread shows it, since XLA may compile for minutes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import os
import sys
import threading
import time

VARIABLE = "RESHARD_PROGRESS"
AUTO, ON, OFF = MODES = ("auto", "on", "off")
QUIET_S = 2.0  # what is over sooner says nothing
REWRITTEN_EVERY_S = 0.5
LINE_EVERY_S = 30.0


@dataclass(slots=True)
class _Stage:
    """What one thread is at; `waits_for` says whose answer it waits for, if for any."""

    what: str = "starting"
    done: int = 0
    total: int = 0
    waits_for: str = ""

    def __str__(self) -> str:
        count = f" {self.done:,} of {self.total:,}" if self.total else ""
        return f"{self.what}{count}" + (f" ({self.waits_for})" if self.waits_for else "")


class _Here(threading.local):
    stage: _Stage | None = None  # None where nobody wants to know


_here = _Here()


def at(what: str, done: int = 0, total: int = 0) -> None:
    """Says what this thread is at now; of things that are counted which one, from 1, of how many."""
    if (stage := _here.stage) is not None:
        stage.what, stage.done, stage.total = what, done, total


@contextlib.contextmanager
def waiting_for(answer: str) -> Iterator[None]:
    """Says that this thread waits, as in "XLA compiles"."""
    stage = _here.stage
    if stage is not None:
        stage.waits_for = answer
    try:
        yield
    finally:
        if stage is not None:
            stage.waits_for = ""


@contextlib.contextmanager
def told(title: str, mode: str = AUTO) -> Iterator[None]:
    """Shows what this thread is at inside of the context, once that takes longer than QUIET_S.

    Args:
      title: what the lines begin with. mode: "auto" shows it on a terminal, "on" elsewhere too, "off" nothing.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if mode == OFF or sys.stderr is None or _here.stage is not None or (mode == AUTO and not is_terminal):
        yield
        return
    _here.stage = stage = _Stage()
    is_over = threading.Event()
    teller = threading.Thread(target=_tell, args=(title, stage, is_over, is_terminal), daemon=True)
    teller.start()
    try:
        yield
    finally:
        _here.stage = None
        is_over.set()
        teller.join()


@contextlib.contextmanager
def relayed(tell: Callable[[str], None]) -> Iterator[None]:
    """Hands on what this thread is at, for another process to show, once that takes longer than QUIET_S.

    Args:
      tell: called in another thread with what this one is at, every REWRITTEN_EVERY_S.
    """
    _here.stage = stage = _Stage()
    is_over = threading.Event()

    def relay() -> None:
        wait_s = QUIET_S
        while not is_over.wait(wait_s):
            wait_s = REWRITTEN_EVERY_S
            tell(str(stage))

    teller = threading.Thread(target=relay, daemon=True)
    teller.start()
    try:
        yield
    finally:
        _here.stage = None
        is_over.set()
        teller.join()


def mode_of_command() -> str:
    """Returns the mode of a command, which people watch: "on", unless the environment says "off"."""
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
    """Returns the end of a line as far as it fits into one of the terminal; a longer one could not be rewritten."""
    columns = 0
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    room = (columns or 80) - 1  # some terminals do not know theirs
    return line if len(line) <= room else f"..{line[-room + 2 :]}"


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        sys.stderr.write(text)
        sys.stderr.flush()
