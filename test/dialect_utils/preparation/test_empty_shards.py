# SPDX-License-Identifier: Apache-2.0
"""Constraints that leave devices without elements: these hold what others hold."""

import re

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.empty_shards import fill_empty_shards


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ("1x8", '{"x"}, {}', "{}, {}"),
        ("1x8", '{"x"}, {"y"}', '{}, {"y"}'),
        ("1x8", '{"x", "y"}, {?}', "{}, {?}"),
        ("1x8", '{"x"}p0, {?}', "{}, {?}"),  # a priority of nothing
        ("1x8", '{"x", ?}p0, {?}', "{?}p0, {?}"),
        ("4x8", '{"x", "y"}, {}', '{"x"}, {}'),
        ("2x8", '{"x", "y"}, {}', '{"x":(1)2}, {}'),
        ("2x8", '{"y", "x"}, {}', '{"y"}, {}'),
        ("8x8", '{"x", "y"}, {}', '{"x", "y"}, {}'),
        ("2x8", '{"x":(2)2, "y"}, {}', '{"x":(2)2}, {}'),
        ("3x8", '{"x"}, {}', '{"x"}, {}'),  # of three elements one device has none
        ("5x8", '{"x"}, {}', '{"x"}, {}'),
        ("6x8", '{"x"}, {}', '{"x"}, {}'),
    ],
)
def test_constraint(shape, before, after):
    text = f"""
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %0 = sdy.sharding_constraint %a <@mesh, [{before}]> : tensor<{shape}xf32>
  return %0 : tensor<{shape}xf32>
}}"""
    with make_context():
        module = ir.Module.parse(text)
        notes = []
        fill_empty_shards(module.operation, notes)
        assert len(notes) == (before != after)
        assert module.operation.verify()
        assert re.search(r"constraint %arg0 <@mesh, \[(.*)\]>", str(module))[1] == after


@pytest.mark.parametrize("kind", ["tensor<8x8xf32>", "!stablehlo.token"])
def test_what_is_on_one_device_or_has_no_shape_stays(kind):
    text = f"""
sdy.mesh @one = <[], device_ids=[0]>
func.func @main(%a: {kind}) -> {kind} {{
  %0 = sdy.sharding_constraint %a <@one, []> : {kind}
  return %0 : {kind}
}}"""
    with make_context():
        module, notes = ir.Module.parse(text), []
        fill_empty_shards(module.operation, notes)
        assert not notes and "<@one, []>" in str(module)
