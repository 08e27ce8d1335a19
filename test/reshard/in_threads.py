# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes for tests: threads take the place of processes, a dictionary that of jax's store."""

import threading
from concurrent.futures import ThreadPoolExecutor


class DictStore:
    """A store with the methods of `compat.JobStore`, for the threads of one process."""

    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def put(self, key, value):
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def put_once(self, key, value):
        with self._changed:
            is_new = key not in self.values
            self.values.setdefault(key, value)
            self._changed.notify_all()
        return is_new

    def get(self, key, timeout_s=0):
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, timeout_s)
            return self.values.get(key)


def at_once(steps):
    """Runs the callables at the same time; returns their results, or the exceptions that they raised."""

    def outcome(step):
        try:
            return step()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(outcome, steps))
