# SPDX-License-Identifier: Apache-2.0
"""reshard.auto, and reshard.jit with AUTO: programs without annotations run on eight devices, and compute the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import reshard
from reshard.dialect_utils.ir.diagnostics import DiagnosedError

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

WIDTH, HIDDEN, LAYERS = 64, 128, 2


def parameters():
    keys = jax.random.split(jax.random.key(0), 2)
    up = jax.random.normal(keys[0], (LAYERS, WIDTH, HIDDEN)) * 0.1
    return {"up": up, "down": jax.random.normal(keys[1], (LAYERS, HIDDEN, WIDTH)) * 0.1}


def batch():
    return jax.random.normal(jax.random.key(1), (32, 16, WIDTH))


def loss(params, x):
    def layer(h, weights):
        return h + jnp.tanh(h @ weights["up"]) @ weights["down"], None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def agrees(found, wanted):
    return jax.tree.all(jax.tree.map(lambda a, b: bool(np.allclose(a, b, rtol=1e-4, atol=1e-6)), found, wanted))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["x=8", {"data": 2, "model": 4}])
def test_a_training_step_without_annotations_computes_the_same_on_eight_devices(mesh):
    params, x = parameters(), batch()
    found = reshard.auto(step, params, x, mesh=mesh, topology="v5e:2x4", memory_limit="2MiB", compiled_meshes=1)
    assert agrees(found(params, x), jax.jit(step)(params, x))
    assert dict(found.mesh.shape) == ({"x": 8} if mesh == "x=8" else mesh)
    assert jax.tree.structure(found.in_shardings[0]) == jax.tree.structure(params)
    placed = found.put(params, x)
    after, value = found.compiled(*placed)
    assert after["up"].sharding.is_equivalent_to(found.out_shardings[0]["up"], 3) and value.sharding.is_fully_replicated
    text = str(found)
    assert text.startswith("layouts for 8 devices, times modelled on v5e:2x4") and "params['up']" in text
    assert found.to_dict()["schema"] == "reshard.auto/1" and "mesh" in found.to_dict()
    assert "site" in found.report.text() or "whole" in found.report.text()


@pytest.mark.slow
def test_collectives_are_counted_for_each_layer_and_direction():
    """Parameters that are in shards are gathered in each layer, forward and once more backward."""
    params, x = parameters(), batch()
    options = {"topology": "v5e:2x4", "tactics": "x=zero3", "compiled_meshes": 1}
    found = reshard.auto(step, params, x, mesh="x=8", **options)
    rows = {(row["layers"], row["direction"]): row["runs"] for row in found.to_dict()["layers"]}
    assert rows[LAYERS, "forward"] == rows[LAYERS, "backward"] == {"all_gather": 2 * LAYERS}
    assert "\ncollectives of a layer, by the model\n" in str(found)


@pytest.mark.slow
def test_parts_of_an_axis_split_what_the_axis_does_not_divide():
    """Two examples of four heads on one axis of eight devices."""

    def attend(x, weights):
        queries, keys, values = (jnp.einsum("bsd,dhk->bhsk", x, each) for each in weights)
        scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", queries, keys) / 8, axis=-1)
        return jnp.einsum("bhst,bhtk->bhsk", scores, values)

    x = jax.random.normal(jax.random.key(0), (2, 1024, 256))
    weights = tuple(jax.random.normal(jax.random.key(at), (256, 4, 128)) * 0.1 for at in range(3))
    found = reshard.auto(attend, x, weights, mesh="x=8", topology="v5e:2x4")
    assert found.to_dict()["candidates"][0]["axes"] == "parts" and "x=8, in parts, is taken" in str(found)
    assert all(":(" not in str(each.spec) for each in jax.tree.leaves((found.in_shardings, found.out_shardings)))
    assert agrees(found(x, weights), jax.jit(attend)(x, weights))


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_budget_is_a_number_of_seconds(seconds):
    with pytest.raises(ValueError, match="budget_s = .* is no number of seconds"):
        reshard.auto(step, parameters(), batch(), mesh="x=8", budget_s=seconds)


@pytest.mark.slow
def test_a_target_has_the_network_and_as_many_devices():
    params, x = parameters(), batch()
    found = reshard.auto(step, params, x, mesh="x=8", compile_for="cpu:8", compiled_meshes=1)
    assert "modelled on cpu:8" in str(found) and agrees(found(params, x), jax.jit(step)(params, x))
    with pytest.raises(ValueError, match="cpu:4 has 4 devices, and the program is for 8"):
        reshard.auto(step, params, x, mesh="x=8", compile_for="cpu:4")


@pytest.mark.slow
def test_the_shape_of_the_mesh_is_chosen_and_arguments_may_be_donated():
    params, x = parameters(), batch()
    wanted = jax.jit(step)(params, x)
    found = reshard.auto(step, params, x, topology="uniform", donate_argnums=0, compiled_meshes=1)
    assert found.mesh.size == 8 and len(found.choice.candidates) + len(found.choice.skipped) == 3  # 2x4 is 4x2
    assert agrees(found(params, x), wanted)


@pytest.mark.slow
def test_tactics_say_what_axes_are_for():
    params, x = parameters(), batch()
    found = reshard.auto(step, params, x, mesh="a=4,b=2", topology="v5e:2x4", tactics="a=megatron,b=zero3")
    works = {use.axis: set(use.work) for use in found.choice.best.assigned.uses}
    assert works["a"] <= {"tensor"} and works["b"] <= {"data"}
    assert all("b" in str(each.spec) for each in jax.tree.leaves(found.in_shardings[0]))
    assert agrees(found(params, x), jax.jit(step)(params, x))
    with pytest.raises(ValueError, match="tactics need a mesh"):
        reshard.auto(step, params, x, tactics="a=zero3")
    with pytest.raises(ValueError, match="'zero' is none of"):
        reshard.auto(step, params, x, mesh="a=8", tactics="a=zero")
    with pytest.raises(DiagnosedError, match="the mesh has no axis b; its axes are a"):
        reshard.auto(step, params, x, mesh="a=8", tactics="b=zero3")


def adam(state, x):
    """Returns the new parameters and moments of a step of Adam whose forward pass works in bfloat16."""

    def loss(params):
        hidden = jnp.tanh(x @ params["up"].astype(jnp.bfloat16))
        return jnp.mean((hidden @ params["down"].astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

    grads = jax.grad(loss)(state["params"])
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], grads)
    params = jax.tree.map(
        lambda p, m, v: p - 1e-2 * (m / (jnp.sqrt(v) + 1e-3) + 0.1 * p), state["params"], first, second
    )
    return {"params": params, "first": first, "second": second}


@pytest.mark.slow
@pytest.mark.parametrize("donated", [(), 0])
def test_zero1_keeps_parameters_whole_and_moments_in_shards(donated):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"up": jax.random.normal(keys[0], (64, 256)) / 8, "down": jax.random.normal(keys[1], (256, 64)) / 16}
    moments = jax.tree.map(lambda each: jnp.full(each.shape, 0.1), params)
    state = {"params": params, "first": moments, "second": moments}
    x = jax.random.normal(keys[2], (128, 64)).astype(jnp.bfloat16)
    wanted = jax.jit(adam)(state, x)
    found = reshard.auto(adam, state, x, mesh="x=8", topology="v5e:2x4", tactics="x=zero1", donate_argnums=donated)
    for shardings in (found.in_shardings[0], found.out_shardings):
        assert all(each.is_fully_replicated for each in jax.tree.leaves(shardings["params"]))
        assert all("x" in str(each.spec) for name in ("first", "second") for each in jax.tree.leaves(shardings[name]))
    assert "(ZeRO-1)" in str(found)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool(np.allclose(a, b, rtol=3e-2, atol=1e-3)), found(state, x), wanted)
    )


def test_pinned_shardings_are_kept():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(8), ("rows",))
    found = reshard.auto(
        jnp.tanh, jax.ShapeDtypeStruct((64, 64), jnp.float32), mesh=mesh, pinned={0: PartitionSpec(None, "rows")}
    )
    assert found.in_shardings[0].spec == PartitionSpec(None, "rows") == found.out_shardings.spec
    with pytest.raises(ValueError, match="pinned needs a mesh"):
        reshard.auto(jnp.tanh, jnp.ones((64, 64)), pinned={0: PartitionSpec("rows")})


def test_what_cannot_be_is_an_error():
    said = (
        r"no layout fits into 1,000 B: .* at least [\d,]{6,} B are alive at once; allow \d+KiB or more, or use more dev"
    )
    with pytest.raises(DiagnosedError, match=said):
        reshard.auto(step, parameters(), batch(), mesh="x=8", memory_limit=1000)
    with pytest.raises(ValueError, match="has 4096 devices, and there are"):
        reshard.auto(jnp.tanh, jnp.ones((64, 64)), mesh="x=4096")
    for option in ("in_shardings", "out_shardings"):
        with pytest.raises(ValueError, match=f"auto takes no {option}"):
            reshard.auto(jnp.tanh, jnp.ones((64, 64)), mesh="x=8", **{option: None})
    with pytest.raises(TypeError, match="step: got an unexpected keyword argument 'donated'"):
        reshard.auto(step, parameters(), batch(), mesh="x=8", donated=0)
    with pytest.raises(ValueError, match="'policy' is no option of auto"):
        reshard.jit(jnp.tanh, in_shardings=reshard.AUTO, reshard_options={"policy": "always"})


def test_a_sharding_on_another_mesh_is_an_error_in_the_words_of_python(rows_and_columns):
    x, _ = rows_and_columns
    mesh = Mesh(np.array(jax.devices()[:8]), ("y",))

    def function(x):
        return jax.lax.with_sharding_constraint(x + 1, jax.sharding.NamedSharding(mesh, PartitionSpec("y")))

    with pytest.raises(DiagnosedError, match=r'<\["y"=8\]>, .* chosen for <\["x"=8\]>; auto keeps') as error:
        reshard.auto(function, x, mesh="x=8")
    assert "take this one out of it" in str(error.value) and "--" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("tactics", ["zero3", ["x=zero3"]])
def test_tactics_may_be_one_name_or_a_sequence(tactics):
    params, x = parameters(), batch()
    found = reshard.auto(step, params, x, mesh="x=8", topology="v5e:2x4", tactics=tactics, compiled_meshes=1)
    assert set(found.choice.best.assigned.uses[0].work) <= {"data"}
    assert all("x" in str(each.spec) for each in jax.tree.leaves(found.in_shardings[0]))


@pytest.mark.slow
def test_jit_with_auto_makes_a_program_for_each_shape():
    function = reshard.jit(step, in_shardings=reshard.AUTO, reshard_options={"mesh": "x=8", "compiled_meshes": 1})
    params, x = parameters(), batch()
    wanted = jax.jit(step)(params, x)
    assert agrees(function(params, x), wanted) and agrees(function(params, x), wanted)
    assert function.__name__ == "step" and function.program(params, x) is function.program(params, x)
    assert agrees(function(params, x[:16]), jax.jit(step)(params, x[:16]))
    assert function.program(params, x[:16]) is not function.program(params, x)


@pytest.fixture
def rows_and_columns():
    return jnp.arange(256.0).reshape(16, 16), jnp.ones((16, 16))


def test_tied_arguments_may_be_pinned_to_different_layouts(rows_and_columns):
    x, y = rows_and_columns
    pinned = {0: PartitionSpec("x"), 1: PartitionSpec(None, "x")}
    found = reshard.auto(lambda x, y: x + y, x, y, mesh="x=8", pinned=pinned, compiled_meshes=1)
    assert [each.spec for each in found.in_shardings] == [PartitionSpec("x", None), PartitionSpec(None, "x")]
    assert agrees(found(x, y), x + y)


def test_a_donated_argument_may_live_elsewhere_than_its_result(rows_and_columns):
    x, _ = rows_and_columns
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))

    def function(x):
        return jax.lax.with_sharding_constraint(x + 1, jax.sharding.NamedSharding(mesh, PartitionSpec(None, "x")))

    found = reshard.auto(function, x, mesh="x=8", pinned={0: PartitionSpec("x")}, donate_argnums=0, compiled_meshes=1)
    assert found.out_shardings.spec != found.in_shardings[0].spec
    assert agrees(found(jnp.array(x)), x + 1)


@pytest.mark.slow
def test_weak_types_and_random_keys_are_those_of_the_arguments(rows_and_columns):
    x, _ = rows_and_columns
    small = x.astype(jnp.bfloat16)
    found = reshard.auto(lambda x, factor: x @ x * factor, small, 2.0, mesh="x=8", compiled_meshes=1)
    assert found(small, 2.0).dtype == jnp.bfloat16
    key = jax.random.key(0)
    noisy = reshard.auto(
        lambda key, x: (key, x + jax.random.normal(key, x.shape)), key, x, mesh="x=8", compiled_meshes=1
    )
    assert agrees(noisy(key, x)[1], x + jax.random.normal(key, x.shape))


def test_arguments_of_auto_that_make_no_sense_are_named(rows_and_columns):
    x, _ = rows_and_columns
    for pinned, said in (
        ({3: PartitionSpec()}, "argument 3, and there are 1"),
        ({0: "x"}, "'x' where a PartitionSpec"),
    ):
        with pytest.raises(ValueError, match=said):
            reshard.auto(jnp.tanh, x, mesh="x=8", pinned=pinned)
    with pytest.raises(TypeError, match="mesh = 8 is no"):
        reshard.auto(jnp.tanh, x, mesh=8)


@pytest.mark.slow
def test_axes_in_another_order_than_the_mesh_has_them_are_kept(rows_and_columns):
    x, _ = rows_and_columns
    found = reshard.auto(jnp.tanh, x, mesh="x=2,y=4", pinned={0: PartitionSpec(("y", "x"))})
    assert found.in_shardings[0].spec == PartitionSpec(("y", "x"), None)


def scaled(x, scale, *, bias, times=1):
    """A function with an argument that is given by name alone, and one that may be static."""
    for _ in range(times):
        x = jnp.tanh(x @ scale + bias)
    return x


def test_arguments_by_name_are_laid_out_like_others(rows_and_columns):
    x, scale = rows_and_columns
    bias = jnp.arange(16.0)
    pinned = {"bias": PartitionSpec("x"), "x": PartitionSpec("x")}
    found = reshard.auto(scaled, x, bias=bias, scale=scale, mesh="x=8", pinned=pinned, compiled_meshes=1)
    assert len(found.in_shardings) == 2  # `scale` has a place
    assert found.in_shardings[0].spec == PartitionSpec("x", None)
    assert found.keyword_shardings["bias"].spec == PartitionSpec("x") and "\nbias " in str(found)
    placed = found.put(x, scale, bias=bias)
    assert placed[2].sharding.spec == PartitionSpec("x")
    wanted = scaled(x, scale, bias=bias)
    assert agrees(found.compiled(*placed), wanted) and agrees(found(bias=bias, scale=scale, x=x), wanted)
    with pytest.raises(ValueError, match="is for the arguments x, scale, bias, and is given x, scale, bias, times;"):
        found(x, scale, bias=bias, times=2)
    with pytest.raises(TypeError, match="scaled: missing a required .*argument: 'bias'"):
        found(x, scale)


def test_another_value_of_a_static_argument_is_another_program(rows_and_columns):
    x, scale = rows_and_columns
    bias = jnp.arange(16.0)
    options = {"mesh": "x=8", "compiled_meshes": 1}
    function = reshard.jit(scaled, in_shardings=reshard.AUTO, static_argnames="times", reshard_options=options)
    for times in (1, 2):
        assert agrees(function(x, scale, bias=bias, times=times), scaled(x, scale, bias=bias, times=times))
    one = function.program(x, scale, bias=bias, times=1)
    assert one is function.program(x, scale=scale, times=1, bias=bias)
    assert one is not function.program(x, scale, bias=bias, times=2)
    assert [*one.keyword_shardings] == ["bias"]
    assert agrees(one(x, scale, bias=bias, times=1), scaled(x, scale, bias=bias))
    with pytest.raises(ValueError, match="bias, times = 1, and is given x, scale, bias, times = 2; make one"):
        one(x, scale, bias=bias, times=2)
    with pytest.raises(ValueError, match="the static argument times is a list, which has no hash"):
        function(x, scale, bias=bias, times=[1])
    with pytest.raises(ValueError, match="static_argnames has 'time', and the function has x, scale, bias, times"):
        reshard.jit(scaled, in_shardings=reshard.AUTO, static_argnames="time")


def test_donated_and_static_arguments_by_number(rows_and_columns):
    """Numbers are those of the function's arguments, static ones among them."""
    x, y = (jnp.array(each) for each in rows_and_columns)
    wanted = x * 3 + y
    found = reshard.auto(
        lambda times, x, y: times * x + y, 3, x, y, mesh="x=8", static_argnums=0, donate_argnums=1, compiled_meshes=1
    )
    placed = found.put(3, x, y)
    assert agrees(found.compiled(*placed), wanted)
    assert placed[0].is_deleted() and not placed[1].is_deleted()


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"weights": PartitionSpec()}, "names 'weights', and the parameters of the function are params, x; write one"),
        ({"param": PartitionSpec()}, "are params, x; do you mean params?"),
        ({2: PartitionSpec()}, "pinned names argument 2, and there are 2; they count from 0"),
        ({1: PartitionSpec(), "x": PartitionSpec()}, "one argument twice, as 1 and 'x'; take one out"),
        ({None: PartitionSpec()}, "None where the number of an argument or its name has to be"),
        (
            {"params": {"in": PartitionSpec()}},
            "pinned['params'] has ['in'], and the argument has params['down'], params['up']; write one PartitionSpec",
        ),
        (
            {0: {"up": PartitionSpec()}},
            "pinned[0] has ['up'], and nothing for params['down']; write one PartitionSpec for the whole argument, or "
            "a tree like it, or None for what is free",
        ),
        ({0: {"up": "x", "down": None}}, "pinned[0]['up'] has 'x' where a PartitionSpec has to be"),
        (
            {"x": PartitionSpec(None, None, None, "x")},
            "of x, float32[32,16,64], has 4 entries for 3 dimensions; write at most 3",
        ),
        ({"x": PartitionSpec("q")}, "of x, float32[32,16,64], names the axis q, and the mesh has x, y; write one"),
        ({"x": PartitionSpec("x", "x")}, "names the axis x twice, and an axis splits one dimension; take one out"),
        (
            {0: {"up": PartitionSpec(("x", "y")), "down": None}},
            "of params['up'], float32[2,64,128], splits dimension 0 of size 2 over x=2, y=4, which does not divide it; "
            "write None there",
        ),
    ],
)
def test_what_pinned_cannot_be_is_said(pinned, said):
    with pytest.raises(ValueError) as error:
        reshard.auto(step, parameters(), batch(), mesh="x=2,y=4", pinned=pinned)
    assert said in str(error.value) and str(error.value).startswith("pinned")


