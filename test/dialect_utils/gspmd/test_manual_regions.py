# SPDX-License-Identifier: Apache-2.0
"""Regions between entries and exits of tiles become manual computations."""

import pytest

from reshard.dialect_utils.gspmd.manual_regions import UnliftableError, find_regions, inline, lift
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

A, T = "tensor<8xf32>", "tensor<4xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def enter(value: str) -> str:
    return f"stablehlo.custom_call @enter({value}) : ({A}) -> {T}"


def leave(value: str) -> str:
    return f"stablehlo.custom_call @leave({value}) : ({T}) -> {A}"


def calls(target: str):
    return lambda op: op.name == "stablehlo.custom_call" and target in str(op.attributes["call_target_name"])


class Block:
    """The body of a function from %a and %b to %r; `module` keeps its ops alive."""

    def __init__(self, body: str):
        self.module = ir.Module.parse(f"""sdy.mesh @mesh = <["x"=2]>
          func.func @main(%a: {A}, %b: {A}) -> {A} {{
            {body}
            return %r : {A}
          }}""")
        self.block = self.module.body.operations[1].regions[0].blocks[0]

    def regions(self):
        return find_regions(self.block, calls("enter"), calls("leave"))

    def lifted(self) -> str:
        split = ir.Attribute.parse('#sdy.sharding<@mesh, [{"x"}]>')
        for region in self.regions():
            lift(region, [split] * len(region.entries), [split] * len(region.exits), ["x"])
        assert self.module.operation.verify()
        return str(self.module)


def names(ops) -> list[str]:
    return [op.name.removeprefix("stablehlo.") for op in ops]


def test_a_block_without_entries_and_exits_has_no_regions():
    assert Block(f"%r = stablehlo.add %a, %b : {A}").regions() == []


def test_ops_that_share_a_tile_are_one_region_and_others_another():
    found = Block(f"""%0 = {enter("%a")}
        %1 = {enter("%b")}
        %2 = stablehlo.tanh %0 : {T}
        %3 = stablehlo.sine %1 : {T}
        %4 = {leave("%2")}
        %5 = {leave("%3")}
        %r = stablehlo.add %4, %5 : {A}""").regions()
    assert [names(each.inner) for each in found] == [["tanh"], ["sine"]]
    assert [(len(each.entries), len(each.exits)) for each in found] == [(1, 1)] * 2


def test_a_region_is_lifted_and_its_constants_are_copied_into_it():
    text = Block(f"""%c = stablehlo.constant dense<2.0> : tensor<f32>
        %s = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {T}
        %0 = {enter("%a")}
        %1 = stablehlo.multiply %0, %s : {T}
        %2 = {leave("%1")}
        %w = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {A}
        %r = stablehlo.add %2, %w : {A}""").lifted()
    assert "custom_call" not in text and text.count("sdy.manual_computation") == 1
    inside = text[text.index("sdy.manual_computation") : text.index("sdy.return")]
    assert "stablehlo.constant dense<2.0" in inside and f"dims = [] : (tensor<f32>) -> {T}" in inside
    assert text.count("stablehlo.constant") == 2  # the other one is for the array outside


def test_a_tile_that_no_exit_makes_an_array_of_stays_inside():
    text = Block(f"""%0 = {enter("%a")}
        %1 = stablehlo.tanh %0 : {T}
        %r = stablehlo.sine %a : {A}""").lifted()
    assert "sdy.manual_computation" in text and text.index("stablehlo.tanh") < text.index("stablehlo.sine")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            f"%0 = {enter('%a')}\n%1 = stablehlo.concatenate %0, %0, dim = 0 : ({T}, {T}) -> {A}"
            f"\n%2 = stablehlo.add %1, %b : {A}\n%3 = stablehlo.slice %2 [0:4] : ({A}) -> {T}\n%r = {leave('%3')}",
            "it works on a tile and on a value that is none",
        ),
        (
            f"%0 = {enter('%a')}\n%r = stablehlo.concatenate %0, %0, dim = 0 : ({T}, {T}) -> {A}",
            "a tile leaves the block",
        ),
        (
            f"%0 = {enter('%a')}\n%1 = stablehlo.concatenate %0, %0, dim = 0 : ({T}, {T}) -> {A}"
            f"\n%2 = {enter('%1')}\n%r = {leave('%2')}",
            "it takes a tile of what is a tile already",
        ),
    ],
)
def test_tiles_and_arrays_do_not_mix(body, reason):
    with pytest.raises(UnliftableError, match=reason):
        Block(body).regions()


def test_a_region_whose_operand_comes_after_its_first_result_is_refused():
    block = Block(f"""%0 = {enter("%a")}
        %1 = {leave("%0")}
        %2 = stablehlo.tanh %1 : {A}
        %3 = {enter("%2")}
        %4 = stablehlo.add %0, %3 : {T}
        %r = {leave("%4")}""")
    with pytest.raises(UnliftableError, match="its operand is computed after the first result of its region"):
        block.lifted()


def test_a_call_is_replaced_by_a_copy_of_the_body():
    module = ir.Module.parse(f"""
      func.func private @f(%a: {A}, %b: {A}) -> ({A}, {A}) {{
        %0 = stablehlo.subtract %a, %b : {A}
        return %0, %a : {A}, {A}
      }}
      func.func @main(%a: {A}, %b: {A}) -> ({A}, {A}) {{
        %0:2 = call @f(%b, %a) : ({A}, {A}) -> ({A}, {A})
        return %0#1, %0#0 : {A}, {A}
      }}""")
    function, main = (op.operation for op in module.body.operations)
    (call,) = [op for op in ops_in(main) if op.name == "func.call"]
    (copied,) = inline(call, function)
    assert copied.name == "stablehlo.subtract" and names(ops_in(function)) == ["func.func", "subtract", "func.return"]
    text = str(main)
    assert "subtract %arg1, %arg0" in text and "return %arg1, %0" in text and "call" not in text
