# SPDX-License-Identifier: Apache-2.0
"""Functions of libraries' jits: state and arguments stay the library's, and their programs are optimized."""

import copy
import gc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard.compiling import library_jits

nnx = pytest.importorskip("flax.nnx")

WIDTH = 64


def on(mesh, *spec):
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


class Model(nnx.Module):
    def __init__(self, mesh):
        weights = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)
        self.weights = nnx.Param(jax.device_put(weights, on(mesh, "x")))
        self.steps = nnx.Variable(jax.device_put(np.zeros((), np.int32), on(mesh)))


def step_on(mesh):
    """Returns a step that changes the state of a model, with a conversion that is gathered by stock XLA."""

    def step(model, batch):
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((batch @ model.weights[...]) ** 2))(model)
        by_columns = jax.lax.with_sharding_constraint(gradients["weights"][...], on(mesh, None, "x"))
        model.weights[...] -= 0.1 * by_columns
        model.steps[...] += 1
        return value

    return step


@pytest.fixture(autouse=True)
def nothing_stays_installed():
    yield
    gc.collect()


@pytest.fixture
def batch(mesh):
    return jax.device_put(np.ones((WIDTH, WIDTH), np.float32), on(mesh, "x"))


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setenv("RESHARD_POLICY", "always")
    monkeypatch.setenv("RESHARD_CHECK", "off")


def after(step, mesh, batch):
    """Returns the values of two steps and the state behind them."""
    model = Model(mesh)
    values = [float(step(model, batch)) for _ in range(2)]
    return values, np.asarray(model.weights[...]), int(model.steps[...])


def assert_equal(ours, stock):
    np.testing.assert_allclose(ours[0], stock[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], stock[1], rtol=1e-5, atol=1e-6)
    assert ours[2] == stock[2] == 2


def test_a_function_of_nnx_keeps_its_state(always, mesh, batch):
    jitted = nnx.jit(step_on(mesh))
    ours = reshard.jit(jitted)
    stock = after(jitted, mesh, batch)
    for _ in range(2):  # the other one is used in between
        assert_equal(after(ours, mesh, batch), stock)
        assert_equal(after(jitted, mesh, batch), stock)
    assert ours.__name__ == "step" and ours.fun is jitted.fun


def test_the_function_that_was_given_keeps_its_own_programs(always, mesh, batch):
    jitted, model = nnx.jit(step_on(mesh)), Model(mesh)
    ours = reshard.jit(jitted)
    for _ in range(2):
        texts = [each.lower(model, batch).compile().as_text() for each in (jitted, ours)]
        assert ["reshard/0/" in text for text in texts] == [False, True]
        ours(model, batch), jitted(model, batch)


def test_a_method_of_a_model_keeps_its_state(always, mesh, batch):
    class Trained(Model):
        step = nnx.jit(step_on(mesh))

    def after_two(of):
        model = Trained(mesh)
        step = of(model.step)
        values = [float(step(batch)) for _ in range(2)]
        return values, np.asarray(model.weights[...]), int(model.steps[...])

    stock = after_two(lambda step: step)
    assert_equal(after_two(reshard.jit), stock)
    assert_equal(after_two(lambda step: reshard.jit(reshard.jit(step))), stock)
    method = Trained(mesh).step
    assert reshard.explain(method, batch).to_dict()["sites"]
    assert "reshard/0/" in reshard.jit(method).lower(batch).compile().as_text()


def test_its_calls_use_what_reshard_compiled(always, mesh, batch, tmp_path):
    step = reshard.jit(nnx.jit(step_on(mesh)), reshard_options={"dump_to": str(tmp_path)})
    model = Model(mesh)
    for _ in range(3):
        step(model, batch)
    before = sorted(each.name for each in tmp_path.glob("*.jit_step.before.mlir"))
    assert before[0] == "0001.jit_step.before.mlir" and (tmp_path / "0001.jit_step.after.mlir").exists()
    assert len(before) < 3, "it is compiled with each call"  # twice: results come in other layouts than the first state


