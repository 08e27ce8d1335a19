# SPDX-License-Identifier: Apache-2.0
"""Neutral elements and the regions of reducing collectives."""

import pytest

from reshard.dialect_utils.ir.reductions import UnsupportedReduction, check_reduction, is_neutral, neutral_element
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


NEUTRAL = [
    ("f32", "sum", "0.000000e+00"),
    ("f32", "prod", "1.000000e+00"),
    ("f32", "max", "0xFF800000"),
    ("i8", "min", "127"),
    ("i8", "max", "-128"),
    ("ui8", "min", "255"),
    ("i1", "and", "true"),
]


@pytest.mark.parametrize("element, reduction, value", NEUTRAL)
def test_the_neutral_element_changes_nothing(element, reduction, value):
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        found = neutral_element(ir.Type.parse(f"tensor<{element}>"), reduction)
    assert f"dense<{value}>" in str(found.owner)
    assert is_neutral(found, reduction)


@pytest.mark.parametrize(
    "element, reduction", [("i1", "sum"), ("f32", "and"), ("complex<f32>", "max"), ("f8E4M3FN", "min")]
)
def test_reductions_that_devices_do_not_have(element, reduction):
    with pytest.raises(UnsupportedReduction):
        check_reduction(ir.Type.parse(element), reduction)
