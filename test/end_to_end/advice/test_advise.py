# SPDX-License-Identifier: Apache-2.0
"""reshard.advise on functions of jax, and on modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard

pytestmark = pytest.mark.usefixtures("lasting_xla_child")


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))


def at(mesh, *spec):
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.slow
def test_a_function_is_advised_on_and_the_changed_module_computes_the_same(mesh):
    rows, columns = at(mesh, "x"), at(mesh, None, "x")

    def step(x):
        x = jnp.tanh(x)
        x = jax.lax.with_sharding_constraint(x, columns)  # this line
        return jnp.exp(x)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=rows)
    found = reshard.advise(jax.jit(step, out_shardings=rows), x, topology="h100", with_ours=False)
    (change,) = found.changes
    assert change.sharding is None and change.source.endswith("# this line")
    assert change.annotation.place.file == __file__
    assert change.diff == ("- x = jax.lax.with_sharding_constraint(x, columns)  # this line", "+ # this line")
    assert "with_sharding_constraint" in str(found) and "sharding_constraint" not in found.module.split("loc(")[0]
    assert found.to_dict()["changes"][0]["advised"] is None


def test_what_optimize_makes_of_both_programs_is_shown_too(mesh):
    rows, columns = at(mesh, "x"), at(mesh, None, "x")
    step = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(jnp.tanh(x), columns) + 1, in_shardings=rows, out_shardings=rows
    )
    lowered = step.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    found = reshard.advise(lowered, topology="h100")
    assert [form["title"] for form in found.to_dict()["forms"]] == [
        "as it came",
        "with 1 change",
        "as it came, optimized",
        "with changes, optimized",
    ]


def test_arguments_are_for_functions_only(mesh):
    with pytest.raises(TypeError, match="advise takes arguments of a function only"):
        reshard.advise("module {}", 1)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"effort": -1}, {"effort": float("nan")}])
def test_most_and_effort_are_positive(wrong):
    with pytest.raises(ValueError, match="both are positive"):
        reshard.advise("module {}", **wrong)


def test_what_is_no_program_is_named():
    with pytest.raises(TypeError, match="^advise takes"):
        reshard.advise(5)
    with pytest.raises(TypeError, match="^advise takes .*, not Compiled"):
        reshard.advise(jax.jit(jnp.tanh).lower(1.0).compile())
    with pytest.raises(TypeError, match="^traffic takes .*, not Compiled"):
        reshard.traffic(jax.jit(jnp.tanh).lower(1.0).compile())


def test_without_constraints_nothing_is_advised(mesh):
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=at(mesh, "x"))
    found = reshard.advise(jnp.tanh, x, may_change=("constraints", "state", "mesh"))
    assert not found.changes and found.module is None
    assert "nothing is advised: the module has no sharding that could change" in str(found)
    found = reshard.advise(jnp.tanh, x)
    assert not found.changes and found.module is None and "nothing" in str(found)


def received(function, *arguments) -> int:
    return reshard.traffic(function, *arguments, topology="h100").to_dict()["stock"]["bytes_received"]


def weights_and_batch(mesh, held, rows):
    """Returns a training step whose weights are used split by columns, with the shapes of its arguments."""
    used = at(mesh, None, "x")

    def step(params, batch):
        w = jax.lax.with_sharding_constraint(params["w"], used)
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(batch @ w)))(w)
        return {"w": params["w"] - 0.1 * gradient}

    placed = {"w": at(mesh, *held)}
    params = {"w": jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=placed["w"])}
    batch = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=at(mesh, *rows))
    return jax.jit(step, out_shardings=placed, donate_argnums=0), params, batch


def test_a_parameter_that_is_placed_as_advised_gives_what_was_measured(mesh):
    held = ("x", None)
    function, *arguments = weights_and_batch(mesh, held, ())
    found = reshard.advise(function, *arguments, topology="h100", with_ours=False, may_change=["state"])
    (change,) = found.changes
    assert change.annotation.names == ("params['w']",) and change.annotation.results == (0,)
    advised = tuple(tuple(axis.name for axis in axes) or None for axes in change.sharding.dims)
    assert advised != held
    again, *placed = weights_and_batch(mesh, advised, ())
    before, after = received(function, *arguments), received(again, *placed)
    assert found.found.forms[0].compiled.costs.bytes_received == after < before


@pytest.mark.slow
def test_a_mesh_of_the_shape_that_was_advised_gives_what_was_measured(mesh):
    function, *arguments = weights_and_batch(mesh, ("x", "y"), ("y",))
    found = reshard.advise(function, *arguments, topology="h100", with_ours=False, may_change=["mesh"])
    faster = [each for each in found.found.meshes if each.form.time.seconds < found.found.stock.time.seconds]
    assert faster
    for each in faster:
        sizes = tuple(size for _, size in each.mesh.axes)
        other = Mesh(np.array(jax.devices()[:8]).reshape(sizes), ("x", "y"))
        again, *placed = weights_and_batch(other, ("x", "y"), ("y",))
        assert each.form.compiled.costs.bytes_received == received(again, *placed)


@pytest.mark.parametrize("wrong", ["mesh", ["meshes"]])
def test_what_may_change_has_known_words(wrong):
    with pytest.raises(ValueError, match="it has some of constraints, lines, state, arguments, mesh"):
        reshard.advise("module {}", may_change=wrong)