@pytest.mark.slow
def test_part_of_an_argument_may_be_pinned():
    params, x = parameters(), batch()
    pinned = {"params": {"up": PartitionSpec(None, None, "x"), "down": None}}
    found = reshard.auto(step, params, x, mesh="x=8", topology="v5e:2x4", pinned=pinned, compiled_meshes=1)
    assert found.in_shardings[0]["up"].spec == PartitionSpec(None, None, "x")
    assert agrees(found(params, x), jax.jit(step)(params, x))


def test_a_static_argument_and_one_that_is_left_out_cannot_be_pinned(rows_and_columns):
    x, scale = rows_and_columns
    given = {"bias": jnp.arange(16.0), "mesh": "x=8", "static_argnames": "times"}
    for times, said in ({"times": 2}, "'times', a static argument"), ({}, "leaves it at its default"):
        with pytest.raises(ValueError, match=said):
            reshard.auto(scaled, x, scale, **given, **times, pinned={"times": PartitionSpec()})


def test_in_another_trace_a_function_with_auto_works_like_one_of_jit():
    def scaled(x, times):
        return (jnp.tanh(x) * times).sum()

    how = {"static_argnums": 1, "reshard_options": {"mesh": "x=8", "compiled_meshes": 1}}
    function, stock = reshard.jit(scaled, in_shardings=reshard.AUTO, **how), jax.jit(scaled, static_argnums=1)
    x = jnp.arange(64.0).reshape(8, 8) / 64
    np.testing.assert_allclose(jax.grad(function)(x, 2), jax.grad(stock)(x, 2), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda row: function(row, 3))(x), jax.vmap(lambda row: stock(row, 3))(x))
    np.testing.assert_allclose(jax.jit(lambda x: function(x, 2) + 1)(x), stock(x, 2) + 1, rtol=1e-6)
    assert jax.eval_shape(lambda x: function(x, 2), x).shape == ()
    np.testing.assert_allclose(function(x, 2), stock(x, 2), rtol=1e-6)


