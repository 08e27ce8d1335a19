# SPDX-License-Identifier: Apache-2.0
"""Arrays of which a part is written, and that are read in smaller tiles than they are needed in besides."""

import re

import pytest

from reshard.dialect_utils.carried.read_tiles import read_in_tiles
from reshard.dialect_utils.platform.bindings import ir, make_context

ARRAY, PART = "tensor<16x512xf32>", "tensor<16x1xf32>"
WHOLE, ROWS, COLUMNS, HALVES = "[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]', '[{"y"}, {}]'


def module(held: str = WHOLE, read: str = ROWS, is_returned: bool = True, between: str = "") -> str:
    value = "%again" if between else "%new"
    result, given = (f"-> {ARRAY}", f"return {value} : {ARRAY}") if is_returned else ("", "return")
    return f"""
sdy.mesh @mesh = <["x"=4, "y"=1]>
func.func @main(%a: {ARRAY}, %p: {PART} {{sdy.sharding = #sdy.sharding<@mesh, {ROWS}>}}, %i: tensor<i32>) {result} {{
  %new = stablehlo.dynamic_update_slice %a, %p, %i, %i {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {held}>]>}}
    : ({ARRAY}, {PART}, tensor<i32>, tensor<i32>) -> {ARRAY}
  {between}
  %tiles = sdy.reshard {value} <@mesh, {read}> : {ARRAY}
  %sine = stablehlo.sine %tiles : {ARRAY}
  {given}
}}"""


def changed(text: str) -> tuple[int, list[str], int]:
    """Returns how many ops write a part then, the layouts to which values are converted, and the number of notes."""
    with make_context():
        parsed, notes = ir.Module.parse(text), []
        read_in_tiles(parsed.operation, notes)
        assert parsed.operation.verify()
        after = str(parsed)
    return after.count("dynamic_update_slice"), re.findall(r"sdy\.reshard %\S+ <@mesh, (\[.*?\])>", after), len(notes)


def test_the_part_is_written_into_the_smaller_tiles_as_well():
    assert changed(module()) == (2, [ROWS], 1)  # of the array; the part is in that layout


def test_an_op_that_makes_tiles_which_are_gathered_is_written_apart_for_them():
    gathered = f"%again = sdy.reshard %new <@mesh, {WHOLE}> : {ARRAY}"
    assert changed(module(held=ROWS, between=gathered)) == (2, [WHOLE, ROWS], 1)


@pytest.mark.parametrize(
    "text",
    [
        module(is_returned=False),  # nobody needs the whole array
        module(read=COLUMNS),  # the column that is written is of one device
        module(read=HALVES),  # tiles of the same size
        module(held=ROWS, read=WHOLE),  # larger tiles
    ],
)
def test_other_arrays_are_read_as_they_are(text):
    count, _, noted = changed(text)
    assert (count, noted) == (1, 0)


def test_an_array_that_a_loop_takes_is_not_written_again_in_each_turn():
    read = f"%tiles = sdy.reshard %new <@mesh, {ROWS}> : {ARRAY}\n  %sine = stablehlo.sine %tiles : {ARRAY}"
    loop = f"""%end = stablehlo.while(%k = %i) : tensor<i32> cond {{
    %more = stablehlo.compare LT, %k, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    {read}
    stablehlo.return %k : tensor<i32>
  }}"""
    count, _, noted = changed(module().replace(read, loop))
    assert (count, noted) == (1, 0)
