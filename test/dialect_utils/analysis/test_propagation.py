# SPDX-License-Identifier: Apache-2.0
"""Propagation: Shardy's pipeline, cut where layouts are final, on each public function as if it were the program."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.analysis.propagation import propagate, propagation_pipeline
from reshard.dialect_utils.ir.functions import functions_of, symbol
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.value_layouts import result_layout

MESH = 'sdy.mesh @mesh = <["x"=3, "y"=4]>'
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}]>}'


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


@pytest.mark.parametrize("visibility, is_left", [("private", False), ("public", True)])
def test_private_functions_that_nobody_calls_are_left_out(visibility, is_left):
    text = str(
        analyse(
            ir.Module.parse(f"""{MESH}
      func.func {visibility} @alone(%arg0: tensor<12xi32> {SPLIT}) -> tensor<12xi32> {{
        return %arg0 : tensor<12xi32>
      }}
      func.func public @main(%arg0: tensor<12xi32> {SPLIT}) -> tensor<12xi32> {{
        return %arg0 : tensor<12xi32>
      }}""")
        ).explicit
    )
    assert ("@alone" in text) == is_left


def test_passes_that_remove_functions_are_left_out_where_there_are_none_to_remove():
    with_them, without = (propagation_pipeline(has_discardable_symbols=each) for each in (True, False))
    assert "symbol-dce" in with_them
    assert without == with_them.replace("symbol-dce,", "")


def test_each_public_function_is_propagated_as_the_whole_program():
    """Shardy starts from @main alone; the functions keep their names and their order."""
    functions = [
        f"""func.func public @{name}(%a: tensor<12xi32> {SPLIT}) -> tensor<12xi32> {{
          %0 = stablehlo.negate %a : tensor<12xi32>
          return %0 : tensor<12xi32>
        }}"""
        for name in ("first", "main")
    ]
    module = ir.Module.parse("\n".join([MESH, *functions])).operation
    propagate(module)
    assert [symbol(op) for op in functions_of(module)] == ["first", "main"]
    negations = [op for op in ops_in(module) if op.name == "stablehlo.negate"]
    assert [str(result_layout(op, 0)) for op in negations] == ['#sdy.sharding<@mesh, [{"y", "x"}]>'] * 2


def test_an_entry_of_another_name_and_what_is_called_main_keep_their_names():
    module = ir.Module.parse(f"""{MESH}
      func.func private @main(%a: tensor<12xi32>) -> tensor<12xi32> {{ return %a : tensor<12xi32> }}
      func.func public @entry(%a: tensor<12xi32> {SPLIT}) -> tensor<12xi32> {{
        %0 = stablehlo.composite "some.op" %a {{decomposition = @main}} : (tensor<12xi32>) -> tensor<12xi32>
        return %0 : tensor<12xi32>
      }}""").operation
    propagate(module)
    entry, main = sorted(functions_of(module), key=symbol)
    assert (symbol(entry), symbol(main)) == ("entry", "main")
    assert len(ops_in(main)) == 2 and "decomposition = @main" in str(entry)
