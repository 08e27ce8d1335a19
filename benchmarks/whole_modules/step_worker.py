# SPDX-License-Identifier: Apache-2.0
"""Runs the forms of a program in turns and times them: one of the processes of step_times.py.

    step_worker.py JOB.json RANK PROCESSES HOST:PORT       prints `job {...}`: seconds and values of each form
    step_worker.py multiply RANK PROCESSES HOST:PORT       prints `flops_per_s ...` of matrix products

Each process has one device, or one process has all. A job has the modules of the forms, the arguments, and for each
result the largest difference that passes as rounding. Every form's results are compared with those of stock XLA's. If a
run consumes its arguments, they are made again before the next one, which is not timed. A job with modules that are
`widened` times nothing: it tells whether the difference of two forms shrinks with the precision.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from benchmarks.networks.timed_worker import join  # noqa: E402

STOCK = "stock"
_SIDE, _PRODUCTS, _TURNS = 512, 8, 7  # of the matrix products that are timed
_MOST_TURNS = 20  # times those that a job asks for


def main(arguments: list[str]) -> None:
    what, *place = arguments
    out, sys.stdout = sys.stdout, sys.stderr
    if int(place[1]) > 1:
        join(*place)
    if what == "multiply":
        print(f"flops_per_s {_flops_per_s()!r}", file=out, flush=True)
        return
    job = json.loads(Path(what).read_text(encoding="utf-8"))
    print("job " + json.dumps(_shrinks(job) if "widened" in job else _run(job)), file=out, flush=True)


def _run(job: dict) -> dict[str, dict]:
    """Returns for each form of a job its seconds, turn by turn, and its values beside stock's; or its error."""
    import jax

    from reshard.dialect_utils.platform import compat

    inputs = pickle.loads(Path(job["inputs"]).read_bytes())
    found: dict[str, dict] = {}
    steps: dict[str, Step] = {}
    with compat.wide_types(each.dtype for each in inputs):
        expected = None
        for name, path in job["modules"].items():
            try:
                steps[name] = Step(Path(path).read_text(encoding="utf-8"), inputs)
                results = steps[name].results()
            except Exception as error:  # XLA's errors have many types
                steps.pop(name, None)
                found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
                continue
            expected = results if expected is None else expected
            found[name] = {"seconds": [], **compared(expected, results, job["limits"])}
        if STOCK not in steps:
            return found
        agreed = _sum_over_processes()
        for _ in range(_turns(job, steps[STOCK], agreed, len(jax.devices()))):
            for name, step in steps.items():
                step.prepare()
                agreed(0)
                found[name]["seconds"].append(step.seconds())
    return found


def _shrinks(job: dict) -> bool:
    """Returns whether the difference between the results of two forms is rounding: with floats of 64 bits it is as good
    as gone."""
    from reshard.dialect_utils.compare.array_differences import difference
    from reshard.dialect_utils.compare.rounding import Rounding
    from reshard.dialect_utils.compare.widened import is_rounding, widened_inputs
    from reshard.dialect_utils.platform import compat

    inputs = pickle.loads(Path(job["inputs"]).read_bytes())

    def results(paths: list[str], inputs: list[np.ndarray]) -> list[list[np.ndarray]]:
        with compat.wide_types(each.dtype for each in inputs):
            return [Step(Path(path).read_text(encoding="utf-8"), inputs).results() for path in paths]

    narrow, wide = results(job["modules"], inputs), results(job["widened"], widened_inputs(inputs))
    roundings = [Rounding(*each) for each in job["roundings"]]
    before = [difference(a, b, each.limit) for a, b, each in zip(*narrow, roundings, strict=True)]
    return is_rounding(before, narrow[0], wide[0], wide[1], roundings)


