# SPDX-License-Identifier: Apache-2.0
"""The modules of test/passes/structure, rewritten at every site, give the values of their unsharded and stock forms."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import module_verification
from reshard.passes.results.module_verification import UNKNOWN, Verification

MODULES = Path(__file__).parent.parent / "passes" / "structure"
DO_NOT_RUN = {
    "dynamic_shapes-0": "XLA compiles no unbounded dynamic dimensions",
    "dynamic_shapes-1": "XLA compiles no unbounded dynamic dimensions",
    "values-5": "nobody implements the custom call",
    "values-6": "nobody implements the custom call",
}


def modules() -> dict[str, str]:
    """Returns the modules of the lit tests by file and number, without comments."""
    found = {}
    for path in sorted(MODULES.glob("*.mlir")):
        for number, text in enumerate(path.read_text().split("// -----")):
            found[f"{path.stem}-{number}"] = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    return found


def rewritten(text: str, policy: str = "always") -> tuple[ir.Module, ir.Module, Session]:
    """Returns the module and its rewritten form, both with numbered ops; a context is active."""
    original = ir.Module.parse(text)
    watched_modules.number_ops(original)
    module = ir.Module.parse(original.operation.get_asm(enable_debug_info=True))
    session = Session()
    Pipeline.default().with_options({"policy": policy}).run(module, session)
    assert module.operation.verify()
    return original, module, session


def verified(text: str) -> Verification:
    with make_context() as context, ir.Location.unknown(context):
        original, module, _ = rewritten(text)
        return module_verification.verify(original, module, devices_of(original), shared_child())


SLOW = {"element_types-0"}  # 24 types


def parameters(names) -> list:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", parameters(name for name in modules() if name not in DO_NOT_RUN))
def test_every_corner_gives_what_it_gives_unsharded(name):
    found = verified(modules()[name])
    assert found.ours.is_right, found.ours
    # A manual computation has no unsharded form, so our program is compared with stock's.
    assert found.stock.is_right or (found.stock.status == UNKNOWN and name.startswith("manual_computations")), (
        found.stock
    )


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", modules())
def test_what_comes_out_stays_as_it_is(name):
    with make_context() as context, ir.Location.unknown(context):
        _, module, _ = rewritten(modules()[name])
        text = watched_modules.without_numbers(module)
        _, again, _ = rewritten(text)
        assert watched_modules.without_numbers(again) == text


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("uneven")])
def test_zeros_around_an_island_cost_nothing(name):
    """XLA's program receives at most the bytes in the plans of the sites: padding and slicing receive nothing."""
    text = modules()[name]
    with make_context() as context, ir.Location.unknown(context):
        _, module, session = rewritten(text)
        compiled = shared_child().compile(watched_modules.without_numbers(module), devices_of(module))
    turns = 3 if "stablehlo.while" in text else 1
    planned = sum(
        row["bytes_received"] * (turns if row["kind"] in ("constraint", "loop", "result") else 1)
        for row in session.results.report_rows
    )
    assert all(row["is_rewritten"] for row in session.results.report_rows)
    assert compiled.is_ok and compiled.bytes_received <= planned


# ---------------------------------------------------------------------------------------------------------------------
# JAX programs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh():
    assert len(jax.devices()) >= 8, "jax was started before test/end_to_end/conftest.py set XLA_FLAGS"
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


def programs(mesh) -> dict:
    """Returns name -> function of two matrices."""

    def into(value, *axes):
        return with_sharding_constraint(value, NamedSharding(mesh, P(*axes)))

    @jax.jit
    def helper(value):
        return into(jnp.tanh(value), None, "x")

    def called_twice(a, b):
        return helper(into(helper(into(a, "x")), "y")) + helper(into(b, "y", "x"))

    def called_in_a_scan_and_behind_it(a, b):
        carried, sums = jax.lax.scan(lambda c, x: (helper(into(c, "x")) + x, jnp.sum(c)), a, jnp.stack([b, b, b]))
        return helper(into(carried, "y")), sums

    def partly_manual(a, b):
        def body(t, u):
            t = with_sharding_constraint(jnp.tanh(with_sharding_constraint(t, P("x", None))), P(None, "x"))
            return t + jax.lax.psum(u, "y")

        mapped = jax.shard_map(body, mesh=mesh, in_specs=(P("y"), P(None, "y")), out_specs=P("y"), axis_names={"y"})
        return mapped(a, jnp.concatenate([b, b], 1)[:8])

    def uneven(a, b):
        return jnp.sum(into(jnp.tanh(into(a[:10], "x")), None, "x") * into(b[:10], "y"), 0)

    def backward(a, b):
        return jax.grad(lambda a: jnp.sum(helper(into(helper(into(a, "x")) @ b, "y")) ** 2))(a)

    return {
        each.__name__: each for each in (called_twice, called_in_a_scan_and_behind_it, partly_manual, uneven, backward)
    }


@pytest.mark.parametrize(
    "name",
    [
        "called_twice",
        "partly_manual",
        "uneven",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("called_in_a_scan_and_behind_it", "backward")),
    ],
)
def test_jax_programs(mesh, name):
    function = programs(mesh)[name]
    values = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
    arguments = [
        jax.device_put(each, NamedSharding(mesh, P(*axes))) for each, axes in zip(values, (("x",), (None, "y")))
    ]
    jax.clear_caches()
    lowered = jax.jit(function).lower(*arguments)
    result = reshard.optimize(lowered, policy="always", check=False)
    assert result.is_rewritten
    ours, stock = result.compile()(*arguments), lowered.compile()(*arguments)
    for mine, theirs in zip(*map(jax.tree.leaves, (ours, stock)), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-5, atol=2e-5)
