# SPDX-License-Identifier: Apache-2.0
"""Forks of a process that has loaded jax and not yet started its devices: each does one piece of work and ends.

jax takes a second to load, and starts devices and threads that do not survive a fork. So a process forks a *server*
before it starts devices; the server waits for requests and forks a *worker* for each. A worker starts devices of its
own, in a twentieth of a second, and may end in the middle of a compilation, or be ended by XLA.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

IS_AVAILABLE = sys.platform == "linux"  # on macOS, the system's libraries do not work in a fork


class ForkServer:
    """A fork of this process that forks once more for each request, and says how the fork has ended.

    Args:
      work: takes a request, an object that can be pickled; what it returns is the exit code of the fork.
      at_start: called first in each fork, because threads do not survive it.
    """

    def __init__(self, work: Callable[[Any], int], at_start: Callable[[], None]):
        self._work, self._at_start = work, at_start
        self._connection, servers_end = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax warns of every fork; its devices have not been started yet
            self.process = os.fork()
        if self.process == 0:
            self._connection.close()
            _end_with(self._serve, servers_end)
        servers_end.close()

    def run(self, requests: Sequence[Any], at_once: int = 1) -> Iterator[tuple[int, int]]:
        """Runs the work on each request in a fork. Yields the number of a request when its fork has ended, with the
        exit code, -n if signal n has ended it.

        Meanwhile the other forks work. What nobody takes is waited for.

        Args:
          at_once: the number of forks that may work at the same time.

        Raises: OSError, EOFError if the server itself is gone.
        """
        self._connection.send((requests, at_once))
        left = len(requests)
        try:
            while left:
                ended = self._connection.recv()
                left -= 1
                yield ended
        except GeneratorExit:
            for _ in range(left):
                self._connection.recv()
            raise

    def close(self) -> None:
        """Ends the server."""
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)

    def _serve(self, connection: Connection) -> int:
        self._at_start()
        while True:
            try:
                requests, at_once = connection.recv()
            except (EOFError, OSError):
                return 0
            running: dict[int, int] = {}
            for number, request in enumerate(requests):
                if len(running) == at_once:
                    connection.send(_ended_one(running))
                running[self._forked(request, connection)] = number
            while running:
                connection.send(_ended_one(running))

    def _forked(self, request: Any, connection: Connection) -> int:
        """Forks, and returns the process that works on a request."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worker = os.fork()
        if worker == 0:
            connection.close()
            _end_with(self._serve_one, request)
        return worker

    def _serve_one(self, request: Any) -> int:
        self._at_start()
        return self._work(request)


def _ended_one(running: dict[int, int]) -> tuple[int, int]:
    """Waits until one of the running processes has ended; returns the number of its request and its exit code."""
    process, status = os.wait()
    return running.pop(process), os.waitstatus_to_exitcode(status)


def _end_with(work: Callable, argument) -> None:
    """Ends this process with the exit code of some work, without the clean-up of the process that it is a fork of."""
    code = 1
    try:
        code = work(argument)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