def test_a_traced_value_that_is_no_argument_of_auto_is_told():
    x = jnp.ones((8, 8))
    with pytest.raises(ValueError, match="takes a traced value that is no argument; make it one, or call auto outside"):
        jax.grad(lambda w: reshard.auto(lambda x: jnp.tanh(x * w).sum(), x, mesh="x=8").compiled(x))(2.0)


def test_in_another_trace_a_function_with_auto_may_close_over_what_is_traced():
    """Then no argument tells that there is a trace."""
    x = jnp.arange(64.0).reshape(8, 8) / 64

    def loss(jit):
        return lambda w: jit(lambda x: jnp.tanh(x * w).sum())(x)

    auto = loss(lambda f: reshard.jit(f, in_shardings=reshard.AUTO, reshard_options={"mesh": "x=8"}))
    np.testing.assert_allclose(jax.jit(auto)(2.0), loss(jax.jit)(2.0), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(auto)(2.0), jax.grad(loss(jax.jit))(2.0), rtol=1e-6)


def test_a_function_with_auto_that_wraps_another_one_is_differentiated_itself():
    """`functools.wraps` copies the attributes of the function that it wraps, also those that are its state."""
    inner = reshard.jit(lambda x: (x * 2).sum(), in_shardings=reshard.AUTO, reshard_options={"mesh": "x=8"})
    x = jnp.arange(8.0)
    jax.grad(inner)(x)

    @functools.wraps(inner)
    def outer(x):
        return inner(x) + (x**2).sum()

    auto = reshard.jit(outer, in_shardings=reshard.AUTO, reshard_options={"mesh": "x=8"})
    np.testing.assert_array_equal(jax.grad(auto)(x), 2 + 2 * x)


