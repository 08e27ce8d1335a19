# SPDX-License-Identifier: Apache-2.0
"""What lies between products and a collective: how far it is followed, and what is no candidate."""

import pytest

from reshard.dialect_utils.hierarchy.explicit_collectives import NotPlannable
from reshard.dialect_utils.overlap.candidates import Candidate, _divided, candidates
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.hierarchy.redistributions import InGroups
from reshard.synthesis.layouts.layout import Factor

REDUCER = """({{
      ^bb0(%p: tensor<{0}>, %q: tensor<{0}>):
        %s = stablehlo.add %p, %q : tensor<{0}>
        stablehlo.return %s : tensor<{0}>
      }})"""
GROUPS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def found(body: str, tile: str = "8x8xf32", result: str = "8x8xf32") -> list[Candidate | NotPlannable]:
    """Returns the candidates of an all_reduce of `%v`, which a body makes of the arguments `%a` and `%b`."""
    text = f"""module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
      sdy.mesh @mesh = <["x"=4]>
      func.func public @main(%x: tensor<{tile}>, %y: tensor<{tile}>) -> tensor<{result}> {{
        %0 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{{}}, {{}}]>, <@mesh, [{{}}, {{}}]>]
            out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"x"}} (%a: tensor<{tile}>, %b: tensor<{tile}>) {{
          {body}
          %r = "stablehlo.all_reduce"(%v) <{{{CHANNEL}, {GROUPS}}}> {REDUCER.format(result.rsplit("x", 1)[1])}
              : (tensor<{tile}>) -> tensor<{result}>
          sdy.return %r : tensor<{result}>
        }} : (tensor<{tile}>, tensor<{tile}>) -> tensor<{result}>
        return %0 : tensor<{result}>
      }}
    }}"""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return [each for _, each in candidates(module.operation)]


def product(name: str, tile: str = "8x8xf32", *operands: str) -> str:
    left, right = operands or ("%a", "%b")
    types = f"(tensor<{tile}>, tensor<{tile}>) -> tensor<{tile}>"
    return f"{name} = stablehlo.dot_general {left}, {right}, contracting_dims = [1] x [0] : {types}"


def negations(count: int, of: str, to: str) -> str:
    names = [of, *(f"%n{i}" for i in range(count - 1)), to]
    return "\n".join(f"{b} = stablehlo.negate {a} : tensor<8x8xf32>" for a, b in zip(names, names[1:]))


def test_a_sum_of_products_is_cut_as_one():
    (candidate,) = found(f"{product('%d')}\n{product('%e')}\n%v = stablehlo.add %d, %e : tensor<8x8xf32>")
    assert isinstance(candidate, Candidate) and len(candidate.products) == 2
    assert candidate.text == "2 products, all_reduce"


def test_a_dimension_is_followed_through_transposes():
    turned = "%v = stablehlo.transpose %d, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>"
    (candidate,) = found(f"{product('%d')}\n{turned}")
    assert isinstance(candidate, Candidate) and candidate.tile_dim == 0
    assert [dim for _, dim in candidate.made_by.products] == [1]


@pytest.mark.parametrize("count", [30, 2000])
def test_long_ways_between_are_not_gone_to_the_end(count):
    (candidate,) = found(
        f"{negations(count, '%a', '%l')}\n{product('%d')}\n%v = stablehlo.add %l, %d : tensor<8x8xf32>"
    )
    assert isinstance(candidate, Candidate) and len(candidate.products) == 1 and len(candidate.made_by.ops) == 24
    assert found(negations(count, "%a", "%v")) == []


def test_a_sum_of_wider_elements_stays():
    (problem,) = found(product("%v", "8x8xbf16"), "8x8xbf16", "8x8xf32")
    assert str(problem) == "its result has other elements than its operand"


def test_a_dimension_of_size_zero_is_not_cut():
    halves = [InGroups("all_reduce", tile, (Factor("x", 1, 4),)) for tile in ((0, 8), (0, 3), ())]
    assert _divided(halves[0]) == [1]
    for without in halves[1:]:
        with pytest.raises(NotPlannable, match="its members divide no dimension"):
            _divided(without)
