# SPDX-License-Identifier: Apache-2.0
"""Starts of slices that islands take are clamped in the program, unless they are known to lie inside."""

import pytest

from reshard.dialect_utils.emission.slice_starts import clamp_starts_before_islands
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


def clamped(body: str, size: int = 16, kind: str = "i32", functions: str = "") -> str:
    """Returns a module with a slice and an island, after starts were clamped; checks the number of slices."""
    text = f"""sdy.mesh @mesh = <["x"=2]>
    func.func public @main(%a: tensor<{size}xf32>, %i: tensor<{kind}>) -> tensor<8xf32> {{
      %zero = stablehlo.constant dense<0> : tensor<{kind}>
      {body}
    }}
    {functions}"""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        count = clamp_starts_before_islands(module)
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


def test_what_an_island_does_not_take_stays():
    moved = "%m = stablehlo.tanh %s : tensor<8xf32>"  # XLA does not slice before it
    assert "stablehlo.clamp" not in clamped(f"{sliced()}\n{moved}\n{_ISLAND.format(taken='%m')}")


def test_narrow_starts_are_widened_first():
    text = clamped(f"{sliced(size=1000, kind='i8')}\n{_ISLAND.format(taken='%s')}", size=1000, kind="i8")
    assert "stablehlo.convert" in text and "dense<992> : tensor<i32>" in text


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