def test_methods_with_auto_take_their_object():
    class Model:
        times = 3

        @functools.partial(reshard.jit, in_shardings=reshard.AUTO, static_argnums=0, reshard_options={"mesh": "x=8"})
        def scaled(self, x):
            return x * self.times

    np.testing.assert_array_equal(Model().scaled(jnp.arange(8.0)), 3 * np.arange(8.0))


def test_without_jit_a_function_with_auto_may_look_at_its_values():
    auto = reshard.jit(lambda x: -x if x.sum() > 0 else x, in_shardings=reshard.AUTO)
    with jax.disable_jit():
        np.testing.assert_array_equal(auto(jnp.ones(8)), -np.ones(8))


@pytest.mark.parametrize(
    ("context", "function"),
    [
        (lambda: jax.threefry_partitionable(False), lambda x: x * jax.random.bits(jax.random.key(0), (8, 8))),
        (lambda: jax.enable_x64(True), lambda x: x.astype(float).sum(0)),
    ],
    ids=["random numbers", "wide types"],
)
def test_another_context_of_jax_is_another_program(context, function):
    """As it is for `jax.jit`."""
    options = {"mesh": "x=8", "compiled_meshes": 1}
    auto = reshard.jit(function, in_shardings=reshard.AUTO, reshard_options=options)
    x = np.ones((8, 8), np.int32)
    before, program = auto(x), auto.program(x)
    with context():
        found, wanted = auto(x), jax.jit(function)(x)
        assert auto.program(x) is not program
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    assert auto.program(x) is program
    np.testing.assert_array_equal(auto(x), before)


def test_a_program_runs_if_jax_lowers_for_gspmd():
    mesh, x, w = (
        Mesh(np.array(jax.devices()[:8]), ("axis_0",)),
        jnp.arange(256.0).reshape(16, 16) / 256,
        jnp.ones((16, 16)),
    )

    def free(x, w):
        return jnp.tanh(x @ w)

    def constrained(x, w):
        return jax.lax.with_sharding_constraint(free(x, w), jax.NamedSharding(mesh, PartitionSpec(None, "axis_0")))

    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        for function in (free, constrained):
            program = reshard.auto(function, x, w, mesh={"axis_0": 8})
            assert agrees(program(x, w), free(x, w))
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    assert program.out_shardings.spec == PartitionSpec(None, "axis_0")
