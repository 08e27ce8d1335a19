# SPDX-License-Identifier: Apache-2.0
"""Where types of explicit mode do not fit: what jax says of the same ops is the witness."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.explicit_types import disagreements, has_types

SPECS = [(None, None), ("x", None), ("y", None), (None, "x"), (None, "y"), (("x", "y"), None), (("y", "x"), None)]
OPS = {
    "add": ("stablehlo.add %a, %b : tensor<8x8xf32>", jnp.add),
    "select": (
        "stablehlo.select %p, %a, %b : tensor<8x8xi1>, tensor<8x8xf32>",
        lambda a, b: jax.lax.select(jnp.zeros((8, 8), bool, out_sharding=jax.typeof(a).sharding), a, b),
    ),
    "concatenate": (
        "stablehlo.concatenate %a, %b, dim = 0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>",
        lambda a, b: jnp.concatenate([a, b]),
    ),
}


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


@pytest.fixture(scope="module")
def mesh():
    return AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def text_of(spec) -> str:
    names = ((each,) if isinstance(each, str) else each or () for each in spec)
    return ", ".join("{" + ", ".join(f'"{name}"' for name in some) + "}" for some in names)


def module(first, second, *body: str, result: str = "8x8") -> ir.Module:
    lines = "\n".join(body)
    return ir.Module.parse(f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{text_of(first)}]>}},
    %b: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{text_of(second)}]>}},
    %p: tensor<8x8xi1>) -> tensor<{result}xf32> {{
{lines}
  return %r : tensor<{result}xf32>
}}""")


@pytest.mark.parametrize("name", OPS)
def test_what_meets_is_refused_as_jax_refuses_it(name, mesh):
    text, function = OPS[name]
    for first, second in itertools.product(SPECS, SPECS):
        given = (
            jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P(*each)))
            for each in (first, second)
        )
        with jax.sharding.use_abstract_mesh(mesh):
            try:
                jax.eval_shape(function, *given)
                is_refused = False
            except Exception:  # ShardingTypeError, or that of an axis that splits two dimensions
                is_refused = True
        found = disagreements(module(first, second, f"%r = {text}", result="16x8" if name == "concatenate" else "8x8"))
        assert bool(found) == is_refused, (first, second, found)


def test_types_are_followed_through_elementwise_ops_and_stated_by_constraints():
    tanh = "%t = stablehlo.tanh %a : tensor<8x8xf32>"
    added = '%r = stablehlo.add %t, %b : tensor<8x8xf32> loc("add"("f.py":7:3))'
    assert disagreements(module(SPECS[1], SPECS[2], tanh, added)) == [
        "f.py:7:3: jax does not let P('x', None) and P('y', None) meet in add"
    ]
    stated = '%t = sdy.sharding_constraint %a <@mesh, [{"y"}, {}]> : tensor<8x8xf32>'
    assert disagreements(module(SPECS[1], SPECS[2], stated, added)) == []
    unknown = "%t = stablehlo.reverse %a, dims = [0] : tensor<8x8xf32>"
    assert disagreements(module(SPECS[1], SPECS[2], unknown, added)) == []


@pytest.mark.parametrize(("second", "refused"), [(SPECS[1], False), (SPECS[2], True)])
def test_what_a_loop_carries_keeps_its_type(second, refused):
    body = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %l:2 = stablehlo.while(%i = %zero, %h = %a) : tensor<i32>, tensor<8x8xf32>
    cond {
      %c = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.negate %b : tensor<8x8xf32>
      stablehlo.return %i, %n : tensor<i32>, tensor<8x8xf32>
    }
  %r = stablehlo.negate %l#1 : tensor<8x8xf32>"""
    assert bool(disagreements(module(SPECS[1], second, body))) == refused


def test_the_condition_of_a_select_has_the_type_of_its_cases():
    condition = "%c = stablehlo.compare GT, %b, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>"
    select = "%r = stablehlo.select %c, %a, %a : tensor<8x8xi1>, tensor<8x8xf32>"
    assert disagreements(module(SPECS[1], SPECS[2], condition, select))  # jax.lax.select refuses it as well


def test_the_way_back_is_not_looked_at():
    back = '%r = stablehlo.add %a, %b : tensor<8x8xf32> loc("jit(f)/transpose(jvp())/add"("f.py":7:3))'
    assert disagreements(module(SPECS[1], SPECS[2], back)) == []


def test_only_programs_with_constraints_for_types_are_in_explicit_mode():
    where = ' loc("jit(f)/tanh"("f.py":1:0))'
    tanh = "%t = stablehlo.tanh %a : tensor<8x8xf32>" + where
    said = '%r = sdy.sharding_constraint %t <@mesh, [{"x"}, {}]> : tensor<8x8xf32>'
    assert has_types(module(SPECS[1], SPECS[1], tanh, said + where))
    assert not has_types(module(SPECS[1], SPECS[1], tanh, said + ' loc("jit(f)/sharding_constraint"("f.py":2:0))'))
