# SPDX-License-Identifier: Apache-2.0
"""`emit="local"` gives the values of the unsharded program, and XLA's partitioner has nothing to do.

XLA cannot compile the output of `emit="sdy"`.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from examples.programs import PROGRAMS
from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.xla.child import XlaChild

COLLECTIVE = re.compile(r"stablehlo\.(all_gather|all_to_all|all_reduce|reduce_scatter|collective_permute)\b")
RNG = np.random.default_rng(0)


class Placed:
    """An argument and the axes of mesh x=4, y=2 that split its dimensions."""

    def __init__(self, array, *spec):
        self.array = np.asarray(array)
        self.spec = spec


def floats(*shape, spec=(), scale=1.0):
    return Placed(scale * RNG.standard_normal(shape, np.float32), *spec)


def rows(spec=("x", "y")):
    return floats(16, 32, spec=spec)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


CONSTRAINTS = {"mesh": None}  # the mesh while a program is traced for several devices, None for one device


def constrained(value, *spec):
    mesh = CONSTRAINTS["mesh"]
    return value if mesh is None else lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))


def lowered_on(mesh, function, placed):
    args = [jax.device_put(each.array, NamedSharding(mesh, P(*each.spec))) for each in placed]
    jax.clear_caches()
    CONSTRAINTS["mesh"] = mesh
    try:
        return jax.jit(function).lower(*args), args
    finally:
        CONSTRAINTS["mesh"] = None


def local(mesh, function, placed):
    lowered, args = lowered_on(mesh, function, placed)
    return reshard.optimize(lowered, emit="local"), args


def check(mesh, function, *placed):
    """Asserts that the local program is equal to the unsharded one within rounding; returns the result."""
    result, args = local(mesh, function, placed)
    got = result.compile()(*args)
    jax.clear_caches()
    wanted = jax.jit(function)(*(each.array for each in placed))
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-4)
    return result


# Programs


def test_matmul_with_mismatches(mesh):
    def function(a, b):
        return constrained(constrained(a, "y", "x") @ b, None, "x")

    check(mesh, function, rows(), floats(32, 8, spec=("y", None)))


def test_transposing_reshard_is_one_all_to_all(mesh):
    cube = Placed(np.arange(16**3, dtype=np.float32).reshape(16, 16, 16), "y", None, "x")
    result = check(mesh, lambda a: constrained(a, None, ("x", "y"), None) + 1, cube)
    assert COLLECTIVE.findall(result.module) == ["all_to_all"]


def mlp_loss(x, w, u):
    return (constrained(jax.nn.relu(x @ w), "x", "y") @ u).var()


MLP = (
    floats(16, 32, spec=("x",)),
    floats(32, 64, spec=(None, "y"), scale=0.2),
    floats(64, 32, spec=("y", None), scale=0.2),
)


def test_mlp_step_with_gradients(mesh):
    def step(x, w, u):
        loss, slopes = jax.value_and_grad(mlp_loss, argnums=(1, 2))(x, w, u)
        return loss, w - slopes[0], u - slopes[1]

    check(mesh, step, *MLP)


def scanned(a, weights):
    return lax.scan(lambda c, w: (constrained(jnp.tanh(c @ w), "y", "x"), constrained(c, "x", "y")), a, weights)


WEIGHTS = floats(5, 32, 32, spec=(None, "y", "x"), scale=0.2)


def test_scan(mesh):
    check(mesh, scanned, rows(("x", None)), WEIGHTS)


def test_gradients_of_a_scan(mesh):
    check(mesh, jax.grad(lambda a, w: scanned(a, w)[0].sum() ** 2, argnums=(0, 1)), rows(("x", None)), WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda entry: entry.name)
def test_example_program(entry):
    jax.clear_caches()
    wanted = run_once(entry, lambda lowered: lowered.compile())
    got = run_once(entry, lambda lowered: reshard.optimize(lowered, emit="local").compile())
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-3, atol=1e-4)


def run_once(entry, compiled):
    function, args = entry.build(entry.mesh(), size="small")
    return compiled(function.lower(*args))(*args)


@pytest.mark.parametrize("program", ["matmul", "mlp"])
def test_partitioner_adds_no_collective(mesh, program):
    functions = {
        "matmul": (lambda a, b: constrained(a @ b, None, "x"), (rows(), floats(32, 8, spec=("y", None)))),
        "mlp": (jax.grad(mlp_loss, argnums=(1, 2)), MLP),
    }
    result, _ = local(mesh, *functions[program])
    with XlaChild(num_devices=8) as child:
        compiled = child.compile(result.module, 8, keeps_hlo=True)
    assert compiled.is_ok, compiled.message
    ours = sorted(COLLECTIVE.findall(result.module))
    assert ours and sorted(each.kind for each in collectives_in(compiled.hlo_text).collectives) == ours


def test_arguments_stay_donated_and_placed(mesh):
    a, b = (jax.device_put(each.array, NamedSharding(mesh, P(*each.spec))) for each in (rows(), rows()))
    donating = jax.jit(lambda a, b: (a + 1, b.sum()), donate_argnums=0).lower(a, b)
    compiled = reshard.optimize(donating, emit="local").compile()
    first, _ = compiled(a, b)
    assert a.is_deleted() and not b.is_deleted()
    assert first.sharding.is_equivalent_to(NamedSharding(mesh, P("x", "y")), 2)


def test_a_module_without_split_values_is_left(mesh):
    lowered = jax.jit(lambda a: a + 1).lower(np.ones((4, 4), np.float32))
    result = reshard.optimize(lowered, emit="local")
    assert not result.is_rewritten and result.lowered is lowered


# Ops, each in layouts in which the unchanged op on tiles would be wrong, or needs extra work

PICKS = Placed(np.array([3, 1, 15, 0, 7, 7, 2, 9], np.int32), "x")
STACK = floats(8, 16, 4, spec=("x", "y"))
IMAGES, KERNELS = floats(8, 12, 8, 8, spec=("x", "y")), floats(8, 12, 3, 3, spec=(None, "y"))
IN_ORDER = Placed(np.arange(512, dtype=np.int32).reshape(16, 32), "x", "y")
COMPLEX = Placed((MLP[0].array + 1j * MLP[0].array[::-1]).astype(np.complex64), "x", "y")


def conv(x, k, **options):
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", **options)


OPS = {
    "elementwise": (lambda a: jnp.where(a > 0, jnp.tanh(a), constrained(a, "y", "x")), rows()),
    "sums": (lambda a: (a.sum(0), a.sum(1), a.sum(), a.mean(0), a.var(1)), rows()),
    "extrema": (lambda a: (a.max(0), a.min(1), a.max()), rows()),
    "products": (lambda a: (1 + a / 100).prod(1), rows()),
    "truth_values": (lambda a: ((a > 2).any(0), (a > -2).all(1)), rows()),
    "integer_sums": (lambda a: (a.sum(0), a.max(1)), IN_ORDER),
    "integer_or": (lambda a: lax.reduce(a, np.int32(0), lax.bitwise_or, (0,)), IN_ORDER),
    "argmax": (lambda a: (a.argmax(1), a.argmin(0)), rows()),
    "reduce_from_a_number": (lambda a: lax.reduce(a, np.float32(3), lax.add, (1,)), rows()),
    "reduce_from_a_value": (lambda a: lax.reduce(a, a[0, 0], lax.max, (0, 1)), rows()),
    "reduce_by_an_odd_rule": (lambda a: lax.reduce(a, np.float32(0), lambda x, y: x + y + 1.0, (0,)), rows()),
    "complex_numbers": (lambda a: (a.sum(1), jnp.conj(a) @ a.T, a + 1j), COMPLEX),
    "complex_constants": (lambda a: a + jnp.asarray(COMPLEX.array * 2) + 1j, COMPLEX),
    "dot": (lambda a, b: a @ b, rows(), floats(32, 8, spec=("y", "x"))),
    "dot_contracted_otherwise": (lambda a, b: constrained(a @ b, "y", "x"), rows(("x", None)),
                                 floats(32, 8, spec=("x",))),
    "dot_scattered": (lambda a, b: constrained(jnp.einsum("ij,ij->i", a, b), ("y", "x")), rows(("y", "x")),
                      rows(("y", "x"))),
    "dot_of_batches": (lambda a, b: a @ b, STACK, floats(8, 4, 16, spec=("x", None, "y"))),
    "dot_on_one_axis_twice": (lambda u, v: jnp.outer(u, v), floats(16, spec=("x",)), floats(32, spec=("x",))),
    "iota": (lambda a: a + jnp.arange(32) + jnp.arange(16)[:, None] * 2 + jnp.tril(a), rows()),
    "constants": (lambda a: a + constrained(jnp.asarray(IN_ORDER.array) * 1.5, "y", "x"), rows()),
    "reshapes": (lambda a: (constrained(a.reshape(4, 4, 16, 2), "x", None, "y"), a.reshape(-1)), rows()),
    "reshape_across_tiles": (lambda a: constrained(a.reshape(2, 8, 32), "y", None, "x"), rows((("x", "y"), None))),
    "transpose": (lambda a: constrained(a.T, "x", "y"), rows()),
    "broadcast": (lambda v: constrained(jnp.broadcast_to(v, (16, 32)), "x", "y"), floats(32, spec=("y",))),
    "slices": (lambda a: (a[2:10], a[:, 3:7], a[::2, 1::3]), rows()),
    "pads": (lambda a: (jnp.pad(a, ((1, 3), (0, 0))), lax.pad(a, np.float32(7), ((0, 0, 0), (2, -3, 1)))), rows()),
    "concatenate": (lambda a, b: (jnp.concatenate([a, b]), jnp.stack([a, b]), jnp.roll(a, 3, 0)), rows(),
                    rows(("y", "x"))),
    "reverse": (lambda a: a[::-1, ::-1], rows()),
    "sort": (lambda a: (jnp.sort(a, 0), jnp.sort(a, 1), jnp.argsort(a, 1)), rows()),
    "top_k": (lambda a: lax.top_k(a, 3), rows()),
    "running_sums": (lambda a: (jnp.cumsum(a, 0), jnp.cumsum(a, 1)), rows()),
    "pooling": (jax.grad(lambda a: (lax.reduce_window(a, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID") ** 2).sum()),
                rows()),
    "dynamic_slice": (lambda a, i: (lax.dynamic_slice(a, (i, 0), (4, 32)), lax.dynamic_slice(a, (i, i), (16, 8))),
                      rows(),
                      Placed(np.int32(30))),
    "dynamic_update": (lambda a, u, i: lax.dynamic_update_slice(a, u, (i, 0)), rows(), floats(4, 32, spec=(None, "y")),
                       Placed(np.int32(-3))),
    "take": (lambda a, i: (a[i], a[:, i], jnp.take(a, i, axis=0)), rows(), PICKS),
    "gradient_of_take": (jax.grad(lambda a, i: (a[i] ** 2).sum()), rows(), PICKS),
    "take_in_batches": (jax.vmap(lambda a, i: a[i]), STACK, Placed(RNG.integers(0, 16, (8, 3)).astype(np.int32), "x")),
    "scatter": (lambda a, i, u: (a.at[i].add(u), a.at[i].max(u)), rows(), PICKS, floats(8, 32, spec=("x", "y"))),
    "scatter_in_batches": (jax.vmap(lambda a, i: a.at[i].add(1.0)), STACK,
                           Placed(RNG.integers(0, 16, (8, 3)).astype(np.int32), "x")),
    "fft": (lambda a: (jnp.abs(jnp.fft.fft(a, axis=1)), jnp.abs(jnp.fft.rfft(a.real))), COMPLEX),
    "convolution": (conv, IMAGES, KERNELS),
    "convolution_of_split_images": (conv, floats(8, 12, 8, 8, spec=(None, None, "x", "y")), KERNELS),
    "convolution_in_groups": (lambda x, k: conv(x, k, feature_group_count=12), IMAGES,
                              floats(24, 1, 3, 3, spec=("y",))),
    "gradients_of_a_convolution": (jax.grad(lambda x, k: (conv(x, k) ** 2).sum(), argnums=(0, 1)), IMAGES, KERNELS),
    "random_numbers": (lambda a: a + jax.random.normal(jax.random.key(3, impl="rbg"), (16, 32))
                       + jax.random.normal(jax.random.key(3), (16, 32)), rows()),
    "while": (lambda a: lax.while_loop(lambda c: c[1].sum() < 100,
                                       lambda c: (c[0] + 1, c[1] + constrained(c[1], "y", "x") ** 2),
                                       (0, a)), rows()),
    "cond": (lambda a, i: lax.cond(i > 0, lambda a: constrained(a * 2, "y", "x"), lambda a: a - 1, a), rows(),
             Placed(np.int32(1))),
    "switch": (lambda a, i: lax.switch(i, [jnp.sin, lambda a: constrained(a.T, "x", "y").T, jnp.cos], a), rows(),
               Placed(np.int32(1))),
    "loop_invariants": (lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + a @ b,
                                                   constrained(jnp.zeros((16, 8)), "y", None)),
                        rows(), floats(32, 8, spec=("y", "x"))),
    "calls": (lambda a: jax.jit(lambda x: constrained(x * 2, "y"))(a) + jax.jit(jnp.sin)(constrained(a, None, "x")),
              rows()),
    "chlo": (lambda a: (jnp.sinh(a), jnp.arcsinh(a), lax.erf_inv(a / 9), jax.nn.gelu(a, approximate=False)), rows()),
    "bits": (lambda a: (lax.bitcast_convert_type(a, jnp.int8), lax.bitcast_convert_type(a, jnp.int32)), rows()),
    "barrier": (lambda a: lax.optimization_barrier((a, constrained(a, "y", "x")))[1], rows()),
    "dimensions_that_do_not_divide": (lambda a: constrained(a[:15] * 2, "x", None)[:12], rows()),
    "no_elements": (lambda a: constrained(a + 1, None, "y"), Placed(np.zeros((0, 32), np.float32), None, "x")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_op(mesh, name):
    function, *placed = OPS[name]
    check(mesh, function, *placed)


def test_shard_map_over_all_axes(mesh):
    def function(a):
        inner = jax.shard_map(lambda t: lax.psum(t, "x"), mesh=mesh, in_specs=P("x", "y"), out_specs=P(None, "y"))
        return inner(constrained(a * 2, "y", "x")) + 1

    a = rows()
    result, args = local(mesh, function, (a,))
    np.testing.assert_allclose(
        np.asarray(result.compile()(*args)), 2 * a.array.reshape(4, 4, 32).sum(0) + 1, rtol=1e-5, atol=1e-5
    )


REFUSED = {
    "callback": (lambda mesh: lambda a: jax.pure_callback(lambda x: x, a, a), "no tiles for an array on one device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(mesh, name):
    function, text = REFUSED[name]
    lowered, _ = lowered_on(mesh, function(mesh), (rows(),))
    with pytest.raises(DiagnosedError, match=text) as raised:
        reshard.optimize(lowered, emit="local")
    assert "--emit=manual" in str(raised.value)


# Shardy's collectives


def test_shardys_collectives_do_not_compile(mesh):
    cube = Placed(np.arange(16**3, dtype=np.float32).reshape(16, 16, 16), "y", None, "x")
    lowered, _ = lowered_on(mesh, lambda a: constrained(a, None, ("x", "y"), None) + 1, (cube,))
    result = reshard.optimize(lowered, emit="sdy")
    assert "sdy.all_to_all" in result.module
    with pytest.raises(ValueError, match='XLA does not read the collectives of emit="sdy"'):
        result.compile()


def test_unknown_emission(mesh):
    lowered = jax.jit(lambda a: a + 1).lower(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="emit=magic is not available; choose from manual, sdy, local"):
        reshard.optimize(lowered, emit="magic")
