# SPDX-License-Identifier: Apache-2.0
"""`reshard.place`: a function is placed, and runs on the mesh with the devices in that order."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.compiling.placing import Place, Places
from reshard.synthesis.layouts.mesh import Mesh


@dataclass(frozen=True)
class Chip:
    id: int
    coords: tuple[int, ...]
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    process_index: int = 0


def test_a_function_runs_on_the_mesh_that_was_placed():
    def step(w, x):
        return jnp.tanh(x @ w) @ w.T

    def structs(mesh):
        named = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P("y", "x"))
        shapes = (256, 256), (512, 256)
        return [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=each) for shape, each in zip(shapes, named)]

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    found = reshard.place(step, *structs(mesh), topology="h100:2x4")
    assert found.best.text == "x: gpu 4; y: node 2" and found.best.best_s < found.named("row-major").best_s
    placed = found.jax_mesh(jax.devices()[7::-1])  # in whatever order they are listed, their ids count
    assert [device.id for device in placed.devices.flat] == [0, 4, 1, 5, 2, 6, 3, 7]
    w, x = (np.random.default_rng(0).standard_normal(each.shape, np.float32) for each in structs(mesh))
    on_mesh = [jax.device_put(each, like.sharding) for each, like in zip((w, x), structs(placed))]
    np.testing.assert_allclose(jax.jit(step)(*on_mesh), np.tanh(x @ w) @ w.T, rtol=2e-4, atol=2e-4)


def test_tpus_are_found_by_their_coordinates():
    """The ids of a slice of 2x2x4 follow x first; the network numbers its devices z first."""
    mesh = Mesh.parse("x=2,y=2,z=4")
    found = Places(mesh, "v5p:2x2x4", (Place(tuple(range(16)), "", (), 1.0),), is_by_coordinates=True)
    coords = [(x, y, z) for z in range(4) for y in range(2) for x in range(2)]
    chips = [Chip(number, each) for number, each in enumerate(coords)]
    placed = found.jax_mesh(chips).devices
    assert all(placed[chip.coords] == chip for chip in chips)
    assert "*d.coords, d.core_on_chip" in str(found)


def test_arguments_of_a_module_are_refused():
    with pytest.raises(TypeError, match="place takes arguments of a function only"):
        reshard.place("module {}", 1, topology="h100:2x4")
