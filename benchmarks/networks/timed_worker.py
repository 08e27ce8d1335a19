# SPDX-License-Identifier: Apache-2.0
"""Runs redistributions and times them: the worker process, or one of several, of run_times.py.

    timed_worker.py JOBS.json                              on the CPU devices of this process
    timed_worker.py JOBS.json RANK PROCESSES HOST:PORT     as one of several processes with a device each

Each job has several programs for the same pair, as text of modules. The programs take turns, and every program's output
is compared with the right values. The worker prints a line of JSON for each job: for each program the seconds of each
turn on this process, and the processor's seconds of all its threads, or its error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402


def main(arguments: list[str]) -> None:
    path, *place = arguments
    if place:
        join(*place)
    out, sys.stdout = sys.stdout, sys.stderr
    for job in json.loads(Path(path).read_text(encoding="utf-8")):
        print("job " + json.dumps({"key": job["key"], "programs": _run(job)}), file=out, flush=True)


def join(rank: str, processes: str, address: str) -> None:
    """Makes this process one of several with a device each, whose collectives gloo runs."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator_address=address, num_processes=int(processes), process_id=int(rank))


def _run(job: dict) -> dict[str, dict]:
    """Returns for each program of a job its seconds, turn by turn, or its error."""
    import jax

    sizes = [size for _, size in job["mesh"]]
    mesh = jax.make_mesh(sizes, [name for name, _ in job["mesh"]], devices=jax.devices()[: int(np.prod(sizes))])
    sides = [jax.NamedSharding(mesh, jax.P(*(tuple(axes) for axes in job[side]))) for side in ("source", "target")]
    shape = tuple(job["shape"])
    array = jax.make_array_from_callback(shape, sides[0], lambda index: _values(shape, index))
    found, programs, known = {}, {}, {}
    for name, text in job["programs"].items():
        try:
            programs[name] = _compiled(array, sides, text)
            wrong = _wrong(jax.block_until_ready(programs[name](array)), shape, known)
            found[name] = {"seconds": [], "processor_seconds": [], "wrong": wrong}
        except Exception as error:  # XLA's errors have many types
            programs.pop(name, None)
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    together = barrier(mesh)
    for _ in range(job["turns"]):
        for name, program in programs.items():
            together()
            began_s, used_s = time.perf_counter(), time.process_time()
            jax.block_until_ready(program(array))
            found[name]["seconds"].append(time.perf_counter() - began_s)
            found[name]["processor_seconds"].append(time.process_time() - used_s)
    return found


def _compiled(array, sides, text: str):
    """Returns the executable of a module's text, or stock XLA's for an empty text."""
    import jax

    from reshard.dialect_utils.platform import compat

    lowered = jax.jit(lambda value: value, in_shardings=sides[0], out_shardings=sides[1]).lower(array)
    return (compat.lowered_with_module(lowered, text.encode()) if text else lowered).compile()


def barrier(mesh):
    """Returns a function that returns when all devices have reached it."""
    import jax

    sharding = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
    ones = jax.make_array_from_callback((mesh.size,), sharding, lambda index: np.ones((mesh.size,), np.int32)[index])
    total = jax.jit(lambda value: value.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))
    return lambda: jax.block_until_ready(total(ones))


def _values(shape: tuple[int, ...], index) -> np.ndarray:
    """Returns a part of an array with different elements, as far as float32 can represent them."""
    starts = [range(size)[part] for size, part in zip(shape, index)]
    strides = [int(np.prod(shape[dim + 1 :], dtype=np.int64)) for dim in range(len(shape))]
    parts = np.ix_(
        *(np.arange(each.start, each.stop, dtype=np.int64) * stride for each, stride in zip(starts, strides))
    )
    return (sum(parts, np.zeros((), np.int64)) % (1 << 24)).astype(np.float32)


def _wrong(result, shape: tuple[int, ...], known: dict[str, np.ndarray]) -> bool:
    """Returns whether a shard is wrong; `known` has the right values of those parts that were asked for before."""
    for shard in result.addressable_shards:
        if (part := str(shard.index)) not in known:
            known[part] = _values(shape, shard.index)
        if not np.array_equal(np.asarray(shard.data), known[part]):
            return True
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
