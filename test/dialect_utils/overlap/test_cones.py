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
    dims = f"[{', '.join(['{}'] * tile.count('x'))}]"
    text = f"""module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
      sdy.mesh @mesh = <["x"=4]>
      func.func public @main(%x: tensor<{tile}>, %y: tensor<{tile}>) -> tensor<{result}> {{
        %0 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, {dims}>, <@mesh, {dims}>]
            out_shardings=[<@mesh, {dims}>] manual_axes={{"x"}} (%a: tensor<{tile}>, %b: tensor<{tile}>) {{
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


# Lookups


def lookup(name: str, rows: str = "8", taken: str = "1, 8") -> str:
    """Returns a lookup of some rows, or of parts of them."""
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    attributes = f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {taken}>"
    width = taken.rsplit(" ", 1)[-1]
    return f"""%table = stablehlo.constant dense<1.0> : tensor<8x8xf32>
      %i = stablehlo.constant dense<1> : tensor<{rows}x1xi32>
      {name} = "stablehlo.gather"(%table, %i) <{{{attributes}}}>
      : (tensor<8x8xf32>, tensor<{rows}x1xi32>) -> tensor<{rows}x{width}xf32>"""


BAGS = """%z = stablehlo.constant dense<0.0> : tensor<f32>
  %f = stablehlo.reshape %d : (tensor<24x8xf32>) -> tensor<8x3x8xf32>
  %v = stablehlo.reduce(%f init: %z) applies stablehlo.add across dimensions = [1] : {} -> tensor<8x8xf32>""".format(
    "(tensor<8x3x8xf32>, tensor<f32>)"
)


def test_a_lookup_is_cut_as_a_product_is():
    (candidate,) = found(f"{lookup('%d')}\n%v = stablehlo.negate %d : tensor<8x8xf32>")
    assert isinstance(candidate, Candidate) and candidate.tile_dim == 0
    assert candidate.text == candidate.pattern == "lookup, all_reduce"


def test_sums_of_bags_in_another_shape_are_cut():
    (candidate,) = found(f"{lookup('%d', '24')}\n{BAGS}")
    assert isinstance(candidate, Candidate) and [dim for _, dim in candidate.made_by.products] == [0]
    assert candidate.made_by.sizes == {8, 24}


def test_products_and_lookups_are_cut_together():
    (candidate,) = found(f"{lookup('%d')}\n{product('%e')}\n%v = stablehlo.add %d, %e : tensor<8x8xf32>")
    assert isinstance(candidate, Candidate) and candidate.text == "lookup and product, all_reduce"
    assert candidate.pattern == "product, all_reduce"


def test_products_in_another_shape_are_cut():
    flat = "%e = stablehlo.reshape %d : (tensor<8x8xf32>) -> tensor<64xf32>"
    shaped = "%v = stablehlo.reshape %e : (tensor<64xf32>) -> tensor<8x8xf32>"
    (candidate,) = found(f"{product('%d')}\n{flat}\n{shaped}")
    assert isinstance(candidate, Candidate) and candidate.text == "product, all_reduce"


def test_what_each_block_needs_as_a_whole_stays():
    wide = "%v = stablehlo.broadcast_in_dim %d, dims = [1, 2] : (tensor<2x8xf32>) -> tensor<4x2x8xf32>"
    (candidate,) = found(f"{lookup('%d', '2')}\n{wide}", "4x2x8xf32", "4x2x8xf32")
    assert isinstance(candidate, Candidate) and candidate.tile_dim == 2
    (problem,) = found(f"{lookup('%d', '2', '1, 3')}\n{wide.replace('x8', 'x3')}", "4x2x3xf32", "4x2x3xf32")
    assert str(problem) == "each of its blocks is made of all that is looked up"


def test_another_dimension_is_cut_if_rows_have_a_part_of_one():
    turned = "%v = stablehlo.transpose %d, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>"
    (candidate,) = found(f"{lookup('%d', '8', '1, 4')}\n{turned}", "4x8xf32", "4x8xf32")
    assert isinstance(candidate, Candidate) and candidate.tile_dim == 1


@pytest.mark.parametrize(
    ("body", "tile", "reason"),
    [
        (
            f"{lookup('%v')}\n%n = stablehlo.negate %v : tensor<8x8xf32>",
            "8x8xf32",
            "the lookup is used as a whole, too",
        ),
        (
            lookup("%v", "6", "1, 4"),
            "6x4xf32",
            "the lookup takes a part of the dimension of its table that would be cut",
        ),
        (
            f"{lookup('%d', '6')}\n%v = stablehlo.reshape %d : (tensor<6x8xf32>) -> tensor<2x24xf32>",
            "2x24xf32",
            "reshape behind the lookup does not keep its blocks apart",
        ),
    ],
)
def test_why_a_lookup_is_not_cut(body, tile, reason):
    (problem,) = found(body, tile, tile)
    assert str(problem) == reason
