# SPDX-License-Identifier: Apache-2.0
"""Whole values that are converted before loops, of which each turn takes a part."""

import re

import pytest

from reshard.dialect_utils.carried.held_parts import hold_parts
from reshard.dialect_utils.platform.bindings import ir, make_context

LAYERS, ROWS, COLUMNS = 4, 16, 32
F32_BYTES, BF16_BYTES = (LAYERS * ROWS * COLUMNS * each for each in (4, 2))
HEAD = 'module { sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
WEIGHTS = 'tensor<4x16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>}'


def layout(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{dims}]>]>}}"


# A layer's weights, cut out, narrowed, and gathered over x.
LAYER = f"""
  %cut = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 32] {layout('{}, {"x"}, {"y"}')}
    : (tensor<4x16x32xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x32xf32>
  %flat = stablehlo.reshape %cut {layout('{"x"}, {"y"}')} : (tensor<1x16x32xf32>) -> tensor<16x32xf32>
  %turned = stablehlo.transpose %flat, dims = [1, 0] {layout('{"y"}, {"x"}')} : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %narrow = stablehlo.convert %turned {layout('{"y"}, {"x"}')} : (tensor<32x16xf32>) -> tensor<32x16xbf16>
  %layer = sdy.reshard %narrow <@mesh, [{{"y"}}, {{}}]> : tensor<32x16xbf16>
  %sum = stablehlo.add %a, %layer {layout('{"y"}, {}')} : tensor<32x16xbf16>
"""


def loop(body: str, result: str = "%r", trips: int = 4, start: str = "%start", counter: str = "%i") -> str:
    """Returns a loop that carries a counter and a sum of layers, which is `%a` in it, or `%b` for the counter `%j`."""
    kinds = "tensor<i32>, tensor<32x16xbf16>"
    carried, c = ("%a", "") if counter == "%i" else ("%b", "_around")
    return f"""
  {result}:2 = stablehlo.while({counter} = %zero, {carried} = {start}) : {kinds}
    attributes {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{{"y"}}, {{}}]>]>}}
   cond {{
    %end{c} = stablehlo.constant dense<{trips}> : tensor<i32>
    %more{c} = stablehlo.compare LT, {counter}, %end{c} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more{c} : tensor<i1>
  }} do {{
    %one{c} = stablehlo.constant dense<1> : tensor<i32>
    %next{c} = stablehlo.add {counter}, %one{c} : tensor<i32>
    {body}
    stablehlo.return %next{c}, %sum : {kinds}
  }}"""


def held(body: str, spare_bytes: float = 1e9, weights: str = f"%w: {WEIGHTS}", kind: str = "bf16") -> tuple[float, str]:
    """Returns the bytes that are held, and the module then."""
    text = f"""{HEAD} func.func @main({weights}, %start: tensor<32x16x{kind}>, %p: tensor<i32>) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      {body}
      return
    }} }}"""
    with make_context():
        module = ir.Module.parse(text)
        found = hold_parts(module.operation, spare_bytes)
        assert module.operation.verify()
        return found, str(module)


def before_loops(text: str) -> str:
    return text.partition("stablehlo.while")[0]


TWICE = loop(LAYER) + loop(LAYER, "%s", start="%r#1")


def test_a_layer_that_two_loops_gather_is_gathered_once_with_all_others():
    bytes_held, text = held(TWICE)
    assert bytes_held == BF16_BYTES / 2
    assert text.count("sdy.reshard") == 1 and text.count("stablehlo.convert") == 1
    assert re.search(
        r"stablehlo.convert %arg0 .*\n\s+%\d+ = sdy.reshard %\d+ <@mesh, \[\{\}, \{\}, \{\"y\"\}\]> : "
        r"tensor<4x16x32xbf16>",
        before_loops(text),
    )
    assert text.count("sizes = [1, 16, 32]") == 2 and "(tensor<32x16xf32>)" not in text
    turned = re.search(r"stablehlo.transpose .*", text)[0]
    assert 'sharding_per_value<[<@mesh, [{"y"}, {}]>]>' in turned and turned.endswith("tensor<32x16xbf16>")


def around(inner: str) -> str:
    """Returns a loop of two turns around another one, whose sum it adds to its own."""
    return loop(f"{inner}\n %sum = stablehlo.add %b, %in#1 : tensor<32x16xbf16>", "%out", trips=2, counter="%j")


def test_turns_of_a_loop_around_count():
    bytes_held, text = held(around(loop(LAYER, "%in", start="%b")))
    assert bytes_held == BF16_BYTES / 2 and before_loops(text).count("sdy.reshard") == 1


def test_what_is_made_in_an_outer_loop_of_values_from_outside_is_made_before_it():
    turned = """%moved = stablehlo.transpose %w, dims = [0, 2, 1]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}, {"x"}]>]>}
      : (tensor<4x16x32xf32>) -> tensor<4x32x16xf32>"""
    layer = f"""
      %cut = stablehlo.dynamic_slice %moved, %i, %zero, %zero, sizes = [1, 32, 16] {layout('{}, {"y"}, {"x"}')}
        : (tensor<4x32x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x32x16xf32>
      %flat = stablehlo.reshape %cut {layout('{"y"}, {"x"}')} : (tensor<1x32x16xf32>) -> tensor<32x16xf32>
      %narrow = stablehlo.convert %flat {layout('{"y"}, {"x"}')} : (tensor<32x16xf32>) -> tensor<32x16xbf16>
      %layer = sdy.reshard %narrow <@mesh, [{{"y"}}, {{}}]> : tensor<32x16xbf16>
      %sum = stablehlo.add %a, %layer {layout('{"y"}, {}')} : tensor<32x16xbf16>"""
    bytes_held, text = held(around(turned + loop(layer, "%in", start="%b")))
    assert bytes_held == BF16_BYTES / 2
    assert re.search(r"transpose(.|\n)*convert(.|\n)*sdy.reshard", before_loops(text))


