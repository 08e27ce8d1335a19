# SPDX-License-Identifier: Apache-2.0
"""Runs sums in turns and times them: one of the processes of reductions.py.

    reduction_worker.py JOBS.json RANK PROCESSES HOST:PORT

Each process has one device. A job has programs for the same sum, as text of modules: each takes a matrix with a row for
each device, and gives every device the sum of the rows of its group. For each job the worker prints `job {...}`: for
each program the seconds of each turn on this process, and whether its sum is wrong.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from benchmarks.networks.timed_worker import barrier, join  # noqa: E402


def main(arguments: list[str]) -> None:
    path, *place = arguments
    out, sys.stdout = sys.stdout, sys.stderr
    join(*place)
    for job in json.loads(Path(path).read_text(encoding="utf-8")):
        print("job " + json.dumps(_run(job)), file=out, flush=True)


def row_of(device: int, elements: int) -> np.ndarray:
    """Returns the row of a device: whole numbers, of which sums of a few are exact in float32."""
    return ((np.arange(elements) * 7 + 131 * device) % 1021).astype(np.float32)


def _run(job: dict) -> dict[str, dict]:
    import jax

    programs = {name: Sum(text, job["groups"]) for name, text in job["programs"].items()}
    found = {name: {"seconds": [], "wrong": each.is_wrong()} for name, each in programs.items()}
    together = barrier(jax.make_mesh((len(jax.devices()),), ("process",)))
    for _ in range(job["turns"]):
        for name, program in programs.items():
            together()
            began_s = time.perf_counter()
            program.run()
            found[name]["seconds"].append(time.perf_counter() - began_s)
    return found


class Sum:
    """A compiled program and its argument on the devices of all processes."""

    def __init__(self, text: str, groups: list[list[int]]):
        import jax

        from reshard.dialect_utils.platform import compat
        from reshard.dialect_utils.xla import worker

        devices = jax.devices()
        self._own = jax.local_devices()[0].id
        self._number = [device.id for device in devices].index(self._own)
        self._group = next(group for group in groups if self._number in group)
        self._executable, type_ = worker.load(text, devices, {})
        kind = type_.inputs[0]
        shape = tuple(kind.shape)
        (sharding,) = compat.parameter_shardings(self._executable, 1)
        placed = compat.array_sharding(sharding, devices)
        self._elements = shape[1]
        row = row_of(self._number, self._elements)[None]
        self._arguments = [jax.make_array_from_callback(shape, placed, lambda index: row)]

    def run(self) -> list[list]:
        import jax

        from reshard.dialect_utils.platform import compat

        return jax.block_until_ready(compat.execute_sharded(self._executable, self._arguments))

    def is_wrong(self) -> bool:
        """Returns whether this device's sum is not that of its group."""
        ((result, *_),) = self.run()
        wanted = sum(row_of(number, self._elements) for number in self._group)
        return not np.array_equal(np.asarray(result)[0], wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
