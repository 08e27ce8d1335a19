# SPDX-License-Identifier: Apache-2.0
"""Smoke tests on one GPU; skipped where jax finds no GPU.

Each test runs in its own process, since the process of the tests has CPU devices.
"""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.device
_NO_GPU = 77

_HEAD = f"""
import sys
import jax
try:
    gpu = jax.devices("cuda")[0]
except RuntimeError:
    sys.exit({_NO_GPU})
import jax.numpy as jnp
import numpy as np
import reshard
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=[gpu])
rows, columns = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P(None, ("x", "y")))
add = lambda a, b: jnp.tanh(a) + jax.lax.with_sharding_constraint(b, columns)
step = jax.jit(add, in_shardings=(rows, rows), out_shardings=columns)
a, b = (np.random.default_rng(seed).standard_normal((64, 96), np.float32) for seed in (0, 1))
lowered = step.lower(a, b)
"""


def run_on_gpu(program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + program], env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode == _NO_GPU:  # only the device tier, selected by name, has these tests; a GPU cannot be faked
        pytest.skip("needs a GPU and jax's CUDA plug-in")
    assert done.returncode == 0, done.stderr


def test_an_optimized_step_runs_and_computes_the_same():
    run_on_gpu("""
result = reshard.optimize(lowered)
found = result.compile()(a, b)
assert found.devices() == {gpu}
np.testing.assert_array_equal(np.asarray(found), np.asarray(lowered.compile()(a, b)))
""")


def test_ahead_of_time_the_compiler_needs_as_much_memory_for_inputs_and_outputs_as_on_the_gpu():
    run_on_gpu("""
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.dialect_utils.xla.child import XlaChild
with XlaChild(uses_cache=False, num_devices=1) as child:
    ahead = child.compile(lowered.as_text(), 1, target=Target.parse("cuda:h100:1x1x1"))
assert ahead.is_ok, ahead.message
there = lowered.compile().memory_analysis()
assert (ahead.argument_bytes, ahead.output_bytes) == (there.argument_size_in_bytes, there.output_size_in_bytes)
""")
