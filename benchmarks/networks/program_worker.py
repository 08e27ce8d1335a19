# SPDX-License-Identifier: Apache-2.0
"""Runs programs on tiles in turns and times them: one of the processes of reductions.py, with a device each.

    program_worker.py JOBS.json RANK PROCESSES HOST:PORT

A job has several modules that do the same with the tiles of all devices, the seed of each device's tile, and what the
right result is: the sum of the tiles of some seeds, or parts of the tiles of some. Integers have to be equal bit for
bit, floating-point numbers within rounding of another order. The worker prints a line of JSON for each job: for each
program the seconds of each turn on this process and whether its result is wrong, or its error.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from benchmarks.networks.timed_worker import barrier, join  # noqa: E402

SUM, PARTS = "sum", "parts"


def main(arguments: list[str]) -> None:
    path, rank, *place = arguments
    join(rank, *place)
    import jax

    out, sys.stdout = sys.stdout, sys.stderr
    devices = jax.devices()
    together = barrier(jax.make_mesh((len(devices),), ("process",), devices=devices))
    for job in json.loads(Path(path).read_text(encoding="utf-8")):
        print("job " + json.dumps(_run(job, int(rank), together)), file=out, flush=True)


def _run(job: dict, rank: int, together) -> dict[str, dict]:
    """Returns for each program of a job its seconds, turn by turn, and whether it is wrong; or its error."""
    found: dict[str, dict] = {}
    programs: dict[str, Program] = {}
    own = tile(job["seeds"][rank], job["elements"], job["element"])
    for name, text in job["programs"].items():
        try:
            programs[name] = Program(text, own)
            found[name] = {"seconds": [], "wrong": is_wrong(programs[name].result(), job, rank)}
        except Exception as error:  # XLA's errors have many types
            programs.pop(name, None)
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    for _ in range(job["turns"]):
        for name, program in programs.items():
            together()
            found[name]["seconds"].append(program.seconds())
    return found


class Program:
    """A compiled module and its argument: a stack of tiles, of which this process has one."""

    def __init__(self, text: str, own: np.ndarray):
        import jax

        from reshard.dialect_utils.platform import compat
        from reshard.dialect_utils.xla import worker

        devices = jax.devices()
        self._executable, type_ = worker.load(text, devices, {})
        sharding = compat.array_sharding(compat.parameter_shardings(self._executable, 1)[0], devices)
        shape = tuple(type_.inputs[0].shape)
        mine = jax.device_put(own.reshape(sharding.shard_shape(shape)), jax.local_devices()[0])
        self._stack = compat.array_of_tiles(shape, sharding, [mine], own.dtype)

    def seconds(self) -> float:
        began_s = time.perf_counter()
        self._run()
        return time.perf_counter() - began_s

    def result(self) -> np.ndarray:
        """Returns the tile of this process afterwards."""
        return np.asarray(self._run()[0][0])

    def _run(self) -> list[list]:
        import jax

        from reshard.dialect_utils.platform import compat

        return jax.block_until_ready(compat.execute_sharded(self._executable, [self._stack]))


def tile(seed: int, elements: int, element: str) -> np.ndarray:
    """Returns the tile of a seed: numbers between -1 and 1, or integers.

    Example:
      >>> tile(0, 4, "i32")
      array([14,  6,  0, -9], dtype=int32)
    """
    drawn = np.random.default_rng(seed)
    if element == "i32":
        return drawn.integers(-20, 20, elements, np.int32, endpoint=True)
    return drawn.uniform(-1, 1, elements).astype(np.float32)


def is_wrong(result: np.ndarray, job: dict, rank: int) -> bool:
    """Returns whether the result of a process is another than what the job says."""
    tiles = [tile(seed, job["elements"], job["element"]) for seed in job["from"][rank]]
    if job["result"] == PARTS:
        return not np.array_equal(result.ravel(), _parts(tiles, job["members"][rank]))
    expected = np.sum(tiles, axis=0, dtype=np.int64 if job["element"] == "i32" else np.float64)
    if result.size != expected.size:
        return True
    limit = rounding(tiles) if job["element"] != "i32" else 0
    return bool((np.abs(result.ravel() - expected) > limit).any())


def rounding(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """Returns for each element the largest error of a sum of float32 in any order."""
    sums = np.asarray(np.sum(np.abs(tiles), axis=0, dtype=np.float64))
    return np.asarray(sums * ((len(tiles) - 1) * math.ldexp(1, -23)))


def _parts(tiles: Sequence[np.ndarray], number: int) -> np.ndarray:
    """Returns the parts of tiles that a member of a group gets in an all_to_all, in the order of the senders."""
    return np.concatenate([np.split(each, len(tiles))[number] for each in tiles])


if __name__ == "__main__":
    main(sys.argv[1:])
