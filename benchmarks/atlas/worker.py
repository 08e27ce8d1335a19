# SPDX-License-Identifier: Apache-2.0
"""The process that compiles and runs the cases of the atlas; XLA may end it.

Reads lines `{"program": number, "cases": [0, 1, ...], "families": [...], "emission": ...}` or `{"program": ...,
"given": [case, ...]}`, and answers each case, written as `"emission"` says, by a line `{"case": ..., "status": "right"
| "wrong" | "refused", ...}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

DEVICES = 12
# Options for fast compilation; they do not change how XLA partitions.
_FAST: dict[str, object] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_FAST_OF_OLD = {"xla_cpu_use_fusion_emitters": False}  # saves two thirds of the time; jaxlib 0.12 has no such flag


def main() -> None:
    """Answers the questions on stdin until its end, in a child process; if XLA ends the child, the next one goes on.

    The child is forked from a process that has loaded XLA but not used it yet, so it starts at once.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    from jax._src import compiler  # noqa: F401

    from reshard.dialect_utils.platform import compat  # noqa: F401

    answers, sys.stdout = sys.stdout, sys.stderr
    while True:
        child = os.fork()
        if child == 0:
            _answer_all(answers)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return
        print(json.dumps({"status": "died"}), file=answers, flush=True)


def _answer_all(answers: TextIO) -> None:
    for line in sys.stdin:
        for answer in outcomes(json.loads(line)):
            print(json.dumps(answer), file=answers, flush=True)


def outcomes(request: dict) -> Iterator[dict]:
    """Yields the outcome of each case of a request."""
    from benchmarks.atlas import layouts, programs

    number = request["program"]
    program = programs.drawn(number, request.get("families", ()))
    inputs = inputs_of(program, number)
    if "given" in request:
        cases = [(at, layouts.Case.from_json(each)) for at, each in enumerate(request["given"])]
    else:
        cases = [(at, layouts.drawn(program, f"{number} {at}")) for at in request["cases"]]
    try:
        expected = run(layouts.unsharded_text(program), 1, inputs)
    except Exception as problem:  # XLA refuses, as below
        yield from ({"case": at, "status": "no reference", "message": _first_line(problem)} for at, _ in cases)
        return
    for at, case in cases:
        try:
            found = run(written(layouts.text(program, case), request.get("emission", "")), case.devices, inputs)
        except Exception as problem:  # XLA refuses the module: its errors have many types
            yield {"case": at, "status": "refused", "message": _first_line(problem)}
            continue
        wrong = [where for where, pair in enumerate(zip(expected, found)) if differs(*pair, program.is_exact)]
        yield {"case": at, "status": "wrong" if wrong else "right", **({"results": wrong} if wrong else {})}


def written(text: str, emission: str) -> str:
    """Returns a module as `--emit` says; as it is without an emission. Raises: DiagnosedError."""
    if not emission:
        return text
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.passes.driver.base import RunOptions, Session
    from reshard.passes.driver.pipeline import Pipeline

    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        Pipeline.emitting(emission, {}).run(module, Session(RunOptions()))
        return str(module)


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [""])[0][:200]


def inputs_of(program, number: int) -> list:
    """Returns random entries for each operand of a program, as arrays."""
    import numpy as np

    random = np.random.default_rng(number)
    types = {"f32": np.float32, "i32": np.int32}
    found = []
    for each in program.operands:
        low, high = (-8, 9) if each.bound is None else (0, each.bound)
        found.append(random.integers(low, high, each.shape).astype(types[each.element]))
    return found


def run(text: str, devices: int, inputs: list) -> list:
    """Returns the outputs of a module as numpy arrays."""
    import jax
    import numpy as np
    from jaxlib.mlir import ir

    from reshard.dialect_utils.platform import compat

    own = jax.devices()[:devices]
    context = compat.jax_context()
    module = compat.parse_module(context, text)
    fast = _FAST | (_FAST_OF_OLD if compat.jaxlib_version() < "0.11" else {})
    main = next(op for op in module.body.operations if op.operation.name == "func.func")
    results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    options = compat.compile_options(
        own,
        fast,
        propagates_to_parameters=[False] * len(inputs),
        propagates_to_results=[False] * len(results),
    )
    with context:
        executable = compat.load_executable(module, own, options)
    placed = [compat.array_sharding(each, own) for each in compat.parameter_shardings(executable, len(inputs))]
    arguments = [jax.device_put(value, each) for value, each in zip(inputs, placed, strict=True)]
    shards = compat.execute_sharded(executable, arguments)
    given = [compat.array_sharding(each, own) for each in compat.output_shardings(executable, len(results))]
    shapes = [tuple(ir.RankedTensorType(each).shape) for each in results]
    return [np.asarray(jax.make_array_from_single_device_arrays(*each)) for each in zip(shapes, given, shards)]


def differs(expected, found, is_exact: bool) -> bool:
    """Returns whether two outputs differ by more than rounding."""
    import numpy as np

    if is_exact:
        return not np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f")
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    return not np.allclose(expected, found, rtol=0, atol=1e-3 * scale, equal_nan=True)


if __name__ == "__main__":
    main()