def _turns(job: dict, stock: Step, agreed: Callable[[int], int], processes: int) -> int:
    """Returns how many turns a job gets: those that it asks for, or more if a step is short; in all processes alike."""
    stock.prepare()
    agreed(0)
    wanted = min(_MOST_TURNS * job["turns"], math.ceil(job["least_s"] / stock.seconds()))
    return max(job["turns"], agreed(wanted) // processes)


class Step:
    """A compiled module and its arguments on the devices of all processes."""

    def __init__(self, text: str, inputs: list[np.ndarray]):
        import jax

        from reshard.dialect_utils.platform import compat
        from reshard.dialect_utils.xla import worker

        if "lapack_" in text:
            compat.prepare_linear_algebra()
        devices = jax.devices()
        self._executable, type_ = worker.load(text, devices, {})
        if len(type_.inputs) != len(inputs):
            raise ValueError(f"the module has {len(type_.inputs)} arguments, the program {len(inputs)}")
        shardings = compat.parameter_shardings(self._executable, len(inputs))
        self._inputs, self._shardings = inputs, [compat.array_sharding(each, devices) for each in shardings]
        self._arguments = [self._placed(at) for at in range(len(inputs))]

    def _placed(self, at: int):
        import jax

        value = self._inputs[at]
        return jax.make_array_from_callback(
            value.shape, self._shardings[at], lambda index: np.array(value[index]), dtype=value.dtype
        )

    def prepare(self) -> None:
        """Makes those arguments again that the last run has consumed."""
        import jax

        self._arguments = [self._placed(at) if each.is_deleted() else each for at, each in enumerate(self._arguments)]
        jax.block_until_ready(self._arguments)

    def seconds(self) -> float:
        began_s = time.perf_counter()
        self._run()
        return time.perf_counter() - began_s

    def results(self) -> list[np.ndarray]:
        """Returns this process's part of each result: the elements of its tiles, one device after the other."""
        self.prepare()
        return [np.concatenate([np.asarray(tile).ravel() for tile in tiles]) for tiles in self._run()]

    def _run(self) -> list[list]:
        import jax

        from reshard.dialect_utils.platform import compat

        return jax.block_until_ready(compat.execute_sharded(self._executable, self._arguments))


def compared(expected: list[np.ndarray], found: list[np.ndarray], limits: list[float]) -> dict[str, float]:
    """Returns the largest difference from what is expected, and the largest in units of what passes as rounding.

    Example:
      >>> compared([np.float32([1, 4])], [np.float32([1, 5])], [0.5])
      {'difference': 0.25, 'of_limit': 0.5}
    """
    from reshard.dialect_utils.compare.array_differences import difference

    fractions = [difference(*each).fraction for each in zip(expected, found, limits, strict=True)]
    of_limits = [each and (each / limit if limit else math.inf) for each, limit in zip(fractions, limits)]
    return {"difference": float(max(fractions, default=0.0)), "of_limit": float(max(of_limits, default=0.0))}


def _sum_over_processes() -> Callable[[int], int]:
    """Returns a function that adds up a number of each process; it returns when all processes have called it."""
    import jax

    mesh = jax.make_mesh((len(jax.devices()),), ("process",))
    sharding = jax.NamedSharding(mesh, jax.P("process"))
    total = jax.jit(lambda value: value.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))

    def added(number: int) -> int:
        value = jax.make_array_from_callback((mesh.size,), sharding, lambda index: np.full(1, number, np.int32))
        return int(jax.block_until_ready(total(value)))

    return added


def _flops_per_s() -> float:
    """Returns the rate of matrix products of float32 on this device while all devices multiply."""
    import jax

    device = jax.local_devices()[0]
    matrix = jax.device_put(np.full((_SIDE, _SIDE), 1 / _SIDE, np.float32), device)
    multiply = jax.jit(lambda each: jax.lax.fori_loop(0, _PRODUCTS, lambda _, product: product @ each, each))
    jax.block_until_ready(multiply(matrix))
    together, seconds = _sum_over_processes(), []
    for _ in itertools.repeat(None, _TURNS):
        together(0)
        began_s = time.perf_counter()
        jax.block_until_ready(multiply(matrix))
        seconds.append(time.perf_counter() - began_s)
    return 2 * _SIDE**3 * _PRODUCTS / statistics.median(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
