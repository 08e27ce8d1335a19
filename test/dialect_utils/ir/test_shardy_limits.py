# SPDX-License-Identifier: Apache-2.0
"""Modules that would end the process in Shardy's passes, or take all memory.

Each is either left unchanged with the reason, or prepared so that the passes accept it. If a test fails here, it may
end the whole process.
"""

import pytest

import reshard
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.module_files import to_bytes
from reshard.dialect_utils.ir.shardy_limits import MOST_INLINED, NotPropagatedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
OTHER = 'sdy.mesh @other = <["z"=4, "w"=2]>\n'
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
COLUMNS = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
SUMS = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}'
TENSOR = "tensor<8x8xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def function(body: str, name: str = "@main", argument: str = ROWS, result: str = "") -> str:
    return f"func.func {name}(%a: {TENSOR} {argument}) -> ({TENSOR} {result}) {{\n{body}\nreturn %0 : {TENSOR}\n}}\n"


def reason(text: str) -> str:
    """Returns the reason why a module is not propagated; asserts that it stays unchanged and gets this remark."""
    with pytest.raises(NotPropagatedError) as raised:
        analyse(ir.Module.parse(text))
    module, session = ir.Module.parse(text), Session()
    before = str(module)
    Pipeline.default().run(module, session)
    assert str(module) == before
    assert [each.message for each in session.remarks] == [f"the module is left alone: {raised.value.reason}"]
    assert raised.value.place is not None and raised.value.place.line > 0
    assert raised.value.reason in session.results.left_whole
    return raised.value.reason


def explicit(text: str) -> str:
    return str(analyse(ir.Module.parse(text)).explicit)


def test_a_named_computation_is_left_to_xla():
    body = f"""%0 = sdy.named_computation<"f">(%a) (%b: {TENSOR}) {{
        sdy.return %b : {TENSOR} }} : ({TENSOR}) -> {TENSOR}"""
    assert "sdy.named_computation" in reason(MESH + function(body))


def test_a_data_flow_edge_is_left_to_xla():
    assert "sdy.data_flow_edge" in reason(MESH + function(f"%0 = sdy.data_flow_edge %a : {TENSOR}"))


def test_a_collective_of_shardys_in_a_function_that_is_called_is_left_to_xla():
    inner = f'%0 = sdy.all_gather [{{"x"}}, {{}}] %a out_sharding=<@mesh, [{{}}, {{}}]> : {TENSOR}'
    called = function(f"%0 = call @f(%a) : ({TENSOR}) -> {TENSOR}", argument="")
    assert "sdy.all_gather is in a function that is called" in reason(MESH + called + function(inner, "private @f"))


def test_a_call_of_a_function_without_a_body_is_left_to_xla():
    text = (
        MESH + f"func.func private @f({TENSOR}) -> {TENSOR}\n" + function(f"%0 = call @f(%a) : ({TENSOR}) -> {TENSOR}")
    )
    assert "@f, which is called here, has no body" in reason(text)


def test_a_mesh_whose_devices_64_bits_do_not_count_is_left_to_xla():
    text = 'sdy.mesh @mesh = <["x"=1099511627776, "y"=1099511627776]>\n'
    assert "@mesh has more than 2^63-1 devices" in reason(text + function(f"%0 = stablehlo.tanh %a : {TENSOR}"))


def chain(functions: int, calls: int) -> str:
    """Returns a module in which each function calls the next one `calls` times."""
    found = []
    for number in range(functions):
        name = "@main" if number == 0 else f"private @f{number}"
        values = ["%a", *(f"%v{call}" for call in range(calls - 1)), "%0"]
        lines = [
            f"{made} = call @f{number + 1}({used}) : ({TENSOR}) -> {TENSOR}" for used, made in zip(values, values[1:])
        ]
        found.append(function("\n".join(lines), name, argument=""))
    return "".join([*found, function(f"%0 = stablehlo.tanh %a : {TENSOR}", f"private @f{functions}", argument="")])


def test_functions_that_call_the_next_twice_each_are_not_inlined_without_a_bound():
    assert f"more than {MOST_INLINED:,} ops" in reason(chain(25, 2))


def test_functions_may_call_each_other_two_thousand_deep():
    assert explicit(chain(2000, 1)).count("tanh") == 1


def test_a_recursion_is_an_error_at_its_call():
    calling = f"%0 = call @f(%a) : ({TENSOR}) -> {TENSOR}"
    text = function(calling, argument="") + function(calling, "@f", argument="")
    with pytest.raises(DiagnosedError, match="@f calls itself by way of this call"):
        analyse(ir.Module.parse(text))


def composite(name: str, of: str, others: str = "") -> str:
    used = f'%1 = stablehlo.composite "a.b" %a {{decomposition = {of}}} : ({TENSOR}) -> {TENSOR}\n'
    used += f"%0 = stablehlo.tanh %1 : {TENSOR}"
    return MESH + others + function(used, name, result=COLUMNS)


