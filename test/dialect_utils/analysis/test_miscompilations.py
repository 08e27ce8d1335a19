# SPDX-License-Identifier: Apache-2.0
"""The table of miscompilations: an op in a layout meets the row of the table that describes it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.dialect_utils.analysis import miscompilations
from reshard.dialect_utils.analysis.miscompilations import AtOp, miscompilation_of
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

ROOT = Path(__file__).resolve().parents[3]
MESH = Mesh((("x", 4), ("y", 2)))
SCATTER = """
%r = "stablehlo.scatter"(%0, %1, %2) <{{indices_are_sorted = false, unique_indices = false,
  scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
^bb0(%p: tensor<f32>, %q: tensor<f32>): {body}
}}) : (tensor<16x12xf32>, tensor<10x1xi32>, tensor<10x12xf32>) -> tensor<16x12xf32>
return %r : tensor<16x12xf32>
"""
DYNAMIC_SLICE = """
%r = stablehlo.dynamic_slice %0, {start}, sizes = [8] : (tensor<16xf32>, tensor<i32>) -> tensor<8xf32>
return %r : tensor<8xf32>
"""
PAD = """
%c = stablehlo.constant dense<1.0> : tensor<f32>
%r = stablehlo.pad %0, %c, low = [1], high = [0], interior = [{interior}] : (tensor<16xf32>, tensor<f32>) -> tensor<{size}xf32>
return %r : tensor<{size}xf32>
"""  # noqa: E501


def row_met(types: str, result: str, body: str, name: str, *layouts: str) -> str:
    """Returns the row that the op called `name` meets; layouts are those of its operands and of its result."""
    arguments = ", ".join(f"%{at}: {each}" for at, each in enumerate(types.split()))
    text = f"func.func @main({arguments}) -> {result} {{ {body} }}"
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        block = module.body.operations[0].operation.regions[0].blocks[0]
        op = next(each.operation for each in block.operations if each.operation.name == name)
        *operands, given = map(Sharding.parse, layouts)
        found = miscompilation_of(AtOp(op, MESH, operands, [given]))
        return found.name if found else ""


_SCATTER_TYPES = "tensor<16x12xf32> tensor<10x1xi32> tensor<10x12xf32>"
_MINIMUM = "%s = stablehlo.minimum %p, %q : tensor<f32> stablehlo.return %s : tensor<f32>"
_ADD = "%s = stablehlo.add %p, %q : tensor<f32> stablehlo.return %s : tensor<f32>"
_REPLACE = "stablehlo.return %q : tensor<f32>"


@pytest.mark.parametrize(
    "body, indices, updates, row",
    [
        (_MINIMUM, '[{"x"}, {}]', "[{}, {}]", "uneven scatter"),
        (_MINIMUM, "[{}, {}]", '[{"x"}, {}]', "uneven scatter"),
        (_MINIMUM, '[{"y"}, {}]', '[{"y"}, {"x"}]', ""),  # 10 divides by 2, and windows may be split
        (_ADD, '[{"x"}, {}]', '[{"x"}, {}]', "uneven scatter"),  # y is left
        (_ADD, '[{"x"}, {}]', '[{"x"}, {"y"}]', "uneven scatter"),
        (_ADD, '[{"x", "y"}, {}]', '[{"x", "y"}, {}]', ""),
        (_ADD, '[{"y"}, {}]', '[{"y"}, {}]', ""),  # 10 divides by 2
        (_REPLACE, '[{"x"}, {}]', '[{"x"}, {}]', ""),
    ],
)
def test_a_scatter_is_not_to_be_held_in_uneven_parts_of_its_indices_unless_all_axes_split_them_and_zeros_change_nothing(
    body, indices, updates, row
):
    text = SCATTER.format(body=body)
    assert (
        row_met(
            _SCATTER_TYPES, "tensor<16x12xf32>", text, "stablehlo.scatter", "[{}, {}]", indices, updates, "[{}, {}]"
        )
        == row
    )


@pytest.mark.parametrize(
    "start, layout, row",
    [
        ("%1", '[{"x"}]', "clamped starts"),
        ("%1", "[{}]", ""),
        ("%c", '[{"x"}]', ""),
        ("%d", '[{"x"}]', "clamped starts"),
    ],
)
def test_a_slice_whose_start_may_be_clamped_is_not_to_be_split(start, layout, row):
    constants = "%c = stablehlo.constant dense<8> : tensor<i32> %d = stablehlo.constant dense<9> : tensor<i32>"
    body = constants + DYNAMIC_SLICE.format(start=start)
    types = "tensor<16xf32> tensor<i32>"
    assert row_met(types, "tensor<8xf32>", body, "stablehlo.dynamic_slice", "[{}]", "[]", layout) == row


@pytest.mark.parametrize("interior, size, row", [(1, 32, "elements spread apart"), (0, 17, "")])
def test_interior_padding_of_a_split_dimension(interior, size, row):
    body = PAD.format(interior=interior, size=size)
    assert row_met("tensor<16xf32>", f"tensor<{size}xf32>", body, "stablehlo.pad", '[{"x"}]', "[]", '[{"x"}]') == row


@pytest.mark.parametrize("written, row", [("%a", "update in place"), ("%1", "")])
def test_an_update_that_is_computed_from_what_it_is_written_into(written, row):
    body = "%a = stablehlo.slice %0 [0:8] : (tensor<16xf32>) -> tensor<8xf32> "
    body += (
        f"%r = stablehlo.dynamic_update_slice %0, {written}, %2 : (tensor<16xf32>, tensor<8xf32>, tensor<i32>) "
        f"-> tensor<16xf32> "
    )
    body += "return %r : tensor<16xf32>"
    types = "tensor<16xf32> tensor<8xf32> tensor<i32>"
    layouts = '[{"x"}]', "[{}]", "[]", '[{"x"}]'
    assert row_met(types, "tensor<16xf32>", body, "stablehlo.dynamic_update_slice", *layouts) == row


@pytest.mark.parametrize(
    "start, size, before, after, row",
    [
        ("%2", 1, '[{"x"}]', '[{"x"}]', "lost updates"),
        ("%2", 1, "[{}]", '[{"x"}]', "lost updates"),
        ("%2", 1, "[{}]", "[{}]", ""),
        ("%2", 2, '[{"x"}]', '[{"x"}]', ""),
        ("%last", 1, '[{"x"}]', '[{"x"}]', ""),
        ("%behind", 1, '[{"x"}]', '[{"x"}]', "lost updates"),
        ("%clamped", 1, '[{"x"}]', '[{"x"}]', ""),
    ],
)
def test_an_update_of_one_element_that_may_lie_outside_is_lost(start, size, before, after, row):
    kind = f"(tensor<16xf32>, tensor<{size}xf32>, tensor<i32>) -> tensor<16xf32>"
    body = "%last = stablehlo.constant dense<15> : tensor<i32> %behind = stablehlo.constant dense<16> : tensor<i32> "
    body += "%c = stablehlo.constant dense<0> : tensor<i32> %clamped = stablehlo.clamp %c, %2, %last : tensor<i32> "
    body += f"%r = stablehlo.dynamic_update_slice %0, %1, {start} : {kind} return %r : tensor<16xf32>"
    types = f"tensor<16xf32> tensor<{size}xf32> tensor<i32>"
    layouts = before, "[{}]", "[]", after
    assert row_met(types, "tensor<16xf32>", body, "stablehlo.dynamic_update_slice", *layouts) == row


@pytest.mark.parametrize(
    "element, size, layout, row",
    [
        ("bf16", 4096, '[{"x"}]', "numbers rounded twice"),
        ("bf16", 4096, "[{}]", ""),
        ("bf16", 512, '[{"x"}]', ""),  # 128 numbers from 0, 128, 256 and 384 on
        ("bf16", 1028, '[{"x"}]', "numbers rounded twice"),  # 257 numbers
        ("bf16", 2046, '[{"x", "y"}]', ""),  # 256 numbers, in the last part fewer
        ("bf16", 516, '[{"x"}]', "numbers rounded twice"),  # 129 numbers; the last part begins at 387
        ("f16", 4096, '[{"x"}]', ""),
        ("f16", 16384, '[{"x"}]', "numbers rounded twice"),
        ("f8E4M3FN", 64, '[{"x"}]', ""),
        ("f8E5M2", 64, '[{"x"}]', "numbers rounded twice"),
        ("f32", 1 << 24, '[{"x"}]', ""),
        ("complex<f32>", 1 << 27, '[{"x"}]', "numbers rounded twice"),
        ("i8", 4096, '[{"x"}]', ""),
        ("ui32", 4096, '[{"x"}]', ""),
    ],
)
def test_an_iota_whose_parts_have_numbers_or_starts_that_its_type_does_not_hold(element, size, layout, row):
    kind = f"tensor<{size}x{element}>"
    body = f"%r = stablehlo.iota dim = 0 : {kind} return %r : {kind}"
    assert row_met("", kind, body, "stablehlo.iota", layout) == row


def test_another_dimension_of_an_iota_may_be_split():
    body = "%r = stablehlo.iota dim = 1 : tensor<4096x4096xbf16> return %r : tensor<4096x4096xbf16>"
    assert not row_met("", "tensor<4096x4096xbf16>", body, "stablehlo.iota", '[{"x"}, {}]')
    assert row_met("", "tensor<4096x4096xbf16>", body, "stablehlo.iota", '[{}, {"x"}]')


def test_every_row_names_a_condition_a_reason_and_a_reproducer():
    for row in miscompilations.TABLE:
        assert row.condition and row.reason and row.versions and row.reproducer
        assert row.is_avoided or row.ops <= miscompilations.OPS


@pytest.mark.slow
@pytest.mark.parametrize("row", miscompilations.TABLE, ids=lambda row: row.name)
def test_the_reproducer_of_a_row_shows_it_still(row):
    """If a new jaxlib computes a row's program rightly, the row should be removed."""
    if compat.jaxlib_version() not in row.versions.split(", "):
        # The table makes no claim about other versions; the atlas tests those.
        pytest.skip(f"was seen with jaxlib {row.versions}")
    assert "entries are wrong" in said_by_the_script_of(ROOT / row.reproducer)


@pytest.mark.slow
def test_shared_windows_are_still_confused():
    if not compat.jaxlib_version().startswith("0.10."):
        pytest.skip("was seen with jaxlib 0.10.2")  # jaxlib 0.12.0.1 is right: 0 of 938 cases of the atlas are wrong
    assert "entries are wrong" in said_by_the_script_of(ROOT / "docs" / "upstream" / "shared-windows.md")


def said_by_the_script_of(report: Path) -> str:
    """Returns the output of the Python program in a report."""
    script = re.search(r"```python\n(.*?)```", report.read_text(), re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
