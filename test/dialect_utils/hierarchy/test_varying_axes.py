# SPDX-License-Identifier: Apache-2.0
"""The axes along which values in a manual computation differ, on small bodies over the axes x, y and z.

`%a` differs along x, `%b` along y, `%c` is the same everywhere, `%s` are partial sums along z.
"""

import pytest

from reshard.dialect_utils.hierarchy.varying_axes import varying_axes
from reshard.dialect_utils.ir.ops import ops_in, terminator_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes

T, INT = "tensor<4xf32>", "tensor<i32>"
EVERYWHERE = "xyz"


def groups(*rows: str) -> str:
    """Returns groups of device ids, each written as digits."""
    listed = ", ".join(f"[{', '.join(row)}]" for row in rows)
    return f"dense<[{listed}]> : tensor<{len(rows)}x{len(rows[0])}xi64>"


ALONG_X, ALONG_Y = groups("04", "15", "26", "37"), groups("02", "13", "46", "57")
ALONG_XY, ALL = groups("0246", "1357"), groups("01234567")
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
GLOBAL = f"{CHANNEL}, use_global_device_ids"


def summed(operand: str, listed: str, more: str = f", {GLOBAL}") -> str:
    return f""""stablehlo.all_reduce"({operand}) <{{replica_groups = {listed}{more}}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %t = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %t : tensor<f32>
        }}) : ({T}) -> {T}"""


@pytest.fixture
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


@pytest.fixture
def module_of(context):
    """Returns a function from the lines of a body, whose last value is `%out`, to a module."""

    def module(body: str) -> ir.Module:
        return ir.Module.parse(f"""
          sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
          func.func @main(%0: tensor<8xf32>, %1: tensor<8xf32>, %2: {T}, %3: {T}) -> tensor<32xf32> {{
            %4 = sdy.manual_computation(%0, %1, %2, %3)
                in_shardings=[<@mesh, [{{"x"}}]>, <@mesh, [{{"y"}}]>, <@mesh, [{{}}]>,
                              <@mesh, [{{}}], unreduced={{"z"}}>]
                out_shardings=[<@mesh, [{{"x", "y", "z"}}]>] manual_axes={{"x", "y", "z"}}
                (%a: {T}, %b: {T}, %c: {T}, %s: {T}) {{
              %zero = stablehlo.constant dense<0> : {INT}
              %two = stablehlo.constant dense<2> : {INT}
              {body}
              sdy.return %out : {T}
            }} : (tensor<8xf32>, tensor<8xf32>, {T}, {T}) -> tensor<32xf32>
            return %4 : tensor<32xf32>
          }}
          func.func private @same(%0: {T}) -> {T} {{
            return %0 : {T}
          }}""")

    return module


def island_of(module: ir.Module) -> ir.Operation:
    return next(op for op in ops_in(module.operation) if op.name == "sdy.manual_computation")


def axes_of(module: ir.Module) -> str:
    """Returns the axes of the value that the manual computation returns, as letters."""
    island, (mesh,) = island_of(module), module_meshes(module).values()
    found = varying_axes(island, mesh)
    return "".join(sorted(found.of(terminator_of(island.regions[0].blocks[0]).operands)))


def alone(name: str, operand: str) -> str:
    return f"%out = stablehlo.{name} {operand} : {T}"


@pytest.mark.parametrize(
    "body, expected",
    [
        pytest.param(alone("tanh", "%a"), "x", id="an argument that x splits"),
        pytest.param(alone("tanh", "%c"), "", id="an argument that nothing splits"),
        pytest.param(alone("tanh", "%s"), "z", id="partial sums"),
        pytest.param(alone("add", "%a, %b"), "xy", id="two operands"),
        pytest.param(f"%out = stablehlo.constant dense<1.0> : {T}", "", id="a constant"),
        pytest.param(
            f"%p = stablehlo.partition_id : tensor<ui32>\n%f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>\n"
            f"%out = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {T}",
            EVERYWHERE,
            id="the number of the device",
        ),
        pytest.param(f"%out = func.call @same(%c) : ({T}) -> {T}", EVERYWHERE, id="a call"),
        pytest.param(f"%out = stablehlo.custom_call @any(%c) : ({T}) -> {T}", EVERYWHERE, id="a call of unknown code"),
        pytest.param(
            f'%out = "stablehlo.collective_permute"(%c) <{{source_target_pairs = {groups("01", "10")}, {CHANNEL}}}> '
            f": ({T}) -> {T}",
            EVERYWHERE,
            id="a permute, which gives zeros to some",
        ),
    ],
)
def test_what_ops_make(module_of, body, expected):
    assert axes_of(module_of(body)) == expected


