# SPDX-License-Identifier: Apache-2.0
"""Ops without a rule stay with XLA between islands, and the values are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.platform.bindings import ir
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture

SIZE = 16


def _doubled(x):
    """Calls Python, for which there is no rule."""
    return jax.pure_callback(lambda each: np.asarray(each) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _in_the_middle(a, b):
    first = a @ b
    return _doubled(first) @ b + first


def _two_in_a_row(a, b):
    return _doubled(_doubled(a @ b)) + _doubled(a.T)


def _at_both_ends(a, b):
    return _doubled(_doubled(a) @ b)


def _of_a_constant(a, b):
    return _doubled(jnp.full((SIZE, SIZE), 3.0)) @ a + b


def _in_a_function(a, b):
    inner = jax.jit(lambda x: _doubled(x @ b) + 1)
    return inner(a) + inner(b)


def _in_a_branch(a, b):
    """The branch uses values from outside."""
    first = a @ b
    return lax.cond(first[0, 0] > 0, lambda: _doubled(first) + b, lambda: a - first) @ b


def _results_are_returned(a, b):
    return _doubled(a @ b), a @ b, a


def _constants_are_returned(a, b):
    return jnp.ones((SIZE, SIZE)), a, _doubled(a @ b), jnp.arange(16.0)


def _in_a_loop(a, b):
    """The loop is not cut: it stays whole."""
    return lax.fori_loop(0, 3, lambda _, x: _doubled(x) @ b, a @ b) + a @ b


def _without_results(a, b):
    first = a @ b
    jax.debug.callback(lambda _: None, first)
    return first @ b


PROGRAMS = (
    _in_the_middle,
    _two_in_a_row,
    _at_both_ends,
    _of_a_constant,
    _in_a_function,
    _in_a_branch,
    _results_are_returned,
    _constants_are_returned,
    _without_results,
    _in_a_loop,
)


def _lowered(mesh, program):
    args = [np.random.default_rng(seed).integers(-2, 3, (SIZE, SIZE)).astype(np.float32) for seed in range(2)]
    specs = P("x", "y"), P(None, ("z", "x"))
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    jax.clear_caches()
    return args, placed, jax.jit(program).lower(*placed)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_ops_without_a_rule_stay_with_xla(mesh, program):
    args, placed, lowered = _lowered(mesh, program)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        written = local_modules.convert(module, stay="unknown")
    module.operation.verify()
    assert written.left
    text = str(module)
    assert "sdy.manual_computation" in text
    outside = [line for line in text.split("func.func private")[0].splitlines() if line.startswith("    %")]
    assert not any("stablehlo.dot" in line or "stablehlo.add" in line for line in outside)
    wanted = jax.tree.leaves(jax.jit(program)(*args))
    for mine, theirs in zip(jax.tree.leaves(lowered.compile()(*placed)), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_values_that_are_no_tensors_are_refused(mesh):
    """An ordered callback takes and gives a token."""
    _, _, lowered = _lowered(mesh, _in_the_middle)
    with lowered.compiler_ir("stablehlo").context as context:
        text = """sdy.mesh @mesh = <["x"=8]>
        func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %t: !stablehlo.token)
            -> (tensor<8xf32>, !stablehlo.token) {
          %0 = stablehlo.custom_call @mystery(%a) : (tensor<8xf32>) -> tensor<8xf32>
          return %0, %t : tensor<8xf32>, !stablehlo.token
        }"""
        module = ir.Module.parse(text, context)
        with pytest.raises(DiagnosedError, match="no tiles of a value of type !stablehlo.token"):
            local_modules.convert(module, stay="unknown")
        assert "custom_call" in str(module) and "manual_computation" not in str(module)


def test_without_leave_such_an_op_is_an_error_and_the_module_is_as_it_was(mesh):
    _, _, lowered = _lowered(mesh, _in_the_middle)
    module = lowered.compiler_ir("stablehlo")
    before = str(module)
    with module.context, pytest.raises(DiagnosedError, match="emit=local has no tiles for"):
        local_modules.convert(module)
    assert str(module) == before
