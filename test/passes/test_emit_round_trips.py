# SPDX-License-Identifier: Apache-2.0
"""A written module is read back unchanged in every form of file; a second run changes nothing.

The ops that are not rewritten stay as they were.
"""

import functools
import re
from pathlib import Path

import pytest

from reshard.dialect_utils.emission.sdy_chains import COLLECTIVES
from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.ir.functions import is_public
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_around, ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import SHARDING
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.mlir"))
SITES = (
    "import-gspmd,find-mismatches,plan-sites{policy=always layout-check=off},"
    "synthesize-collectives{emit=%s},strip-findings"
)
EMISSIONS = {"manual": SITES % "manual", "sdy": SITES % "sdy", "local": "reshard-local"}

FOR_TPUS = "convert-to-local{platform=tpu}"

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
every_emission = pytest.mark.parametrize("emission", EMISSIONS)


@functools.cache
def written(path: Path, emission: str) -> str:
    """Returns an example after a run, as text with locations."""
    return run_again(path.read_text(), emission)


def run_again(text: str, emission: str) -> str:
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        Pipeline.parse(EMISSIONS.get(emission, FOR_TPUS)).run(module, Session())
        assert module.operation.verify()
        return as_text(module)


def as_text(module: ir.Module) -> str:
    return module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)


@pytest.mark.mostly_slow
@every_emission
@every_example
def test_every_form_reloads_to_the_same_module(path, emission, tmp_path):
    with make_context() as context, ir.Location.unknown(context):
        for form in (module_files.TEXT, module_files.BYTECODE, module_files.PORTABLE):
            module = ir.Module.parse(written(path, emission))
            expected = content(module)
            stored = tmp_path / form
            stored.write_bytes(module_files.to_bytes(module, form, debug_info=True))
            (chunk,) = ModuleFile.read(str(stored)).chunks(False)
            assert content(chunk.parse(context)) == expected, form


def content(module: ir.Module) -> tuple[str, list[str]]:
    """Returns the module in generic form and the location of each op, without the parts that some forms cannot hold.

    MLIR's text leaves out the locations of a loop's arguments. StableHLO's portable form leaves out the type of a
    channel and default values.
    """
    text = module.operation.get_asm(print_generic_op_form=True)
    for pattern in LEFT_OUT:
        text = re.sub(pattern, "", text)
    return text, [str(op.location) for op in ops_in(module.operation)]


LEFT_OUT = (
    r"(?<=channel_handle<handle = \d), type = \d|(?<=channel_handle<handle = \d\d), type = \d",
    r"indices_are_sorted = false, |(, )?unique_indices = false",
    r"base_dilations = array<i64: 1(, 1)*>, |(, )?(window_dilations|window_strides) = array<i64: 1(, 1)*>(?=[,}])",
    r", (?=window_dimensions)|(?<=<{), ",
    r"(, )?precision_config = \[#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>\]",
)


@every_emission
@every_example
def test_a_second_run_changes_nothing(path, emission):
    once = written(path, emission)
    assert run_again(once, emission) == once


def test_a_second_run_for_tpus_changes_nothing():
    """A product that is used transposed names its operands the other way round there, at once."""
    text = """
    sdy.mesh @mesh = <["x"=4]>
    func.func public @main(%a: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                           %b: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> (tensor<16x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %0 = stablehlo.dot_general %b, %a, contracting_dims = [0] x [0]
        : (tensor<64x512xf32>, tensor<64x16xf32>) -> tensor<512x16xf32>
      %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<512x16xf32>) -> tensor<16x512xf32>
      return %1 : tensor<16x512xf32>
    }"""
    once = run_again(text, "tpu")
    assert "reduce_scatter" in once and "stablehlo.transpose" not in once
    assert run_again(once, "tpu") == once and "stablehlo.transpose" in run_again(text, "local")


@pytest.mark.mostly_slow
@pytest.mark.parametrize("emission", ["manual", "sdy"])
@every_example
def test_what_is_not_rewritten_stays(path, emission):
    with make_context() as context, ir.Location.unknown(context):
        modules = [ir.Module.parse(text) for text in (path.read_text(), written(path, emission))]
        before, after = map(outside, modules)
        assert [described(op, before) for op in before] == [described(op, after) for op in after]


def test_local_keeps_the_functions():
    for path in EXAMPLES:
        with make_context() as context, ir.Location.unknown(context):
            before, after = (ir.Module.parse(text) for text in (path.read_text(), written(path, "local")))
            signatures = [
                [described(op, {}) for op in module.body.operations if is_public_function(op)]
                for module in (before, after)
            ]
            assert signatures[0] == signatures[1]


def is_public_function(op) -> bool:
    return op.operation.name == "func.func" and is_public(op.operation)


def is_ours(op: ir.Operation) -> bool:
    return any(str(each.location).startswith('loc("reshard/') for each in (op, *ops_around(op)))


def changes_a_layout_alone(op: ir.Operation) -> bool:
    """Returns whether a rewrite may add or remove the op: a constraint, a collective of Shardy or an island of ours."""
    return op.name in CONSTRAINTS | COLLECTIVES or op.name == "sdy.manual_computation" and is_ours(op)


def outside(module: ir.Module) -> dict[ir.Operation, int]:
    """Returns a number for each op of a module that a rewrite leaves alone."""
    kept = [op for op in ops_in(module.operation) if not is_ours(op) and not changes_a_layout_alone(op)]
    return {op: number for number, op in enumerate(kept)}


def described(op, numbers) -> tuple:
    """Returns all properties of an op except the layouts of its results, which a rewrite may state."""
    op = op.operation
    kept = [name for name in names(op) if name not in (SHARDING, "res_attrs", "arg_attrs")]
    if op.name == "stablehlo.constant":  # the bindings cannot read complex ones
        attributes = str(op).partition(" = ")[2]
    else:
        attributes = {name: str(op.attributes[name]) for name in kept}
    stated = (
        []
        if "arg_attrs" not in op.attributes
        else [stripped(each) for each in ir.ArrayAttr(op.attributes["arg_attrs"])]
    )
    types = [str(result.type) for result in op.results]
    operands = [origin(value, numbers) for value in op.operands] if numbers else ()
    return op.name, attributes, stated, types, str(op.location), operands


def names(op: ir.Operation) -> list[str]:
    return [each if isinstance(each, str) else each.name for each in op.attributes]


def stripped(attributes) -> dict[str, str]:
    return {each.name: str(each.attr) for each in ir.DictAttr(attributes) if each.name != SHARDING}


def origin(value: ir.Value, numbers) -> tuple:
    """Returns the op and result, or the block argument, of a value; skips islands and constraints on the way."""
    while not isinstance(value.owner, ir.Block) and changes_a_layout_alone(value.owner.operation):
        value = value.owner.operation.operands[0]
    if isinstance(value.owner, ir.Block):
        return "argument", ir.BlockArgument(value).arg_number, numbers[value.owner.owner.operation]
    return numbers[value.owner.operation], ir.OpResult(value).result_number
