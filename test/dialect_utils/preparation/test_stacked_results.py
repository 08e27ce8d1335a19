# SPDX-License-Identifier: Apache-2.0
"""Copies that loops make of arrays slice by slice: of all slices and in order, unchanged or with a part written."""

import re

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.stacked_results import copy_no_stacks, read_in_place

STACK = "tensor<5x1x8xf32>"
PARTS = {
    "zero": "0",
    "start": "0",
    "step": "1",
    "trips": "5",
    "read": "%i, %zero, %zero",
    "written": "%i, %zero, %zero",
    "changed": "%cut",
    "other": "stablehlo.negate %cut",
    "into": "%copy",
    "array": "%stack",
    "more": "",
    "behind": "",
}


def loop(**changes: str) -> str:
    """Returns a module with a loop that copies `%stack` into `%none`, with some of its parts changed."""
    part = PARTS | changes
    return f"""
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%stack: {STACK}, %none: {STACK}) -> {STACK} {{
  %zero = stablehlo.constant dense<{part["zero"]}> : tensor<i32>
  %start = stablehlo.constant dense<{part["start"]}> : tensor<i32>
  %step = stablehlo.constant dense<{part["step"]}> : tensor<i32>
  %trips = stablehlo.constant dense<{part["trips"]}> : tensor<i32>
  %0:2 = stablehlo.while(%i = %start, %copy = %none) : tensor<i32>, {STACK}
  cond {{
    %c = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %next = stablehlo.add %i, %step : tensor<i32>
    {part["more"]}
    %cut = stablehlo.dynamic_slice {part["array"]}, {part["read"]}, sizes = [1, 1, 8]
      : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1x8xf32>
    %other = {part["other"]} : tensor<1x1x8xf32>
    %flat = stablehlo.reshape {part["changed"]} : (tensor<1x1x8xf32>) -> tensor<8xf32>
    %held = sdy.sharding_constraint %flat <@mesh, [{{"x"}}]> : tensor<8xf32>
    %layer = stablehlo.reshape %held : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %new = stablehlo.dynamic_update_slice {part["into"]}, %layer, {part["written"]}
      : ({STACK}, tensor<1x1x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> {STACK}
    {part["behind"]}
    stablehlo.return %next, %new : tensor<i32>, {STACK}
  }}
  return %0#1 : {STACK}
}}"""


def is_used(text: str) -> bool:
    """Returns whether the function returns its first argument."""
    with make_context():
        module = ir.Module.parse(text)
        copy_no_stacks(module.operation, [])
        assert module.operation.verify()
        function = next(op for op in ops_in(module.operation) if op.name == "func.func")
        end = next(op for op in ops_in(function) if op.name == "func.return")
        return end.operands[0] == function.regions[0].blocks[0].arguments[0]


# As jax writes an index that may count from the end.
INDEX = """
    %below = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %wrapped = stablehlo.add %i, %trips : tensor<i32>
    %index = stablehlo.select %below, %wrapped, %i : tensor<i1>, tensor<i32>"""


@pytest.mark.parametrize(
    "changes",
    [{}, {"more": INDEX, "read": "%index, %zero, %zero"}, {"more": INDEX, "written": "%index, %zero, %zero"}],
)
def test_a_copy_of_all_slices_is_the_array(changes):
    assert is_used(loop(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"trips": "4"},  # the last slice is of what the loop began with
        {"start": "1", "trips": "6"},
        {"step": "2", "trips": "10"},
        {"array": "%inner", "more": f"%inner = stablehlo.negate %stack : {STACK}"},
        {"read": "%next, %zero, %zero"},
        {"written": "%next, %zero, %zero"},
        {"more": INDEX.replace("LT, %i, %zero", "LT, %i, %trips"), "read": "%index, %zero, %zero"},
        {"more": INDEX.replace("%wrapped, %i :", "%wrapped, %next :"), "read": "%index, %zero, %zero"},
        {"read": "%trips, %zero, %zero"},  # the last slice each time
        {"changed": "%other"},
        {"into": "%none"},  # of the last slice alone
        {"more": INDEX.replace("LT, %i", "LT, %zero").replace(", %zero :", ", %i :"), "read": "%index, %zero, %zero"},
    ],
)
def test_another_array_stays(changes):
    assert not is_used(loop(**changes))


