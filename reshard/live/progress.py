# SPDX-License-Identifier: Apache-2.0
"""The progress of a long redistribution on stderr: a bar on a terminal if rich is installed, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from reshard.synthesis.common.numbers import mebibytes

Item = TypeVar("Item")
QUIET_S = 1.0  # a redistribution that ends sooner shows nothing
LINE_EVERY_S = 10.0


def shown(items: Sequence[Item], sizes: Sequence[int], title: str, progress: bool | None) -> Iterator[Item]:
    """Yields the items and shows how many bytes are done.

    Args:
      sizes: the bytes of each item.
      progress: whether to show it; None means only if the work takes longer than a second.
    """
    if progress is False:
        yield from items
        return
    display: Callable[[int], None] | None = None
    start_s, done = time.monotonic(), 0
    try:
        for item, size in zip(items, sizes, strict=True):
            yield item
            done += size
            if display is None and (progress or time.monotonic() - start_s > QUIET_S):
                display = _display(title, sum(sizes))
            if display is not None:
                display(done)
    finally:
        if display is not None:
            display.close()


def _display(title: str, total: int):
    if not sys.stderr.isatty():
        return _Lines(title, total)
    try:
        return _Bar(title, total)
    except ImportError:
        return _Lines(title, total)


class _Lines:
    """A line every few seconds, and one at the end."""

    def __init__(self, title: str, total: int):
        self.title, self.total = title, total
        self.start_s, self.next_s = time.monotonic(), 0.0

    def __call__(self, done: int) -> None:
        now_s = time.monotonic()
        if now_s < self.next_s and done < self.total:
            return
        self.next_s = now_s + LINE_EVERY_S
        print(f"{self.title}: {mebibytes(done, 1)} of {mebibytes(self.total, 1)} MiB", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """A progress bar of the package rich. Raises: ImportError without rich."""

    def __init__(self, title: str, total: int):
        from rich import progress
        from rich.console import Console

        columns = (
            "{task.description}",
            progress.BarColumn(),
            progress.DownloadColumn(True),
            progress.TimeRemainingColumn(),
        )
        self.bar = progress.Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(title, total=total)
        self.bar.start()

    def __call__(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def close(self) -> None:
        self.bar.stop()
