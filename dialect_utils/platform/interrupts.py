# SPDX-License-Identifier: Apache-2.0
"""Defers Ctrl-C and other signals where Python must not raise: while C++ calls Python, and during a clean-up.

Python runs the handler of a signal before its next instruction. After long work of MLIR that is the first instruction
of a callback, before any `try` in it. MLIR's bindings then turn `KeyboardInterrupt` into another error, or print it and
go on without the result of the callback: the outcome would be wrong, and would be cached.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

# Signals whose handlers may raise: requests to end, and time limits. To look up all signals would take long.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGPROF", "SIGVTALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class DeferredInterrupts:
    """Inside the `with`, signals with a handler in Python wait; at its end the handlers run, which may raise.

    Only the main thread runs handlers, so in other threads there is nothing to do.

    State: `_before`, the former handlers by signal; `_waiting`, the signals that came; `_is_open`, whether signals
    pass.

    Example:
      >>> with DeferredInterrupts() as held:
      ...     with held.let_through():
      ...         pass  # here Ctrl-C raises as ever
    """

    def __init__(self):
        self._before: dict[int, Callable] = {}
        self._waiting: list[int] = []
        self._is_open = False

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _NUMBERS}
            self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
            for number in self._before:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._deliver()

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside the `with`, signals are handled as they come, after those that have waited."""
        self._is_open = True
        try:
            self._deliver()
            yield
        finally:
            self._is_open = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_open:
            self._before[number](number, frame)
        else:
            self._waiting.append(number)

    def _deliver(self) -> None:
        while self._waiting:
            number = self._waiting.pop(0)
            self._before[number](number, None)