def test_stages_of_nnx_are_optimized_and_stay_its_own(always, mesh, batch):
    jitted, model = nnx.jit(step_on(mesh)), Model(mesh)
    stock = after(jitted, mesh, batch)
    lowered = jitted.lower(model, batch)
    result = reshard.optimize(lowered)
    assert result.is_rewritten and type(result.lowered) is type(lowered) and result.lowered is not lowered
    assert_equal(after(result.compile(), mesh, batch), stock)
    ours = reshard.jit(jitted).lower(model, batch).compile()
    assert_equal(after(ours, mesh, batch), stock)
    reshards = [each.as_text().count("reshard/0/") for each in (ours, lowered.compile())]
    assert reshards[0] > 0 and reshards[1] == 0


@pytest.mark.slow
def test_a_report_takes_a_function_of_nnx(mesh, batch):
    jitted, model = nnx.jit(step_on(mesh)), Model(mesh)
    sites = len(reshard.explain(jitted, model, batch).to_dict()["sites"])
    assert sites == len(reshard.explain(jitted.lower(model, batch)).to_dict()["sites"]) > 0
    assert "jit_step" in str(reshard.traffic(jitted, model, batch))


def test_a_method_may_be_decorated(always, mesh, batch):
    class Doubled:
        @reshard.jit
        @nnx.jit(static_argnums=0)
        def call(self, batch):
            return jax.lax.with_sharding_constraint(batch * 2, on(mesh, None, "x"))

    assert Doubled().call(batch).sharding.is_equivalent_to(on(mesh, None, "x"), 2)
    jax.clear_caches()  # they hold the static argument, and so the class and its function


@pytest.mark.slow
def test_the_seam_is_removed_with_the_last_function(mesh):
    gc.collect()
    stock = compiler.compile_or_get_cached
    first, second = (reshard.jit(nnx.jit(step_on(mesh))) for _ in range(2))
    del first
    gc.collect()
    assert compiler.compile_or_get_cached is not stock
    third = copy.copy(second)
    del second
    gc.collect()
    assert compiler.compile_or_get_cached is not stock
    del third
    gc.collect()
    assert compiler.compile_or_get_cached is stock


def test_a_wrong_setting_around_a_call_is_an_error(mesh, batch, monkeypatch):
    monkeypatch.setenv("RESHARD_POLICY", "never")
    with pytest.raises(ValueError, match="RESHARD_POLICY: policy=never is not available"):
        reshard.jit(nnx.jit(step_on(mesh)))(Model(mesh), batch)


def test_arguments_of_jit_belong_to_the_library(mesh):
    with pytest.raises(TypeError, match=r"got donate_argnums=.* jitted by flax\.nnx.* give the option there"):
        reshard.jit(nnx.jit(step_on(mesh)), donate_argnums=0)


@pytest.mark.parametrize("entry", [reshard.auto, lambda step, *_, **__: reshard.jit(step, in_shardings=reshard.AUTO)])
def test_auto_refuses_it(entry, mesh, batch):
    with pytest.raises(TypeError, match="auto takes a function that is not jitted.*how-to/automatic.md"):
        entry(nnx.jit(step_on(mesh)), Model(mesh), batch, mesh="x=8")


def test_equinox(always, mesh, batch):
    """Arguments that are no arrays, and a lowered program that shows no module."""
    equinox = pytest.importorskip("equinox")

    @equinox.filter_jit
    def step(model, batch):
        rows = jax.vmap(model)(batch)
        return jax.lax.with_sharding_constraint(rows, on(mesh, None, "x")), model

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = equinox.nn.MLP(WIDTH, WIDTH, WIDTH, 1, key=jax.random.key(0))
        assert library_jits.is_jitted(step)
        stock = np.asarray(step(model, batch)[0])
        result = reshard.optimize(step.lower(model, batch))
        assert result.is_rewritten
        for ours in (result.compile(), reshard.jit(step)):
            rows, passed = ours(model, batch)
            np.testing.assert_allclose(np.asarray(rows), stock, rtol=1e-5, atol=1e-6)
            assert passed.activation is model.activation
        assert reshard.explain(step, model, batch).to_dict()["sites"]