@pytest.mark.parametrize("inner", ["@dec", "@main"])
@pytest.mark.parametrize("visibility", ["private", "public"])
def test_a_function_may_be_named_where_the_program_is_not_main(inner, visibility):
    decomposition = function(f"%0 = stablehlo.negate %a : {TENSOR}", f"{visibility} {inner}", argument="")
    text = explicit(composite("@program", inner, decomposition))
    assert f"decomposition = {inner}" in text
    assert "@program(" in text and f"{inner}(" in text


@pytest.mark.parametrize("op", ["sdy.reshard", "sdy.sharding_constraint"])
def test_partial_sums_along_one_axis_are_summed_before_they_are_some_along_another(op):
    text = explicit(MESH + function(f'%0 = {op} %a <@mesh, [{{}}, {{}}], unreduced={{"y"}}> : {TENSOR}', argument=SUMS))
    assert '"x"} %arg0' in text and "replicated_to_unreduced" in text


def test_a_function_without_a_body_may_be_named():
    named = f"%0 = stablehlo.custom_call @c(%a) {{called_computations = [@f]}} : ({TENSOR}) -> {TENSOR}"
    assert "stablehlo.custom_call @c" in explicit(
        MESH + f"func.func private @f({TENSOR}) -> {TENSOR}\n" + function(named)
    )


def test_a_tensor_without_a_rank_is_left_alone():
    kind = "tensor<*xf32>"
    call = f"%0 = stablehlo.custom_call @c(%a) : ({kind}) -> {kind}"
    text = f"func.func @main(%a: {kind}) -> {kind} {{ {call} return %0 : {kind} }}"
    module, session = ir.Module.parse(text), Session()
    Pipeline.default().run(module, session)
    assert "tensor<*xf32> has no rank" in session.remarks[0].message


def test_a_loop_whose_values_have_other_types_than_its_arguments_is_written_so_that_it_is_read():
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<?xf32> {
      %0 = "stablehlo.while"(%a) ({
        ^bb0(%b: tensor<?xf32>):
          %1 = stablehlo.constant dense<true> : tensor<i1>
          stablehlo.return %1 : tensor<i1>
      }, {
        ^bb0(%b: tensor<?xf32>):
          stablehlo.return %b : tensor<?xf32>
      }) : (tensor<4xf32>) -> tensor<?xf32>
      return %0 : tensor<?xf32> }"""
    module = ir.Module.parse(text)
    assert str(ir.Module.parse(to_bytes(module))) == str(module)


def test_partial_sums_are_summed_before_they_go_to_another_mesh():
    attribute = '{sdy.sharding = #sdy.sharding_per_value<[<@other, [{"z"}, {}], unreduced={"w"}>]>}'
    text = explicit(MESH + OTHER + function(f"%0 = stablehlo.tanh %a {attribute} : {TENSOR}", argument=SUMS))
    assert 'sdy.all_reduce {"x"} %arg0' in text


@pytest.mark.parametrize("left, right", [("x", ""), ("", "x"), ("x", "y")])
def test_partial_sums_over_what_operands_split_in_two_ways_are_left_to_xla(left, right):
    ends = [
        f"{{sdy.sharding = #sdy.sharding<@mesh, [{dims}]>}}"
        for dims in (f"{{}}, {quoted(left)}", f"{quoted(right)}, {{}}")
    ]
    sums = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"x"}>]>}'
    text = f"""{MESH} func.func @main(%a: {TENSOR} {ends[0]}, %b: {TENSOR} {ends[1]}) -> {TENSOR} {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {sums} : ({TENSOR}, {TENSOR}) -> {TENSOR}
        return %0 : {TENSOR} }}"""
    assert "partial sums over a dimension that its operands split in different ways" in reason(text)


def quoted(axis: str) -> str:
    return f'{{"{axis}"}}' if axis else "{}"


def test_a_value_of_two_to_the_62_elements_is_left_alone():
    huge = "tensor<4611686018427387904x4xf32>"
    text = f"func.func @main(%a: {huge} {ROWS}) -> ({huge} {COLUMNS}) {{ return %a : {huge} }}"
    result = reshard.optimize(MESH + text, policy="always", check=False)
    assert not result.is_rewritten
    assert "more than 2^52 elements" in result.report.to_dict()["remarks"][0]


def test_what_is_left_whole_says_so_in_the_report_from_disk_too(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    text = MESH + function(f"%0 = sdy.data_flow_edge %a : {TENSOR}")
    reports = [reshard.explain(text).text() for _ in range(2)]
    assert reports[0] == reports[1]
    assert reports[0].startswith("reshard: the module is left to XLA: sdy.data_flow_edge")
