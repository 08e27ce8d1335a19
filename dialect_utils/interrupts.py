# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and other signals, where Python must not raise: while C++ calls Python back, and while something is cleaned up.

Python runs the handler of a signal before its next instruction. After long work of MLIR that is the first one of a callback,
before any `try` in it. MLIR's bindings then turn `KeyboardInterrupt` into another error, or print it and go on without what the
callback had to say: a result would be wrong, and would be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import signal
import threading
from types import FrameType

# Those whose handlers raise, if any do: requests to end, and time limits. To ask for all takes long.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGPROF", "SIGVTALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class HeldBack:
    """Within it, signals that have a handler in Python wait; at its end the handlers run, which may raise.

    Only the main thread runs handlers, so that in others nothing is to be done.

    State: `_before`, the handlers of others by signal; `_waiting`, the signals that came; `_is_open`, whether they pass.

    Example:
      >>> with HeldBack() as held:
      ...     with held.let_through():
      ...         pass  # here Ctrl-C raises as ever
    """

    def __init__(self):
        self._before: dict[int, object] = {}
        self._waiting: list[int] = []
        self._is_open = False

    def __enter__(self) -> HeldBack:
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
        """Within it signals are handled as they come, after those that have waited."""
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
