# SPDX-License-Identifier: Apache-2.0
"""Starts of the program's slices are clamped, unless they are known to lie inside."""

import pytest

from reshard.dialect_utils.emission.slice_starts import put_starts_in_range
from reshard.dialect_utils.platform.bindings import ir, make_context

_ISLAND = """%r = sdy.manual_computation({taken}) in_shardings=[<@mesh, [{{}}]>] out_shardings=[<@mesh, [{{"x"}}]>]
    manual_axes={{"x"}} (%t: tensor<8xf32>) {{
    %p = stablehlo.slice %t [0:4] : (tensor<8xf32>) -> tensor<4xf32>
    sdy.return %p : tensor<4xf32>
  }} : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>"""
_SLICE = (
    "{to} = stablehlo.dynamic_slice %a, {start}, sizes = [8] : (tensor<{size}xf32>, tensor<{kind}>) -> tensor<8xf32>"
)


def _main(body: str, size: int = 16, kind: str = "i32", functions: str = "") -> str:
    return f"""sdy.mesh @mesh = <["x"=2]>
    func.func public @main(%a: tensor<{size}xf32>, %i: tensor<{kind}>) -> tensor<8xf32> {{
      %zero = stablehlo.constant dense<0> : tensor<{kind}>
      {body}
    }}
    {functions}"""


def clamped(body: str, size: int = 16, kind: str = "i32", functions: str = "") -> str:
    """Returns a module with a slice and an island, after starts were clamped; checks the number of slices."""
    text = _main(body, size, kind, functions)
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        count = put_starts_in_range(module.operation)
        assert module.operation.verify()
        assert str(module).count("stablehlo.clamp") == count
        return str(module)


def sliced(start: str = "%i", size: int = 16, kind: str = "i32") -> str:
    return _SLICE.format(to="%s", start=start, size=size, kind=kind)


def test_a_start_that_may_lie_outside_is_clamped():
    assert "stablehlo.clamp" in clamped(f"{sliced()}\n{_ISLAND.format(taken='%s')}")


@pytest.mark.parametrize("start, size", [("%zero", 16), ("%i", 8)])
def test_a_start_that_lies_inside_stays(start, size):
    text = clamped(f"{sliced(start, size)}\n{_ISLAND.format(taken='%s')}", size)
    assert ("stablehlo.clamp" in text) == (start == "%i" and size > 8)


def test_whatever_lies_between_is_taken_away_by_xla():
    moved = "%m = stablehlo.multiply %s, %s : tensor<8xf32>"
    assert "stablehlo.clamp" in clamped(f"{sliced()}\n{moved}\n{_ISLAND.format(taken='%m')}")


def test_a_clamp_of_the_program_counts_by_its_bounds():
    for most, count in ((8, 0), (9, 1)):
        bounds = f"%most = stablehlo.constant dense<{most}> : tensor<i32>"
        start = f"{bounds}\n%j = stablehlo.clamp %zero, %i, %most : tensor<i32>"
        with make_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(_main(f"{start}\n{sliced('%j')}\n{_ISLAND.format(taken='%s')}"))
            assert put_starts_in_range(module.operation) == count


def test_a_gather_of_one_window_is_a_slice():
    gather = """%j = stablehlo.reshape %i : (tensor<i32>) -> tensor<1xi32>
      %s = "stablehlo.gather"(%a, %j) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], start_index_map = [0]>,
          slice_sizes = array<i64: 8>}> : (tensor<16xf32>, tensor<1xi32>) -> tensor<8xf32>"""
    assert "dense<8> : tensor<1xi32>" in clamped(f"{gather}\n{_ISLAND.format(taken='%s')}")


def test_slices_of_ours_stay():
    ours = sliced() + ' loc("reshard/0/slice"("a.py":1:1))'
    assert "stablehlo.clamp" not in clamped(f"{ours}\n{_ISLAND.format(taken='%s')}")


def test_narrow_starts_are_widened_first():
    text = clamped(f"{sliced(size=1000, kind='i8')}\n{_ISLAND.format(taken='%s')}", size=1000, kind="i8")
    assert "stablehlo.convert" in text and "dense<992> : tensor<i32>" in text


@pytest.mark.parametrize("size, widened", [(255, False), (300, True)])
def test_a_start_inside_is_widened_if_xla_would_clamp_it_in_too_few_bits(size, widened):
    inside = f"%j = stablehlo.minimum %zero, %i : tensor<ui8>\n{sliced('%j', size, 'ui8')}"
    text = clamped(f"{inside}\n{_ISLAND.format(taken='%s')}", size, "ui8")
    assert ("stablehlo.convert" in text) == widened


def test_slices_are_found_behind_moves_and_calls():
    inner = f"""func.func private @part(%a: tensor<16xf32>, %i: tensor<i32>) -> tensor<8xf32> {{
      {sliced()} return %s : tensor<8xf32>
    }}"""
    body = """%c = func.call @part(%a, %i) : (tensor<16xf32>, tensor<i32>) -> tensor<8xf32>
      %d = sdy.sharding_constraint %c <@mesh, [{}]> : tensor<8xf32>
      %f = func.call @convert(%d) : (tensor<8xf32>) -> tensor<8xf32>
      return %f : tensor<8xf32>"""
    outer = f"func.func private @convert(%b: tensor<8xf32>) -> tensor<8xf32> {{ {_ISLAND.format(taken='%b')} }}"
    text = clamped(body, functions=f"{inner}\n{outer}")
    assert text.index("stablehlo.clamp") > text.index("@part(%arg0: tensor<16xf32>")


def test_a_gather_from_a_single_element_is_inside():
    body = """%none = stablehlo.constant dense<> : tensor<0xi32>
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %g = "stablehlo.gather"(%one, %none) <{dimension_numbers = #stablehlo.gather<>, slice_sizes = array<i64>}>
        : (tensor<f32>, tensor<0xi32>) -> tensor<f32>
      %s = stablehlo.broadcast_in_dim %g, dims = [] : (tensor<f32>) -> tensor<8xf32>"""
    assert "stablehlo.clamp" not in clamped(f"{body}\n{_ISLAND.format(taken='%s')}")
