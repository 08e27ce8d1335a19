# SPDX-License-Identifier: Apache-2.0
"""Unsharded, watched and replayed modules, and the ops in them that round."""

import pytest

from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.compare.instrumented import ARGUMENT, OPERAND, RESULT, Key, NoUnshardedForm
from reshard.dialect_utils.compare.rounding import Rounding, ops_behind, roundings_of_results
from reshard.dialect_utils.platform.bindings import ir, make_context

TEXT = """
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%arg0: tensor<8x64xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<64x4xbf16>) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<8x64xf32>) {
  %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<8x64xf32>
  %2 = stablehlo.convert %arg1 : (tensor<64x4xbf16>) -> tensor<64x4xf32>
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x4xf32>) -> tensor<8x4xf32>
  return %3, %1 : tensor<8x4xf32>, tensor<8x64xf32>
}
"""  # noqa: E501


@pytest.fixture
def module():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(TEXT)
        watched_modules.number_ops(module)
        yield module


def test_an_unsharded_module_keeps_all_but_shardings(module):
    text = watched_modules.without_numbers(watched_modules.unsharded(module))
    assert "sdy" not in text and watched_modules.NUMBER not in text
    assert "jax.buffer_donor = true" in text and text.count("stablehlo.") == 3


def test_numbers_leave_no_trace(module):
    assert watched_modules.without_numbers(module) == str(ir.Module.parse(TEXT))


@pytest.mark.parametrize(
    "op",
    [
        '"stablehlo.all_reduce"(%arg0) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): stablehlo.return %a : tensor<f32> }) '
        "{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<8xf32>) -> tensor<8xf32>",
        "sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={} "
        "(%a: tensor<8xf32>) "
        "{ sdy.return %a : tensor<8xf32> } : (tensor<8xf32>) -> tensor<8xf32>",
    ],
)
def test_what_means_something_on_several_devices_only_has_no_unsharded_form(op):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(
            f'sdy.mesh @mesh = <["x"=2]>\nfunc.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {{\n%0 = {op}\n'
            f"return %0 : tensor<8xf32>\n}}"
        )
        with pytest.raises(NoUnshardedForm, match="means something on several devices only"):
            watched_modules.unsharded(module)


def test_constraints_are_seen_through_in_the_reference_and_watched_in_the_module(module):
    negate, convert, dot, end = ops = watched_modules.watched_ops(watched_modules.unsharded(module))
    assert [op.name for op in ops] == ["stablehlo.negate", "stablehlo.convert", "stablehlo.dot_general", "func.return"]
    assert negate.sources == (Key(ARGUMENT, 0, 0),) and dot.sources == (negate.results[0], convert.results[0])
    watched = watched_modules.watched(module, [negate, convert, dot])
    arrives = Key(OPERAND, dot.number, 0)  # the operand is the constraint's result
    assert watched.keys == (*negate.results, *convert.results, arrives, *dot.results)
    assert (Key(OPERAND, dot.number, 1), convert.results[0]) in watched.aliases
    assert "sdy.sharding_constraint" in watched.text and watched_modules.NUMBER not in watched.text


def test_a_replay_takes_what_was_recorded(module):
    reference = watched_modules.unsharded(module)
    *ops, _ = watched_modules.watched_ops(reference)
    arrives = Key(OPERAND, ops[2].number, 0)
    replayed = watched_modules.replayed(reference, ops, [*ops[1].results, arrives])
    assert replayed.arguments == (Key(ARGUMENT, 0, 0), Key(ARGUMENT, 0, 1), *ops[1].results, arrives)
    assert [key.kind for key in replayed.results] == [RESULT] * 3
    assert "stablehlo.dot_general %arg3, %arg2" in replayed.text


def test_what_rounds_is_what_a_result_depends_on(module):
    first, second = roundings_of_results(watched_modules.unsharded(module))
    assert first == Rounding(2**-7, 64) and second == Rounding(2**-23, 0)
    assert [op.name for op in ops_behind(1, watched_modules.unsharded(module))] == ["stablehlo.negate"]


@pytest.mark.parametrize(
    ("op", "result", "terms"),
    [
        (
            "stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, "
            "tensor<f32>) -> tensor<8xf32>",
            "8xf32",
            64,
        ),
        ("stablehlo.transpose %a, dims = [1, 0] : (tensor<8x64xf32>) -> tensor<64x8xf32>", "64x8xf32", 0),
        (
            "stablehlo.fft %c, type = FFT, length = [16] : (tensor<16xcomplex<f32>>) -> tensor<16xcomplex<f32>>",
            "16xcomplex<f32>",
            16,
        ),
    ],
)
def test_terms_of_sums(op, result, terms):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(
            f"func.func @main(%a: tensor<8x64xf32>, %z: tensor<f32>, %c: tensor<16xcomplex<f32>>) -> "
            f"tensor<{result}> {{\n"
            f"%0 = {op}\nreturn %0 : tensor<{result}>\n}}"
        )
        assert roundings_of_results(module) == [Rounding(2**-23, terms)]
