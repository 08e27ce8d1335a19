# SPDX-License-Identifier: Apache-2.0
"""Writes a case as a report for XLA's maintainers, with a script that shows the difference."""

from __future__ import annotations

from benchmarks.atlas import layouts, programs

_SCRIPT = '''\
import os

DEVICES = {devices}
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={{DEVICES}}"

import jax
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.sharding_impls import GSPMDSharding
from jaxlib.mlir import ir
import numpy as np

SHARDED = """
{sharded}"""

ON_ONE_DEVICE = """
{unsharded}"""


def run(text, devices, inputs):
    context = mlir.make_ir_context()
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
    options = compiler.get_compile_options(1, len(devices), device_assignment=np.array([[each.id for each in devices]]))
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    client = devices[0].client
    with context:
        program = getattr(client, "compile_and_load", client.compile)(module, xla_client.DeviceList(tuple(devices)), options)
    told = program.get_parameter_shardings() or [xla_client.OpSharding()] * len(inputs)
    shardings = [GSPMDSharding(tuple(devices), each) for each in told]
    placed = [jax.device_put(value, each) for value, each in zip(inputs, shardings)]
    shards = program.execute_sharded(placed).disassemble_into_single_device_arrays()
    types = [np.asarray(each[0]) for each in shards]
    told = program.get_output_shardings()
    if told is None:
        return types
    return [gathered(each, GSPMDSharding(tuple(devices), how)) for each, how in zip(shards, told)]


def gathered(shards, sharding):
    tile = shards[0].shape
    counts = [1] * len(tile) if sharding.is_fully_replicated else sharding._hlo_sharding.tile_assignment_dimensions()[: len(tile)]
    shape = tuple(size * count for size, count in zip(tile, counts))
    return np.asarray(jax.make_array_from_single_device_arrays(shape, sharding, shards))


random = np.random.default_rng({number})
inputs = [
{inputs}
]
for expected, found in zip(run(ON_ONE_DEVICE, jax.devices()[:1], inputs), run(SHARDED, jax.devices(), inputs)):
    print("right" if np.allclose(expected, found) else f"{{np.count_nonzero(expected != found)}} of {{expected.size}} entries are wrong")
'''  # noqa: E501


def report(number: int, program: programs.Program, case: layouts.Case, title: str, versions: str) -> str:
    """Returns the report of a case that XLA computes wrongly, as Markdown."""
    inputs = "\n".join(_input(each) for each in program.operands)
    script = _SCRIPT.format(
        number=number,
        devices=case.devices,
        sharded=layouts.text(program, case),
        unsharded=layouts.unsharded_text(program),
        inputs=inputs,
    )
    return (
        f"# SPMD partitioner: {title}\n\nSeen with jaxlib {versions} on CPU devices, with the Shardy partitioner. "
        f"The program below gives "
        "other values on a mesh than on one device;\nall entries are small whole numbers, so that this is not "
        "rounding.\n\n"
        f"```python\n{script}```\n\nExpected: `right` for each output.\n"
    )


def _input(operand: programs.Operand) -> str:
    """Returns the script's line that draws an operand's entries as `worker.inputs_of` does."""
    low, high = (-8, 9) if operand.bound is None else (0, operand.bound)
    dtype = {"f32": "float32", "i32": "int32"}[operand.element]
    return f"    random.integers({low}, {high}, {operand.shape}).astype(np.{dtype}),"
