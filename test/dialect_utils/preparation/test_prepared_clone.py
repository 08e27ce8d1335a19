# SPDX-License-Identifier: Apache-2.0
"""The clone can be traced back: every op has a serial, and the calls through which it was inlined are known."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.prepared_clone import call_paths, prepare
from reshard.dialect_utils.preparation.serials import own_location, serial_of, tagged_clone


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


CALLED_TWICE = """
  func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.tanh %a : tensor<4xf32> loc("model.py":5:1)
    return %0 : tensor<4xf32>
  }
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }"""


def test_an_op_of_a_function_that_is_called_twice_has_two_serials():
    clone = prepare(*tagged_clone(ir.Module.parse(CALLED_TWICE)))
    instances = [op for op in clone.prepared_ops if op.name == "stablehlo.tanh"]
    assert len({serial_of(op) for op in instances}) == 2
    assert len({clone.origin[serial_of(op)] for op in instances}) == 1
    assert {str(own_location(op)) for op in instances} == {'loc("model.py":5:1)'}


def test_the_calls_through_which_an_op_came_are_known():
    module = ir.Module.parse(CALLED_TWICE)
    clone = prepare(*tagged_clone(module))
    paths = call_paths(clone.originals[0])
    found = [paths[serial_of(op)] for op in clone.prepared_ops if op.name == "stablehlo.tanh"]
    names = [[clone.originals[index].name for index in path] for path in found]
    assert names == [["func.func", "func.call"]] * 2 and found[0] != found[1]
