# SPDX-License-Identifier: Apache-2.0
"""Report rows: the user's lines, the calls above them, and who asked for each axis."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline

M = "tensor<16x16xf32>"


def of(layout: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {layout}>}}"


def rows(text: str, **options) -> list[dict]:
    """Returns the rows of a module with the mesh x=4,y=2; its text begins on line 2."""
    session = Session(RunOptions(**options))
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(f'sdy.mesh @mesh = <["x"=4, "y"=2]>\n{text}')
        Pipeline.parse("find-mismatches,plan-sites{policy=always layout-check=off}").run(module, session)
    return session.results.report_rows


ROWS, COLUMNS = of('[{"x"}, {}]'), of('[{}, {"x"}]')
ADD = f"""
func.func public @main(%a: {M} {ROWS}, %b: {M} {COLUMNS}) -> ({M} {COLUMNS}) {{
  %0 = stablehlo.add %a, %b : {M} LOCATION
  return %0 : {M}
}}"""


def test_a_row_has_the_site_as_plain_values():
    (row,) = rows(ADD.replace("LOCATION", 'loc("model.py":7:3)'))
    assert (row["kind"], row["op"], row["type"], row["location"]) == ("argument", "stablehlo.add", M, "model.py:7:3")
    assert row["why"].startswith("add wants operand 0 as") and row["verdict"] == "rewrite"
    assert row["provenance"] == []


@pytest.mark.parametrize(("options", "place"), [({}, "-:4:8"), ({"input": "in.mlir"}, "in.mlir:4:8")])
def test_a_line_of_the_text_itself_is_a_line_of_the_input(options, place):
    (row,) = rows(ADD.replace("LOCATION", ""), **options)
    assert row["location"] == place


def test_the_calls_around_the_line_are_told_innermost_first():
    helper = 'callsite("ones"("layers.py":2:5) at callsite("layer"("layers.py":9:5) at "main"("model.py":7:3)))'
    (row,) = rows(ADD.replace("LOCATION", f"loc({helper})"))
    assert [each["location"] for each in row["location_chain"]] == ["layers.py:2:5", "layers.py:9:5", "model.py:7:3"]
    assert [each["function"] for each in row["location_chain"]] == ["ones", "layer", "main"]
    assert row["location"] == "layers.py:2:5"


def test_an_op_of_a_library_function_without_places_is_where_the_function_is_called():
    (row,) = rows(f"""
      func.func public @main(%a: {M} {ROWS}, %b: {M} {COLUMNS}) -> ({M} {COLUMNS}) {{
        %0 = call @outer(%a, %b) : ({M}, {M}) -> {M} loc("outer"(callsite("layer"("m.py":2:5) at "main"("m.py":9:3))))
        return %0 : {M}
      }}
      func.func private @outer(%a: {M}, %b: {M}) -> {M} {{
        %0 = call @inner(%a, %b) : ({M}, {M}) -> {M} loc("jit(inner)")
        return %0 : {M}
      }}
      func.func private @inner(%a: {M}, %b: {M}) -> {M} {{
        %0 = stablehlo.add %a, %b : {M} loc("add")
        return %0 : {M}
      }}""")
    assert (row["op"], row["location"]) == ("stablehlo.add", "m.py:2:5")
    assert [each["location"] for each in row["location_chain"]] == ["m.py:2:5", "m.py:9:3"]


def test_provenance_tells_for_each_side_who_asked_for_its_axes():
    (row,) = rows(ADD.replace("LOCATION", ""), with_provenance=True)
    assert row["provenance"] == [
        {"side": "source", "axis": "x", "asked_by": "argument 0 of @main", "location": "-:3:1"},
        {"side": "target", "axis": "x", "asked_by": "result 0 of @main", "location": "-:3:1"},
    ]