@pytest.mark.parametrize(
    "operand, listed, more, expected",
    [
        pytest.param("%a", ALONG_X, f", {GLOBAL}", "", id="over the axis along which it differs"),
        pytest.param("%a", ALONG_Y, f", {GLOBAL}", "x", id="over another axis"),
        pytest.param("%b", ALL, f", {GLOBAL}", "", id="over all devices"),
        pytest.param("%s", ALONG_XY, f", {GLOBAL}", "z", id="of partial sums"),
        pytest.param("%a", groups("03", "12", "47", "56"), f", {GLOBAL}", EVERYWHERE, id="over no axes"),
        pytest.param("%a", ALONG_X, f", {CHANNEL}", EVERYWHERE, id="over replicas and partitions"),
        pytest.param("%a", groups("0"), "", EVERYWHERE, id="over replicas"),
    ],
)
def test_a_sum_ends_the_difference_along_whole_axes(module_of, operand, listed, more, expected):
    assert axes_of(module_of(f"%out = {summed(operand, listed, more)}")) == expected


@pytest.mark.parametrize(
    "listed, expected", [(groups("01", "23"), "x"), (groups("02", "13"), "x"), (groups("0123"), "")]
)
def test_a_sum_over_half_an_axis_ends_no_difference(context, listed, expected):
    module = ir.Module.parse(f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%0: tensor<16xf32>) -> tensor<16xf32> {{
        %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{{"x"}}]>] out_shardings=[<@mesh, [{{"x"}}]>]
            manual_axes={{"x"}} (%a: {T}) {{
          %out = {summed("%a", listed)}
          sdy.return %out : {T}
        }} : (tensor<16xf32>) -> tensor<16xf32>
        return %1 : tensor<16xf32>
      }}""")
    assert axes_of(module) == expected


@pytest.mark.parametrize("operand, expected", [("%a", "x"), ("%b", "xy"), ("%c", "x")])
def test_a_scattered_sum_differs_along_its_axes(module_of, operand, expected):
    body = f"""%r = "stablehlo.reduce_scatter"({operand}) <{{replica_groups = {ALONG_X}, scatter_dimension = 0 : i64,
          {GLOBAL}}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %t = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %t : tensor<f32>
        }}) : ({T}) -> tensor<2xf32>
        %out = stablehlo.concatenate %r, %r, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> {T}"""
    assert axes_of(module_of(body)) == expected


@pytest.mark.parametrize("operand, expected", [("%a", "x"), ("%b", "xy"), ("%c", "x")])
def test_parts_that_are_sent_differ_along_the_axes_of_their_groups(module_of, operand, expected):
    body = f"""%out = "stablehlo.all_to_all"({operand}) <{{replica_groups = {ALONG_X}, split_dimension = 0 : i64,
        concat_dimension = 0 : i64, split_count = 2 : i64, {CHANNEL}}}> : ({T}) -> {T}"""
    assert axes_of(module_of(body)) == expected


def test_a_reduction_takes_the_values_that_its_region_captures(module_of):
    body = f"""%f = stablehlo.constant dense<0.0> : tensor<f32>
        %i = stablehlo.slice %b [0:1] : ({T}) -> tensor<1xf32>
        %j = stablehlo.reshape %i : (tensor<1xf32>) -> tensor<f32>
        %k = "stablehlo.reduce"(%c, %f) <{{dimensions = array<i64: 0>}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %m = stablehlo.multiply %l, %j : tensor<f32>
          %t = stablehlo.add %m, %r : tensor<f32>
          stablehlo.return %t : tensor<f32>
        }}) : ({T}, tensor<f32>) -> tensor<f32>
        %out = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> {T}"""
    assert axes_of(module_of(body)) == "y"


# ---- control flow


def loop(first: str, second: str, body: str, results: str, limit: str = "%two", out: int = 1) -> str:
    """Returns a loop that holds a counter and two tensors, `%p` and `%q`; the result number `out` is the value."""
    return f"""%w:3 = stablehlo.while(%i = %zero, %p = {first}, %q = {second}) : {INT}, {T}, {T}
        cond {{
          %t = stablehlo.compare LT, %i, {limit} : ({INT}, {INT}) -> tensor<i1>
          stablehlo.return %t : tensor<i1>
        }} do {{
          {body}
          %n = stablehlo.add %i, %i : {INT}
          stablehlo.return %n, {results} : {INT}, {T}, {T}
        }}
        %out = stablehlo.tanh %w#{out} : {T}"""


def number_of(operand: str, name: str) -> str:
    """Returns lines that make a counter of a tensor."""
    return f"""{name}0 = stablehlo.slice {operand} [0:1] : ({T}) -> tensor<1xf32>
        {name}1 = stablehlo.reshape {name}0 : (tensor<1xf32>) -> tensor<f32>
        {name} = stablehlo.convert {name}1 : (tensor<f32>) -> {INT}
        """


