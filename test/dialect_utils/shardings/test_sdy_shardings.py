# SPDX-License-Identifier: Apache-2.0
"""Shardy's attributes are read into meshes, shardings and placements, and written from them."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings import sdy_shardings as under_test
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MESHES = {"mesh": Mesh.parse("x=4,y=2,one=1")}


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown():
        yield context


def sharding_attr(text: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#sdy.sharding<{text}>")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[{}, {}]",
        '[{"x"}, {"y"}]',
        '[{"x", ?}p1, {?}]',
        '[{"x":(1)2}, {"x":(2)2, "y"}]',
        '[{}], replicated={"y"}',
        '[{}], unreduced={"x"}',
        '[{"x":(2)2}p0, {?}p3], replicated={"x":(1)2}, unreduced={"y"}',
    ],
)
def test_sharding_attributes_round_trip(text):
    attr = sharding_attr(f"@mesh, {text}")
    sharding = under_test.sharding_from_attr(attr)
    assert sharding == Sharding.parse(text)
    assert under_test.sharding_to_attr(sharding, "mesh") == attr


def test_a_mesh_that_is_inlined_stays_inlined():
    attr = sharding_attr('mesh<["x"=2], device_ids=[1, 0]>, [{"x"}]')
    reference = under_test.mesh_reference(attr)
    assert under_test.sharding_to_attr(Sharding.parse('[{"x"}]'), reference) == attr
    assert under_test.mesh_of(attr, {}) == Mesh((("x", 2),), (1, 0))


def test_mesh_of_a_symbol():
    attr = sharding_attr('@mesh, [{"x"}]')
    assert under_test.mesh_of(attr, MESHES) == MESHES["mesh"]
    assert under_test.mesh_of(attr, {}) is None


@pytest.mark.parametrize("text", ['<["x"=4, "y"=2]>', '<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>', "<[]>"])
def test_mesh_attributes(text):
    assert under_test.mesh_from_attr(ir.Attribute.parse(f"#sdy.mesh{text}")) == Mesh.parse(text)


def test_maximal_meshes_are_unsupported_and_left_out():
    with pytest.raises(under_test.UnsupportedSharding, match="maximal mesh on device 3"):
        under_test.mesh_from_attr(ir.Attribute.parse("#sdy.mesh<[], device_ids=[3]>"))
    module = ir.Module.parse('module { sdy.mesh @mesh = <["x"=2]> sdy.mesh @one = <[], device_ids=[3]> }')
    assert under_test.module_meshes(module) == {"mesh": Mesh.parse("x=2")}


def test_placements_know_no_synonyms():
    same = ['@mesh, [{"x"}, {}]', '@mesh, [{"x", ?}p2, {"one"}], replicated={"y"}', '@mesh, [{"x":(1)2, "x":(2)2}, {}]']
    found = {under_test.placement(sharding_attr(text), 2, MESHES) for text in same[:2]}
    assert len(found) == 1
    assert str(found.pop()) == '[{"x"}, {}]'


def test_a_replicated_array_is_the_same_on_every_mesh():
    other = {"mesh": Mesh.parse("q=8")}
    nothing = under_test.placement(None, 2, MESHES)
    assert nothing == under_test.placement(sharding_attr("@mesh, [{}, {}]"), 2, other)
    assert nothing.shards() == (1, 1)


def test_shards_count_sub_axes():
    assert under_test.placement(sharding_attr('@mesh, [{"x":(2)2, "y"}, {}]'), 2, MESHES).shards() == (4, 1)


def test_replicated_like_keeps_the_mesh():
    attr = sharding_attr('mesh<["x"=2]>, [{"x"}]')
    assert under_test.replicated_like(attr, 2) == sharding_attr('mesh<["x"=2]>, [{}, {}]')


def test_per_value():
    module = ir.Module.parse(
        """module { sdy.mesh @mesh = <["x"=2]>
        func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4xf32>
          %1 = stablehlo.negate %0 : tensor<4xf32>
          return %1 : tensor<4xf32> } }"""
    )
    ops = module.body.operations[1].regions[0].blocks[0].operations
    assert under_test.per_value(ops[0]) == [sharding_attr('@mesh, [{"x"}]')]
    assert under_test.per_value(ops[1]) is None


MANY = {
    "mesh": Mesh.parse("x=4,y=2"),
    "flat": Mesh.parse("z=8"),
    "three": Mesh.parse("a=2,b=2,c=2"),
    "reversed": Mesh.parse('<["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>'),
    "half": Mesh.parse("x=2,y=2"),
}


@pytest.mark.parametrize(
    "one, other, are_equal",
    [
        ('@mesh, [{"x", "y"}, {}]', '@flat, [{"z"}, {}]', True),
        ('@mesh, [{"y"}, {"x"}]', '@three, [{"c"}, {"a", "b"}]', True),
        ('@mesh, [{"y"}, {"x":(2)2}]', '@flat, [{"z":(4)2}, {"z":(2)2}]', True),
        ('@mesh, [{"y", "x"}, {}]', '@flat, [{"z"}, {}]', False),
        ('@mesh, [{"x"}, {}]', '@reversed, [{"x"}, {}]', False),
        ('@mesh, [{"x":(1)2}, {}]', '@half, [{"x"}, {}]', False),
        ('@mesh, [{}, {}], unreduced={"x", "y"}', '@flat, [{}, {}], unreduced={"z"}', True),
        ('@mesh, [{}, {}], unreduced={"x"}', '@flat, [{}, {}], unreduced={"z"}', False),
        ("@mesh, [{}, {}]", "@reversed, [{}, {}]", True),
    ],
)
def test_placements_on_two_meshes_are_equal_if_the_axes_are_the_same_digits_of_the_devices(one, other, are_equal):
    first, second = (under_test.placement(sharding_attr(text), 2, MANY) for text in (one, other))
    assert (first == second) == are_equal and (not are_equal or hash(first) == hash(second))
