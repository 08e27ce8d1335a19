# SPDX-License-Identifier: Apache-2.0
"""The analysis of a module on its clone: the clone stays valid, and its ops are traced back to the module's."""

import re
import sys
from pathlib import Path

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.prepared_clone import prepare
from reshard.dialect_utils.preparation.serials import ID, serial_of, tagged_clone
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

MESH = 'sdy.mesh @mesh = <["x"=3, "y"=4]>'
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}]>}'


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def test_a_constant_with_a_mark_of_ours_is_no_instance_of_another_op():
    analysis = analyse(
        ir.Module.parse(f"""{MESH}
      func.func public @main() -> tensor<12xi32> {{
        %0 = stablehlo.constant {{reshard.id = 1 : i64}} dense<1> : tensor<12xi32>
        return %0 : tensor<12xi32>
      }}""")
    )
    assert [op.name for op in analysis.prepared_ops] == ["func.func", "func.return"]
    assert [analysis.originals[index].name for index in analysis.origin] == ["func.func", "func.return"]


def test_what_is_written_from_the_clone_has_the_locations_of_the_module():
    module = ir.Module.parse(
        f"""{MESH}
      func.func public @main(%arg0: tensor<12x12xf32> {SPLIT.replace("[{", "[{}, {")}) -> (tensor<f32> loc("result")) {{
        %0 = stablehlo.tanh %arg0 : tensor<12x12xf32> loc("model.py":5:1)
        %1 = stablehlo.constant dense<0.0> : tensor<f32>
        %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [0, 1] : (tensor<12x12xf32>, tensor<f32>) -> tensor<f32>
        return %2 : tensor<f32>
      }}""".replace(' loc("result")', "")  # noqa: E501
    )
    Pipeline.emitting("local", {}).run(module, Session())
    text = module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)
    assert "sdy.manual_computation" in text and '"model.py":5:1' in text
    assert ID not in text


def modules_in_files() -> list:
    """Returns the modules of the examples and of the tests of structures, by name."""
    root = Path(__file__).resolve().parents[3]
    paths = [*sorted((root / "examples").glob("*.mlir")), *sorted((root / "test" / "passes").glob("**/*.mlir"))]
    texts = [(path, text) for path in paths for text in re.split(r"^// -----$", path.read_text(), flags=re.MULTILINE)]
    return [pytest.param(text, id=f"{path.stem}-{number}") for number, (path, text) in enumerate(texts)]


@pytest.mark.parametrize("text", modules_in_files())
def test_the_clone_is_valid_although_only_stand_ins_for_dynamic_shapes_have_it_verified(text):
    try:
        module = ir.Module.parse(text)
        analysis = analyse(module)
    except (ir.MLIRError, DiagnosedError):  # these files test modules that are refused
        return
    assert analysis.explicit.verify() and analysis.prepared.verify()
    assert len(analysis.origin) == len(analysis.prepared_ops)
    assert [serial_of(op) for op in analysis.prepared_ops] == list(range(len(analysis.origin)))
    for op, index in zip(analysis.prepared_ops, analysis.origin, strict=True):
        if index is not None and not op.name.startswith("stablehlo.") and not op.name.startswith("chlo."):
            assert analysis.originals[index].name == op.name


def test_regions_may_be_nested_deeper_than_python_recurses():
    depth = sys.getrecursionlimit() + 100
    begin = '"stablehlo.if"(%p) ({\n'
    end = "}, { stablehlo.return %x : tensor<4xf32> }) : (tensor<i1>) -> tensor<4xf32>\n"
    text = "".join(f"%r{level} = {begin}" for level in range(depth)) + "stablehlo.return %x : tensor<4xf32>\n" + end
    text += "".join(f"stablehlo.return %r{level} : tensor<4xf32>\n{end}" for level in range(depth - 1, 0, -1))
    module = ir.Module.parse(f"""
      func.func @main(%p: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {{
        {text}
        %sum = stablehlo.add %r0, %x : tensor<4xf32>
        return %sum : tensor<4xf32>
      }}""")
    analysis = prepare(*tagged_clone(module))
    assert len(analysis.prepared_ops) == 3 + depth + 2 * depth
