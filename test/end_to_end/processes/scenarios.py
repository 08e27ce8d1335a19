# SPDX-License-Identifier: Apache-2.0
"""Runs one process of a job for the tests beside this file, and prints one JSON object as its last line.

    scenarios.py PROCESS PROCESSES SCENARIO FOLDER

A job of one process runs without `jax.distributed`; the tests compare the other jobs with it.
"""

import hashlib
import json
import logging
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from examples.programs import program
from reshard.dialect_utils.platform import compat

ROWS_AND_PLANES, COLUMNS = P("y", None, "x"), P(None, ("x", "y"), None)
LATE_S = 6.0  # more than twice the timeout of the tests that are late


class _Warnings(logging.Handler):
    """Collects the logged warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def save_shards(folder: Path, tag: str, process: int, tree) -> None:
    """Writes this process's shards of each leaf, each under its leaf and place, such as `0:0,8;4,8`."""
    parts = {}
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        for shard in leaf.addressable_shards:
            bounds = [each.indices(size)[:2] for each, size in zip(shard.index, leaf.shape)]
            parts[f"{number}:{';'.join(f'{start},{stop}' for start, stop in bounds)}"] = np.asarray(shard.data)
    np.savez(folder / f"{tag}-{process}.npz", **parts)


def mesh_of(devices) -> Mesh:
    return Mesh(np.array(devices).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def cube_on(mesh: Mesh, side: int = 16):
    values = np.arange(side**3, dtype=np.float32).reshape((side,) * 3)
    sharding = NamedSharding(mesh, ROWS_AND_PLANES)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def into_columns(name: str, mesh: Mesh, factor: float = 2):
    """Returns a jitted function, called `name`, with one conversion for which stock XLA gathers everything."""

    def function(a):
        return with_sharding_constraint(a * factor, NamedSharding(mesh, COLUMNS))

    function.__name__ = name
    return jax.jit(function)


def told_of(result) -> dict:
    compiled = result.compile()
    return {
        "is_rewritten": result.is_rewritten,
        "module": digest(result.module),
        "executable": digest(compiled.as_text()),
        "report": result.report.text(),
    }


def is_doubled(output) -> bool:
    """Returns whether this process's shards are the result of `into_columns`."""
    values = 2 * np.arange(output.size, dtype=np.float32).reshape(output.shape)
    return all(np.array_equal(np.asarray(shard.data), values[shard.index]) for shard in output.addressable_shards)


def optimized(name: str, mesh: Mesh, side: int = 16, **options) -> dict:
    """Optimizes, compiles and runs one program, and returns digests of the results and whether they are right."""
    cube = cube_on(mesh, side)
    result = reshard.optimize(into_columns(name, mesh).lower(cube), **options)
    return {**told_of(result), "is_right": is_doubled(result.compile()(cube))}


# -- scenarios --


def cube(process: int, folder: Path) -> dict:
    return optimized("cube", mesh_of(jax.devices()))


def example(name: str, process: int, folder: Path) -> dict:
    """Optimizes one of the example programs and runs it once."""
    entry = program(name)
    function, args = entry.build(entry.mesh(), size="small")
    result = reshard.optimize(function.lower(*args))
    told = told_of(result)
    save_shards(folder, f"{name}-{jax.process_count()}", process, result.compile()(*args))
    return told


def jitted(process: int, folder: Path) -> dict:
    """Runs one program with `reshard.jit`, and another one with `with reshard.enabled()`."""
    mesh = mesh_of(jax.devices())
    cube = cube_on(mesh)
    function = reshard.jit(into_columns("cube", mesh).__wrapped__)
    compiled = function.lower(cube).compile().as_text()
    is_right = is_doubled(function(cube))
    with reshard.enabled() as programs:
        is_right &= is_doubled(into_columns("other", mesh)(cube))
    (found,) = [each for each in programs if each.name == "jit_other"]
    return {
        "is_rewritten": found.is_rewritten and "all-to-all" in compiled,
        "module": found.report.to_dict()["sites"][0]["chain"],
        "executable": digest(compiled),
        "report": found.report.text(),
        "is_right": is_right,
    }


def tree_on(mesh: Mesh):
    """Returns arrays and their target shardings: between dimensions, to fewer shards, and to replicas."""
    values = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    ends = {
        "swap": (P("x", "y"), P("y", "x")),
        "gather": (P(("x", "y")), P("y")),
        "turn": (P(("x", "y")), P(None, ("x", "y"))),
        "copy": (P("x"), P()),
    }

    def placed(name: str, spec: P):
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, spec), lambda index: values[index] + len(name)
        )

    tree = {name: placed(name, source) for name, (source, _) in ends.items()}
    return tree, {name: NamedSharding(mesh, target) for name, (_, target) in ends.items()}


