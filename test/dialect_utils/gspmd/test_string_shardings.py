# SPDX-License-Identifier: Apache-2.0
"""The kind of sharding strings in a module."""

import pytest

from reshard.dialect_utils.gspmd.string_shardings import GSPMD, ROUND_TRIP, kind_of
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


OF_GSPMD = 'mhlo.sharding = "{replicated}"'
OF_SHARDY = 'mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{}]>"}'


@pytest.mark.parametrize(
    "of_argument, of_op, kind",
    [
        ("", "", None),
        (OF_GSPMD, "", GSPMD),
        ("", OF_GSPMD, GSPMD),
        (OF_GSPMD, OF_SHARDY, ROUND_TRIP),
        (OF_SHARDY, "", ROUND_TRIP),
    ],
)
def test_the_kind_of_strings(of_argument, of_op, kind):
    module = ir.Module.parse(f"""func.func @main(%a: tensor<4xf32> {{{of_argument}}}) -> tensor<4xf32> {{
      %0 = stablehlo.tanh %a {{{of_op}}} : tensor<4xf32>
      return %0 : tensor<4xf32>
    }}""")
    assert kind_of(module) == kind