@pytest.mark.parametrize(
    "first, second, results, out, expected",
    [
        pytest.param("%c", "%c", "%p, %q", 1, "", id="nothing differs"),
        pytest.param("%a", "%c", "%q, %q", 1, "x", id="no turn may run"),
        pytest.param("%c", "%a", "%q, %q", 1, "x", id="from one to the other"),
        pytest.param("%c", "%c", "%q, %a", 1, "x", id="a captured value, two turns later"),
        pytest.param("%c", "%c", "%q, %a", 2, "x", id="a captured value"),
        pytest.param("%a", "%b", "%q, %p", 1, "xy", id="they change places"),
        pytest.param("%a", "%c", "%p, %q", 2, "", id="its neighbour differs"),
    ],
)
def test_what_a_loop_holds(module_of, first, second, results, out, expected):
    assert axes_of(module_of(loop(first, second, "", results, out=out))) == expected


@pytest.mark.parametrize("out", [1, 2])
def test_devices_that_make_different_numbers_of_turns_have_different_results(module_of, out):
    text = number_of("%a", "%m") + loop("%c", "%c", f"%u = stablehlo.tanh %p : {T}", "%u, %q", "%m", out)
    assert axes_of(module_of(text)) == "x"


def test_a_sum_in_a_loop_ends_the_difference_of_what_is_held_but_not_of_what_was_given(module_of):
    text = loop("%a", "%c", f"%u = {summed('%p', ALONG_X)}", "%u, %u", out=2)
    assert axes_of(module_of(text)) == ""
    text = loop("%a", "%c", f"%u = {summed('%p', ALONG_X)}", "%u, %u", out=1)
    assert axes_of(module_of(text)) == "x"


def branches(index: str, one: str, other: str, inside: str = "") -> str:
    return f"""%out = "stablehlo.case"({index}) ({{
          {inside}
          stablehlo.return {one} : {T}
        }}, {{
          stablehlo.return {other} : {T}
        }}) : ({INT}) -> {T}"""


@pytest.mark.parametrize(
    "index, one, other, expected",
    [
        ("%two", "%c", "%c", ""),
        ("%two", "%a", "%c", "x"),
        ("%two", "%c", "%a", "x"),
        ("%m", "%c", "%c", "y"),
        ("%m", "%a", "%c", "xy"),
    ],
)
def test_a_branch_gives_what_both_give_and_differs_as_the_choice_does(module_of, index, one, other, expected):
    assert axes_of(module_of(number_of("%b", "%m") + branches(index, one, other))) == expected


def test_a_branch_in_a_loop_differs_once_what_the_loop_holds_does(module_of):
    inside = number_of("%q", "%m") + branches("%m", "%c", "%c").replace("%out", "%u")
    assert axes_of(module_of(loop("%c", "%c", inside, "%u, %b"))) == "y"


def around(module: ir.Module) -> str:
    """Returns the axes along which devices may disagree whether they run the sum."""
    island, (mesh,) = island_of(module), module_meshes(module).values()
    op = next(op for op in ops_in(module.operation) if op.name == "stablehlo.all_reduce")
    return "".join(sorted(varying_axes(island, mesh).around(op)))


@pytest.mark.parametrize("limit, expected", [("%two", ""), ("%m", "y")])
def test_devices_disagree_in_a_loop_whose_turns_differ(module_of, limit, expected):
    text = number_of("%b", "%m") + loop("%a", "%c", f"%u = {summed('%c', ALONG_X)}", "%u, %q", limit)
    assert around(module_of(text)) == expected


@pytest.mark.parametrize("index, expected", [("%two", ""), ("%m", "y")])
def test_devices_disagree_in_a_branch_that_some_take(module_of, index, expected):
    text = number_of("%b", "%m") + branches(index, "%u", "%c", f"%u = {summed('%c', ALONG_X)}")
    assert around(module_of(text)) == expected


def test_devices_disagree_in_a_loop_in_a_branch(module_of):
    inside = loop("%c", "%c", f"%u = {summed('%c', ALONG_X)}", "%u, %q").replace("%out", "%v")
    text = number_of("%b", "%m") + branches("%m", "%v", "%c", inside)
    assert around(module_of(text)) == "y"


def test_devices_agree_on_a_condition_that_is_summed(module_of):
    text = f"%sum = {summed('%b', ALONG_Y)}\n" + number_of("%sum", "%m")
    text += loop("%a", "%c", f"%u = {summed('%c', ALONG_X)}", "%u, %q", "%m")
    assert around(module_of(text)) == ""


def test_values_in_a_region_that_is_not_followed_differ_everywhere(module_of):
    text = f"""%out = sdy.named_computation<"part">(%a) in_shardings=[<@mesh, [{{}}]>] out_shardings=[<@mesh, [{{}}]>]
        (%p: {T}) {{
          %u = {summed("%p", ALONG_X)}
          sdy.return %u : {T}
        }} : ({T}) -> {T}"""
    module = module_of(text)
    island, (mesh,) = island_of(module), module_meshes(module).values()
    op = next(op for op in ops_in(module.operation) if op.name == "stablehlo.all_reduce")
    assert "".join(sorted(varying_axes(island, mesh).of(op.operands))) == EVERYWHERE
    assert axes_of(module) == "x"
