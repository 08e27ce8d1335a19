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


def _program(mesh, body, names):
    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
    return jax.jit(jax.shard_map(body, mesh=mesh, axis_names=names, check_vma=False, **specs))


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
