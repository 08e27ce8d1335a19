# SPDX-License-Identifier: Apache-2.0
"""`jax.shard_map` over some axes, written per device: the values are those of the same body over all axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.partitioning import local_modules
from reshard.synthesis.network.topology import Topology

NAMES = ("data", "model")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), NAMES, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


def _constrained(value, *spec):
    """Splits a value along the axes that are free, if some are."""
    is_free = "model" not in jax.sharding.get_abstract_mesh().manual_axes
    return lax.with_sharding_constraint(value, P(*spec)) if is_free else value


def _gradient(x, w):
    """Data parallel by hand, tensor parallel by propagation: the sum of the gradients is explicit."""

    def loss(w):
        hidden = jnp.maximum(x @ _constrained(w, None, "model"), 0)
        return (_constrained(hidden, None, "model") @ _constrained(w.T, "model", None)).sum()

    return lax.psum(jax.grad(loss)(w), "data")


def _ring(x, w):
    """Blocks of rows go around, one product per turn, as in ring attention."""
    around = [(i, (i + 1) % 4) for i in range(4)]

    def turn(held, _):
        block, total = held
        product = _constrained(block @ w, None, "model")
        return (lax.ppermute(block, "data", around), total + product), None

    return lax.scan(turn, (x, jnp.zeros((x.shape[0], w.shape[1]), x.dtype)), None, length=4)[0][1]


def _places(x, w):
    """jax writes `axis_index` as a computation over all axes in the body."""
    mine = lax.dynamic_slice(w, (4 * lax.axis_index("data"), 0), (4, w.shape[1]))
    return _constrained(x @ _constrained(mine.T, "model", None), None, None) + lax.axis_index("data").astype(x.dtype)


def _dispatch(x, w):
    """Rows to all devices and back, a product in between that is split along the free axis."""
    there = lax.all_to_all(x.reshape(4, 1, 16), "data", 0, 0)
    made = _constrained(there @ w, None, None, "model")
    return lax.all_to_all(made, "data", 0, 0).reshape(4, 16)


def _scattered(x, w):
    parts = lax.psum_scatter(_constrained(x.T @ x @ w, "model", None), "data", scatter_dimension=0, tiled=True)
    return lax.all_gather(parts, "data", axis=1, tiled=True)


def _apart(x, w):
    """Some devices alone run the branch, and its conversions."""
    return lax.cond(
        lax.axis_index("data") > 1,
        lambda: _constrained(_constrained(x @ w, "model", None) * 2, None, "model"),
        lambda: x @ w + 1,
    )


def _reduced(x, w):
    """A reduction along what the free axis splits: jax puts a constraint into its region."""
    return jnp.broadcast_to(_constrained(x @ w, None, "model").max(axis=1, keepdims=True), x.shape)


BODIES = (_gradient, _ring, _places, _dispatch, _scattered, _apart, _reduced)


def _layers(x, *weights):
    """The gradient of layers, each of which gathers its rows; the gathers of the first pass are needed late again."""

    def loss(weights):
        made = x
        for up, down in zip(weights[::2], weights[1::2]):
            hidden = _constrained(_constrained(made, None, None) @ up, None, "model")
            made = _constrained(jnp.tanh(hidden @ down), None, "model")
        return jnp.square(made).sum()

    return jax.tree.map(lambda each: lax.psum(each, "data"), jax.grad(loss)(weights))


def _program(mesh, body, names):
    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
    return jax.jit(jax.shard_map(body, mesh=mesh, axis_names=names, check_vma=False, **specs))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("network", ["", "a2mega:4x2"])
@pytest.mark.parametrize("body", BODIES)
def test_values_are_those_of_the_body_over_all_axes(mesh, body, network):
    args = [np.random.default_rng(seed).integers(-2, 3, (16, 16)).astype(np.float32) for seed in range(2)]
    specs = P("data"), P(None, "model")
    with jax.set_mesh(mesh):
        wanted = np.asarray(_program(mesh, body, set(NAMES))(*args))
        placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
        jax.clear_caches()
        lowered = _program(mesh, body, {"data"}).lower(*placed)
    module = lowered.compiler_ir("stablehlo")
    planning = {"objective": "time", "topology": Topology.parse(network)} if network else {}
    with module.context:
        written = local_modules.convert(module, **planning)
    module.operation.verify()
    assert not written.left
    assert [op.name for op in ops_in(module.operation)].count("sdy.manual_computation") == 1
    np.testing.assert_array_equal(np.asarray(lowered.compile()(*placed)), wanted)


def test_conversions_of_a_body_that_are_written_again_have_its_axes(mesh):
    rng = np.random.default_rng(0)
    args = [rng.integers(-2, 3, (64, 16)).astype(np.float32)]
    args += [rng.integers(-2, 3, shape).astype(np.float32) / 8 for _ in range(6) for shape in ((16, 32), (32, 16))]
    specs = [P("data"), *[P(None, "model"), P("model", None)] * 6]

    def program(names):
        over = {"in_specs": (P("data"), *[P()] * 12), "out_specs": P(), "axis_names": names, "check_vma": False}
        return jax.jit(jax.shard_map(_layers, mesh=mesh, **over))

    with jax.set_mesh(mesh):
        wanted = program(set(NAMES))(*args)
        placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
        jax.clear_caches()
        lowered = program({"data"}).lower(*placed)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        written = local_modules.convert(module, release_bytes=1e12)
    module.operation.verify()
    assert any(each.is_repeated for each in written.conversions)
    for mine, theirs in zip(lowered.compile()(*placed), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_a_branch_in_an_inner_computation_may_be_decided_by_an_axis_of_the_outer_one():
    """A permute in the branch would wait for the devices that do not take it."""
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "free"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])

    def split(value, *spec):
        return lax.with_sharding_constraint(value, P(*spec))

    def inner(place, a):
        b = split(a, "free", None)
        turned = lambda: split(split(split(b * 2, None, "free") + 1, "free", None)[::-1], "free", None)  # noqa: E731
        return lax.cond(place > 0, turned, lambda: b + 1)

    def outer(a):
        place = lax.axis_index("x")
        mapped = jax.shard_map(inner, axis_names={"y"}, in_specs=(P(), P("y")), out_specs=P("y"), check_vma=False)
        return mapped(place, a)

    program = jax.shard_map(outer, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with jax.set_mesh(mesh):
        lowered = jax.jit(program).lower(np.zeros((32, 8), np.float32))
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        local_modules.convert(module)
        branches = [op for op in ops_in(module.operation) if op.name == "stablehlo.case"]
        names = {each.name for branch in branches for each in ops_in(branch)}
    assert "stablehlo.all_to_all" in names or "stablehlo.all_gather" in names
    assert "stablehlo.collective_permute" not in names