def redistributed(process: int, folder: Path) -> dict:
    tree, shardings = tree_on(mesh_of(jax.devices()))
    schedule = reshard.plan_tree(tree, shardings)
    for _ in range(2):
        moved = reshard.redistribute(tree, shardings)
    save_shards(folder, f"redistributed-{jax.process_count()}", process, moved)
    return {"schedule": {each.path: each.text for each in schedule.transfers}}


def redistributed_otherwise(process: int, folder: Path) -> dict:
    """Redistributes a tree; process 1 has another memory limit."""
    tree, shardings = tree_on(mesh_of(jax.devices()))
    try:
        reshard.redistribute(tree, shardings, memory_limit="1MiB" if process == 1 else "2MiB")
    except reshard.DisagreementError as error:
        return {"error": str(error)}
    return {"error": None}


def another_option(process: int, folder: Path) -> dict:
    return optimized("cube", mesh_of(jax.devices()), policy="always" if process == 1 else "better")


def another_version(process: int, folder: Path) -> dict:
    if process == 1:
        compat.jax_versions = lambda: ("0.10.2", "0.9.9")
    return optimized("cube", mesh_of(jax.devices()))


def another_module(process: int, folder: Path) -> dict:
    """Each process has another constant in the program, which is a mistake of the program.

    The scenario does not run it, since its values are up to XLA.
    """
    mesh = mesh_of(jax.devices())
    result = reshard.optimize(into_columns("cube", mesh, factor=2.0 + process).lower(cube_on(mesh)))
    return {"is_rewritten": result.is_rewritten, "report": result.report.text()}


def at_hand(process: int, folder: Path) -> dict:
    """CPU devices stand for TPUs: XLA for CPU devices is their compiler, which loads what it compiles."""
    from reshard.compiling import optimizing
    from reshard.dialect_utils.xla import worker
    from reshard.dialect_utils.xla.compile_targets import Target
    from reshard.planning import device_networks

    device_networks.target_of = lambda devices: Target.parse("tpu:v5e:2x4")
    device_networks.topology_of = lambda devices: "v5e:2x4"
    optimizing._platform_of = lambda devices: "tpu"
    compat.compile_ahead_of_time = compat.load_executable
    asked, ask = [], worker.compiled_at_hand

    def watched(request, devices, levels):
        asked.append(ask(request, devices, levels))
        return asked[-1]

    worker.compiled_at_hand = watched
    told = optimized("cube", mesh_of(jax.devices()), side=64)
    return {**told, "asked": [each["status"] for each in asked]}


def missing(process: int, folder: Path) -> dict:
    """Process 1 compiles without reshard; the program still runs."""
    mesh = mesh_of(jax.devices())
    if process != 1:
        return optimized("cube", mesh)
    cube = cube_on(mesh)
    return {"is_right": is_doubled(into_columns("cube", mesh).lower(cube).compile()(cube))}


def late(process: int, folder: Path) -> dict:
    """The last process arrives after the others have stopped waiting."""
    mesh = mesh_of(jax.devices())
    if process == jax.process_count() - 1:
        time.sleep(LATE_S)
    return optimized("cube", mesh)


def late_lead(process: int, folder: Path) -> dict:
    mesh = mesh_of(jax.devices())
    if process == 0:
        time.sleep(LATE_S)
    return optimized("cube", mesh)


def alone(process: int, folder: Path) -> dict:
    """Only process 1 compiles a program, which uses only the devices of this process."""
    if process != 1:
        return {}
    return optimized("alone", mesh_of(jax.local_devices()))


def some(process: int, folder: Path) -> dict:
    """Compiles a program on the devices of processes 1 and 3 only."""
    if process not in (1, 3):
        return {}
    return optimized("some", mesh_of([device for device in jax.devices() if device.process_index in (1, 3)]))


def failing(process: int, folder: Path) -> dict:
    """Planning fails in process 0, which plans for all processes."""
    if process == 0:
        from reshard.passes.whole_module import whole_module_check

        def check(*_, **__):
            raise OSError("no space left")

        whole_module_check.check = check
    try:
        optimized("cube", mesh_of(jax.devices()))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


SCENARIOS = {
    each.__name__: each
    for each in (
        cube,
        jitted,
        redistributed,
        redistributed_otherwise,
        another_option,
        another_version,
        another_module,
        at_hand,
        missing,
        late,
        late_lead,
        alone,
        some,
        failing,
    )
} | {each: partial(example, each) for each in ("issue_21562", "llama_train_step")}


def main() -> None:
    process, processes, scenario, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    logger = logging.getLogger("reshard.jobs.agreement")
    logger.addHandler(warnings := _Warnings())
    if processes > 1:
        jax.distributed.initialize(num_processes=processes, process_id=process)
    jax.devices()  # all processes have to take part in this call
    told = SCENARIOS[scenario](process, folder)
    print(json.dumps({**told, "warnings": warnings.messages}), flush=True)


if __name__ == "__main__":
    main()