def test_a_slice_of_several_dimensions_stays():
    text = loop().replace("5x1x8", "5x5x8").replace("%i, %zero, %zero", "%i, %i, %zero")
    assert not is_used(text)


def test_slices_of_two_that_overlap_stay():
    text = loop(trips="4").replace("5x1x8", "4x1x8").replace("1x1x8", "2x1x8").replace("[1, 1, 8]", "[2, 1, 8]")
    assert not is_used(text.replace("tensor<8xf32>", "tensor<16xf32>"))


def test_a_counter_that_wraps_around_stays():
    """Turns are counted in 32 bits, and slices in 8, of which 150 is none."""
    text = loop(trips="150", read="%k, %none8, %none8", written="%k, %none8, %none8").replace("5x1x8", "150x1x8")
    text = text.replace("tensor<i32>, tensor<i32>, tensor<i32>", "tensor<i8>, tensor<i8>, tensor<i8>")
    text = text.replace("%i = %start,", "%i = %start, %k = %none8,").replace(
        ": tensor<i32>, tensor<150", ": tensor<i32>, tensor<i8>, tensor<150"
    )
    text = text.replace("%0:2", "%0:3").replace("%0#1", "%0#2").replace("return %next,", "return %next, %more8,")
    more = "%one8 = stablehlo.constant dense<1> : tensor<i8>\n    %more8 = stablehlo.add %k, %one8 : tensor<i8>"
    text = text.replace("%other =", f"{more}\n    %other =")
    text = text.replace("  %zero =", "  %none8 = stablehlo.constant dense<0> : tensor<i8>\n  %zero =", 1)
    assert is_used(text.replace("150", "5")) and not is_used(text)


# A slice whose column 3 is written, as the array of the loop above has it.
WRITTEN = """stablehlo.reshape %cut : (tensor<1x1x8xf32>) -> tensor<1x8xf32>
    %part = stablehlo.constant dense<1.0> : tensor<1x2xf32>
    %made = stablehlo.dynamic_update_slice %narrow, %part, %zero, %at
      : (tensor<1x8xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %read = stablehlo.negate %made : tensor<1x8xf32>
    %flat = stablehlo.reshape %made : (tensor<1x8xf32>) -> tensor<8xf32>"""
PLAIN = "stablehlo.reshape %cut : (tensor<1x1x8xf32>) -> tensor<8xf32>"


def written_loop(between: str = WRITTEN, **changes: str) -> str:
    at = "%at = stablehlo.constant dense<3> : tensor<i32>\n    "
    text = loop(**{"more": at, "other": "stablehlo.constant dense<0.0>", **changes})
    return text.replace(f"%flat = {PLAIN}", f"%narrow = {between}")


def in_place(text: str, is_read_so: bool = False) -> str:
    """Returns the module after the change."""
    with make_context():
        module = ir.Module.parse(text)
        for stack in copy_no_stacks(module.operation, []):
            if is_read_so:
                read_in_place(stack)
        assert module.operation.verify()
        return str(module)


def test_a_part_is_written_into_the_array():
    text = in_place(written_loop())
    assert re.search(r"stablehlo\.while\(.*%iterArg_\d+ = %arg0\)", text)
    update = re.search(r"%(\d+) = stablehlo\.dynamic_update_slice (%iterArg_\d+), %\d+, %iterArg, %c, (%\S+) :.*", text)
    assert update and "tensor<1x1x2xf32>" in update[0]
    assert "sharding_constraint" not in text  # of the slice that is written to the stack and nowhere else
    assert re.search(r"dynamic_slice %arg0, %iterArg, %c, %c, sizes = \[1, 1, 8\]", text)  # for who reads it


def test_the_slice_is_read_from_where_it_is_written():
    text = in_place(written_loop(), is_read_so=True)
    update = re.search(r"%(\d+) = stablehlo\.dynamic_update_slice", text)
    assert re.search(rf"dynamic_slice %{update[1]}, %iterArg, %c, %c, sizes = \[1, 1, 8\]", text)
    assert text.count("dynamic_update_slice") == 1 and text.count("dynamic_slice ") == 1


