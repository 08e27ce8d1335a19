# SPDX-License-Identifier: Apache-2.0
"""Serials: each op of a clone has a number, around the location that it came with."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.ir.pipelines import run_pipeline
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.serials import ID, own_location, serial_in, serial_of, tagged_clone

MODULE = """
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.constant dense<1.0> : tensor<4xf32>
    %1 = stablehlo.add %a, %0 : tensor<4xf32> loc("model.py":5:1)
    %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}]> : tensor<4xf32>
    return %2 : tensor<4xf32>
  }"""


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def test_serials_count_the_ops_but_for_constants_and_meshes():
    module = ir.Module.parse(MODULE)
    originals, clones = tagged_clone(module)
    assert [op.name for op in originals] == [op.name for op in clones]
    numbers = {op.name: serial_of(op) for op in clones}
    assert numbers == {
        "builtin.module": None,
        "sdy.mesh": None,
        "func.func": 0,
        "stablehlo.constant": None,
        "stablehlo.add": 1,
        "sdy.sharding_constraint": 2,
        "func.return": 3,
    }
    assert all(serial_of(op) is None for op in originals)


def test_an_op_keeps_the_location_that_it_came_with():
    module = ir.Module.parse(MODULE)
    originals, clones = tagged_clone(module)
    assert [own_location(op) for op in clones] == [op.location for op in originals]


def test_the_attribute_decides_where_shardy_makes_an_op_with_the_location_of_another():
    module = ir.Module.parse(MODULE)
    _, clones = tagged_clone(module)
    add, constraint = (
        next(op for op in clones if op.name == name) for name in ("stablehlo.add", "sdy.sharding_constraint")
    )
    constraint.location = add.location
    assert (serial_of(add), serial_of(constraint)) == (1, 2)
    del constraint.attributes[ID]
    assert serial_of(constraint) is None


def test_equal_ops_that_shardy_would_merge_stay_apart():
    constraint = '%{} = sdy.sharding_constraint %a <@mesh, [{{"x"}}]> : tensor<4xf32>'
    module = ir.Module.parse(f"""sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
        {constraint.format(0)}
        {constraint.format(1)}
        return %0, %1 : tensor<4xf32>, tensor<4xf32>
      }}""")
    _, clones = tagged_clone(module)
    run_pipeline(clones[0], "builtin.module(cse)")
    left = [serial_of(op) for op in ops_in(clones[0]) if op.name == "sdy.sharding_constraint"]
    assert left == [1, 2]


@pytest.mark.parametrize("name", ["jit(f)/add", "reshard.id", "reshard.id x", "reshard.id -1"])
def test_a_name_of_the_users_is_no_serial(name):
    assert serial_in(ir.Location.name(name)) is None
    assert serial_in(ir.Location.name("reshard.id 12")) == 12
