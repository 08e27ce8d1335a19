# SPDX-License-Identifier: Apache-2.0
"""Ops with windows whose dimensions stay split give the values of one device, and receive borders alone."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.dialect_utils.partitioning import local_modules

SIZES = {"x": 2, "y": 4}
BATCH, HEIGHT, WIDTH, FEATURES = 4, 16, 32, 8


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh(
        tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8]
    )


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def _convolved(kernel=(3, 3), groups=1, strides=(1, 1), padding="SAME", dilation=(1, 1), base=(1, 1)):
    """Returns a convolution of NHWC images and its kernel."""
    weights = _numbers(7, *kernel, FEATURES // groups, FEATURES)

    def program(x, weights=weights):
        return lax.conv_general_dilated(
            x, weights, strides, padding, rhs_dilation=dilation, lhs_dilation=base, feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    return program, weights


CONVOLUTIONS = {
    "3x3": {},
    "5x1": {"kernel": (5, 1)},
    "even window": {"kernel": (2, 4)},
    "depthwise": {"groups": FEATURES},
    "groups": {"groups": 4},
    "stride 2": {"strides": (2, 2)},
    "patches": {"kernel": (4, 4), "strides": (4, 4), "padding": "VALID"},
    "dilated": {"dilation": (2, 3)},
    "transposed": {"base": (2, 2), "padding": [(2, 1), (1, 2)]},
    "causal": {"padding": [(2, 0), (0, 2)]},
    "cropped": {"padding": [(-1, 3), (3, -1)]},
}
SPECS = (P(None, "y"), P("x", "y"), P(None, "x", "y"), P(None, None, ("x", "y")), P("y", "x"), P(None, "y", None, "x"))


def _compared(mesh, program, args, specs, out=None):
    """Checks a program written per device against one device; returns the kinds of collectives in it."""
    jax.clear_caches()
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    lowered = jax.jit(program, out_shardings=None if out is None else NamedSharding(mesh, out)).lower(*placed)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        local_modules.convert(module)  # plans are made for the fewest bytes
    for mine, theirs in zip(jax.tree.leaves(lowered.compile()(*placed)), jax.tree.leaves(program(*args)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return set(re.findall(r"stablehlo\.(all_\w+|reduce_scatter|collective_\w+)", str(module)))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_along_split_dimensions_receives_borders_alone(mesh, kind, spec):
    program, _ = _convolved(**CONVOLUTIONS[kind])
    images = _numbers(0, BATCH, HEIGHT, WIDTH, FEATURES)
    used = _compared(mesh, program, [images], [spec], out=spec)
    if "x" not in str(spec[-1]) or kind == "depthwise":
        assert "all_gather" not in used and "all_to_all" not in used


@pytest.mark.mostly_slow
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", [each for each in CONVOLUTIONS if each != "cropped"])
def test_gradients_of_a_convolution_along_split_dimensions(mesh, kind, spec):
    """XLA computes some of these wrongly; the gradient of the kernel is a sum over devices."""
    convolve, weights = _convolved(**CONVOLUTIONS[kind])

    def program(x, weights):
        return jax.grad(lambda x, w: jnp.sum(convolve(x, w) * lax.stop_gradient(convolve(x + 1, w))), (0, 1))(
            x, weights
        )

    images = np.sign(_numbers(0, BATCH, HEIGHT, WIDTH, FEATURES))
    _compared(mesh, program, [images, np.sign(weights)], [spec, P()])


@pytest.mark.mostly_slow
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("window, strides, padding", [
    ((3, 3), (1, 1), "SAME"), ((2, 2), (2, 2), "VALID"), ((3, 5), (2, 1), "SAME"), ((4, 4), (4, 4), "VALID"),
])  # fmt: skip
@pytest.mark.mostly_slow
def test_pools_along_split_dimensions_and_their_gradients(mesh, window, strides, padding, spec):
    def pooled(x):
        sizes = dict(window_dimensions=(1, *window, 1), window_strides=(1, *strides, 1), padding=padding)
        return lax.reduce_window(x, -jnp.inf, lax.max, **sizes), lax.reduce_window(x, 0.0, lax.add, **sizes)

    def program(x):
        most, total = pooled(x)
        return most, total, jax.grad(lambda x: sum(jnp.sum(each * each) for each in pooled(x)))(x)

    images = _numbers(0, BATCH, HEIGHT, WIDTH, FEATURES)
    used = _compared(mesh, lambda x: pooled(x), [images], [spec])
    assert used <= {"collective_permute"}
    _compared(mesh, program, [images], [spec])


def test_windows_that_do_not_fit_the_tiles_are_whole(mesh):
    """A stride that does not divide a tile, a border wider than a tile."""
    images = _numbers(0, BATCH, 8, 24, FEATURES)
    for options in ({"strides": (3, 3)}, {"kernel": (8, 3)}, {"padding": "VALID"}):
        program, _ = _convolved(**options)
        _compared(mesh, program, [images], [P(None, "y")])


def test_three_devices_exchange_borders():
    mesh = jax.make_mesh((3, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])
    program, weights = _convolved()
    images = _numbers(0, 2, 12, 8, FEATURES)
    used = _compared(mesh, program, [images], [P(None, "x", "y")], out=P(None, "x", "y"))
    assert used == {"collective_permute"}