def test_the_slice_before_it_is_read_from_the_array_too():
    text = in_place(written_loop(WRITTEN.replace("negate %made", "add %made, %narrow")), is_read_so=True)
    assert len(re.findall(r"dynamic_slice %(?:\d+|iterArg_\d+), %iterArg", text)) == 2
    assert "dynamic_slice %arg0" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"trips": "4"},
        {"start": "1", "trips": "6"},
        {"read": "%next, %zero, %zero"},
        {"written": "%next, %zero, %zero"},
        {"behind": f"%left = stablehlo.negate %new : {STACK}"},
    ],
)
def test_other_stacks_are_written_as_they_were(changes):
    assert "= %arg1)" in in_place(written_loop(**changes))


def test_dimensions_of_one_element_may_lie_elsewhere():
    turned = WRITTEN.replace("1x8xf32", "8x1xf32").replace("1x2xf32", "2x1xf32").replace("%zero, %at", "%at, %zero")
    assert "= %arg0)" in in_place(written_loop(turned.replace("1x8x1xf32", "1x1x8xf32")))


def test_a_slice_in_another_shape_is_written_as_it_was():
    folded = WRITTEN.replace("tensor<1x8xf32>", "tensor<2x4xf32>")
    assert "= %arg1)" in in_place(written_loop(folded))


def test_a_part_that_is_computed_of_the_slice_is_written_as_it_was():
    ends = "[0:1, 0:2] : (tensor<1x8xf32>) -> tensor<1x2xf32>"
    computed = f"stablehlo.slice %narrow {ends}\n    %part = stablehlo.negate %own : tensor<1x2xf32>"
    text = written_loop(
        WRITTEN.replace("%part = stablehlo.constant dense<1.0> : tensor<1x2xf32>", f"%own = {computed}")
    )
    assert "= %arg1)" in in_place(text)


def test_an_array_that_the_loop_reads_elsewhere_is_copied():
    read = "%first = stablehlo.slice %stack [0:1, 0:1, 0:8] : (tensor<5x1x8xf32>) -> tensor<1x1x8xf32>"
    text = written_loop(WRITTEN.replace("%read =", f"{read}\n    %read ="))
    assert "= %arg1)" in in_place(text)


def test_a_stack_whose_beginning_is_read_is_written_as_it_was():
    read = f"%begun = stablehlo.negate %copy : {STACK}"
    assert "= %arg1)" in in_place(written_loop(WRITTEN.replace("%read =", f"{read}\n    %read =")))


def test_of_two_stacks_of_the_same_slices_one_is_written_in_place():
    text = written_loop()
    update = re.search(r"%new = stablehlo.dynamic_update_slice.*\n.*", text)[0]
    second = update.replace("%new", "%more").replace("%copy", "%other_copy")
    text = text.replace("stablehlo.return %next, %new", f"{second}\n    stablehlo.return %next, %new, %more")
    text = text.replace(f"tensor<i32>, {STACK}\n", f"tensor<i32>, {STACK}, {STACK}\n").replace("%0:2", "%0:3")
    text = text.replace("%copy = %none)", "%copy = %none, %other_copy = %none)")
    after = in_place(text, is_read_so=True)
    assert after.count("= %arg0,") + after.count("= %arg0)") == 1 and after.count("dynamic_update_slice") == 2


def test_a_part_without_elements_is_written_as_it_was():
    empty = WRITTEN.replace("tensor<1x2xf32>", "tensor<0x8xf32>").replace("dense<1.0>", "dense<>")
    assert "= %arg1)" in in_place(written_loop(empty))


def test_indices_of_another_type_are_written_as_they_were():
    wide = WRITTEN.replace("%zero, %at", "%wide, %wide").replace(
        "tensor<i32>, tensor<i32>)", "tensor<i64>, tensor<i64>)"
    )
    more = "%wide = stablehlo.constant dense<0> : tensor<i64>\n    "
    assert "= %arg1)" in in_place(written_loop(wide, more=more))
