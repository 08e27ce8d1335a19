# SPDX-License-Identifier: Apache-2.0
"""Writes a jax.export file; with --call, calls the function in one on 8 CPU devices and compares its value."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
before, after = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec(None, "x"))


def program(argument):
    return {"doubled": 2 * argument["a"]}


path = sys.argv[1]
if "--call" in sys.argv:
    exported = export.deserialize(bytearray(open(path, "rb").read()))
    print(jax.tree.unflatten(exported.out_tree, exported.out_avals))
    value = np.arange(256, dtype=np.float32).reshape(16, 16)
    called = jax.jit(exported.call)({"a": jax.device_put(value, before)})
    print("equal" if np.array_equal(called["doubled"], 2 * value) else "different")
else:
    shape = jax.ShapeDtypeStruct((16, 16), np.float32, sharding=before)
    exported = export.export(jax.jit(program, out_shardings=after))({"a": shape})
    open(path, "wb").write(bytes(exported.serialize(vjp_order=1)))
