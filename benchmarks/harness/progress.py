# SPDX-License-Identifier: Apache-2.0
"""Progress of a long run on stderr: a bar if stderr is a terminal and rich is installed, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
LINE_EVERY_S = 10.0


def shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Yields the items, and shows how many are done, how many per second, and the remaining time."""
    progress = _bar() if sys.stderr.isatty() else None
    yield from _with_bar(items, title, progress) if progress else _with_lines(items, title)


def replace_line(text: str) -> None:
    """Overwrites the last line on a terminal; elsewhere it prints nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _bar():
    """Returns a progress bar, or None if rich is not installed."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    columns = ("{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(), "{task.fields[rate]}")
    return progress.Progress(
        *columns, progress.TimeRemainingColumn(), console=Console(stderr=True), speed_estimate_period=300
    )


def _with_bar(items: Sequence[Item], title: str, bar) -> Iterator[Item]:
    with bar:
        task, start_s = bar.add_task(title, total=len(items), rate=""), time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            bar.update(task, completed=done, rate=f"{done / (time.monotonic() - start_s):.2f}/s")


def _with_lines(items: Sequence[Item], title: str) -> Iterator[Item]:
    start_s = last_s = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now_s = time.monotonic()
        if now_s - last_s >= LINE_EVERY_S or done == len(items):
            print(f"{title}: {_line(done, len(items), now_s - start_s)}", file=sys.stderr, flush=True)
            last_s = now_s


def _line(done: int, total: int, elapsed_s: float) -> str:
    """Returns the progress of a run as one line.

    Example:
      >>> _line(50, 200, 100.0)
      '50 of 200, 0.50/s, 0:05:00 left'
    """
    rate = done / max(elapsed_s, 1e-9)
    minutes, seconds = divmod(round((total - done) / rate), 60)
    return f"{done:,} of {total:,}, {rate:.2f}/s, {minutes // 60}:{minutes % 60:02}:{seconds:02} left"