def test_a_conversion_that_each_turn_makes_of_the_whole_is_made_once():
    whole = f"""
      %narrow = stablehlo.convert %w {layout('{}, {"x"}, {"y"}')} : (tensor<4x16x32xf32>) -> tensor<4x16x32xbf16>
      %layer = sdy.reshard %narrow <@mesh, [{{}}, {{}}, {{"y"}}]> : tensor<4x16x32xbf16>
      %sum = "test.use"(%a, %layer) : (tensor<32x16xbf16>, tensor<4x16x32xbf16>) -> tensor<32x16xbf16>"""
    context_allows = whole.replace('"test.use"', "stablehlo.custom_call @use").replace("(%a", "(%a", 1)
    bytes_held, text = held(loop(context_allows))
    assert bytes_held == BF16_BYTES / 2 and before_loops(text).count("sdy.reshard") == 1


SPLIT_LAYERS = f"%w: {WEIGHTS}".replace('[{}, {"x"}, {"y"}]', '[{"x"}, {}, {"y"}]')


@pytest.mark.parametrize(
    ("why", "body", "options"),
    [
        ("one loop takes each layer once: as many bytes", loop(LAYER), {}),
        ("there is no memory", TWICE, {"spare_bytes": BF16_BYTES / 2 - 1}),
        ("the layers are split", TWICE, {"weights": SPLIT_LAYERS}),
        ("tiles are not larger", TWICE.replace('%narrow <@mesh, [{"y"}, {}]>', '%narrow <@mesh, [{"x"}, {"y"}]>'), {}),
    ],
)  # fmt: skip
def test_what_stays_in_the_loop(why, body, options):
    bytes_held, text = held(body, **options)
    assert bytes_held == 0 and "sdy.reshard" not in before_loops(text), why


def test_elements_are_widened_behind_the_cut():
    wide = (
        TWICE.replace("xbf16", "xf32")
        .replace(
            "%layer = sdy.reshard %narrow",
            f"""%wide = stablehlo.convert %narrow
      {layout('{"y"}, {"x"}')} : (tensor<32x16xbf16>) -> tensor<32x16xf32>
      %layer = sdy.reshard %wide""",
        )
        .replace("stablehlo.convert %turned", "stablehlo.convert %turned ", 1)
    )
    wide = re.sub(r"(convert %turned .*\(tensor<32x16xf32>\) -> tensor<32x16x)f32", r"\1bf16", wide)
    wide = re.sub(r"(convert %narrow\n.*\(tensor<32x16x)f32(>\) -> tensor<32x16xf32>)", r"\1bf16\2", wide)
    bytes_held, text = held(wide, kind="f32")
    assert bytes_held == BF16_BYTES / 2
    assert text.count("(tensor<32x16xbf16>) -> tensor<32x16xf32>") == 2 and "tensor<4x16x32xbf16>" in before_loops(text)


def test_each_conversion_of_numbers_is_made_in_its_order():
    """Through bfloat16 to small integers: rounded twice, as in the loop."""
    twice = TWICE.replace(
        "%layer = sdy.reshard %narrow",
        f"""%wide = stablehlo.convert %narrow {layout('{"y"}, {"x"}')}
        : (tensor<32x16xbf16>) -> tensor<32x16xf32>
      %whole = stablehlo.convert %wide {layout('{"y"}, {"x"}')} : (tensor<32x16xf32>) -> tensor<32x16xi8>
      %layer = sdy.reshard %whole""",
    )
    added = f"""%added = stablehlo.convert %layer {layout('{"y"}, {}')} : (tensor<32x16xi8>) -> tensor<32x16xbf16>
      %sum = stablehlo.add %a, %added"""
    twice = re.sub(r"(%layer = .*)bf16>", r"\1i8>", twice).replace("%sum = stablehlo.add %a, %layer", added)
    bytes_held, text = held(twice)
    assert bytes_held == LAYERS * ROWS * COLUMNS / 2
    kinds = re.findall(r"stablehlo.convert .* -> tensor<4x16x32x(\w+)>", before_loops(text))
    assert kinds == ["bf16", "f32", "i8"]


def test_what_a_branch_converts_stays_in_it():
    branch = LAYER.replace("%sum =", "%unused =")
    body = f"""%sum = "stablehlo.case"(%p) ({{
        {branch}
        stablehlo.return %layer : tensor<32x16xbf16>
      }}, {{
        stablehlo.return %a : tensor<32x16xbf16>
      }}) : (tensor<i32>) -> tensor<32x16xbf16>"""
    bytes_held, text = held(loop(body) + loop(body, "%s", start="%r#1"))
    assert bytes_held == 0 and "sdy.reshard" not in before_loops(text)


def test_the_larger_saving_comes_first():
    """Layers of 32 columns and of 16: there is memory for one of them."""
    small = re.sub(r"%(?!a\b|i\b|zero\b)", "%small_", LAYER).replace("sizes = [1, 16, 32]", "sizes = [1, 16, 16]")
    small = small.replace("32x16", "16x16").replace("16x32", "16x16").replace("add %a,", "add %small_layer,")
    both = f"%w: {WEIGHTS}, %small_w: {WEIGHTS.replace('16x32', '16x16')}"
    bytes_held, text = held(loop(LAYER + small) + loop(LAYER + small, "%s", start="%r#1"), BF16_BYTES / 2, both)
    assert bytes_held == BF16_BYTES / 2
    assert "tensor<4x16x32xbf16>" in before_loops(text) and "tensor<4x16x16xbf16>" not in before_loops(text)
