# SPDX-License-Identifier: Apache-2.0
"""Users of one value that fill their windows with different values get separate values."""

import pytest

from reshard.dialect_utils.emission.shared_windows import are_confused, separate_users
from reshard.dialect_utils.platform.bindings import ir, make_context

_TWO_PADS = """
func.func public @main(%a: tensor<8xf32>) -> (tensor<9xf32>, tensor<9xf32>) {{
  %one = stablehlo.constant dense<{first}> : tensor<f32>
  %other = stablehlo.constant dense<{second}> : tensor<f32>
  %0 = stablehlo.pad %a, %one, low = [1], high = [0], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = stablehlo.pad {value}, %other, low = [1], high = [0], interior = [0]
    : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  return %0, %1 : tensor<9xf32>, tensor<9xf32>
}}"""


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def argument_of(module: ir.Module) -> ir.Value:
    return module.body.operations[0].operation.regions[0].blocks[0].arguments[0]


@pytest.mark.parametrize("second, count", [("-7.0", 1), ("1.0", 0)])
def test_different_paddings_of_one_value_get_a_barrier(second, count):
    module = ir.Module.parse(_TWO_PADS.format(first="1.0", second=second, value="%a"))
    assert are_confused(module, [argument_of(module)]) is bool(count)
    assert separate_users(module) == count
    assert str(module).count("stablehlo.optimization_barrier") == count
    assert not are_confused(module, [argument_of(module)])


def test_a_constraint_does_not_make_another_value():
    constraint = "  %c = sdy.sharding_constraint %a <@mesh, [{}]> : tensor<8xf32>\n  %1 = "
    text = _TWO_PADS.format(first="1.0", second="-7.0", value="%c").replace("  %1 = ", constraint)
    module = ir.Module.parse(f'sdy.mesh @mesh = <["x"=2]>{text}')
    assert separate_users(module) == 1
    assert module.operation.verify()


def test_complex_paddings_are_compared():
    text = _TWO_PADS.replace("f32", "complex<f32>")
    for second, count in (("(2.0, 0.0)", 1), ("(1.0, 0.0)", 0)):
        assert separate_users(ir.Module.parse(text.format(first="(1.0, 0.0)", second=second, value="%a"))) == count
