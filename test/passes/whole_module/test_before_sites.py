# SPDX-License-Identifier: Apache-2.0
"""The module written per device before its sites are planned, and the bound that allows it."""

import pytest

from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import XlaChild
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.results import checks
from reshard.passes.whole_module import whole_module_check
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.taken_over import LEAN
from reshard.passes.whole_module.tried_wholes import TriedWholes

MESH = 'sdy.mesh @mesh = <["data"=2, "seq"=4]>'
# One row of a table of split rows, for which stock XLA gathers the table, beside a small array that changes its layout.
ROW_AND_CUBE = f"""
{MESH}
func.func @main(%table: tensor<8192x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data", "seq"}}, {{}}]>}},
                %place: tensor<i32>,
                %cube: tensor<32x32x32xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}, {{"seq"}}]>}})
    -> (tensor<32x32x32xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"seq", "data"}}, {{}}]>}},
        tensor<1x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %table, %place, %zero, sizes = [1, 1024]
    : (tensor<8192x1024xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1024xf32>
  return %cube, %0 : tensor<32x32x32xf32>, tensor<1x1024xf32>
}}"""
# The array alone: an island at its site is as good as the module written per device.
CUBE = f"""
{MESH}
func.func @main(%cube: tensor<128x128x128xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}, {{"seq"}}]>}})
    -> (tensor<128x128x128xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"seq", "data"}}, {{}}]>}}) {{
  %0 = stablehlo.sine %cube : tensor<128x128x128xf32>
  return %0 : tensor<128x128x128xf32>
}}"""
# Two sums of parts, of which the module written per device makes one, beside a small array that changes its layout.
SUMS_AND_CUBE = f"""
{MESH}
func.func @main(%a: tensor<512x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"data", "seq"}}]>}},
                %b: tensor<1024x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data", "seq"}}, {{}}]>}},
                %cube: tensor<16x16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}, {{"seq"}}]>}})
    -> (tensor<16x16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"seq", "data"}}, {{}}]>}},
        tensor<512x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<512x1024xf32>, tensor<1024x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.sine %a : tensor<512x1024xf32>
  %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0]
    : (tensor<512x1024xf32>, tensor<1024x512xf32>) -> tensor<512x512xf32>
  %3 = stablehlo.add %0, %2 : tensor<512x512xf32>
  return %cube, %3 : tensor<16x16x16xf32>, tensor<512x512xf32>
}}"""
# The gradient of a parameter that is wanted split: gathering an operand is cheaper than the sum.
GRADIENT = """
sdy.mesh @mesh = <["data"=8]>
func.func @main(%x: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                %y: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
    -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  %0 = stablehlo.dot_general %y, %x, contracting_dims = [0] x [0]
    : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<512x512xf32>) -> tensor<512x512xf32>
  return %1 : tensor<512x512xf32>
}"""
# An array that is gathered in each of ten turns.
IN_A_LOOP = f"""
{MESH}
func.func @main(%x: tensor<512x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data", "seq"}}, {{}}]>}})
    -> (tensor<512x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data", "seq"}}, {{}}]>}}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %w:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<512x512xf32> cond {{
    %l = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }} do {{
    %s = stablehlo.sine %c : tensor<512x512xf32>
    %t = sdy.sharding_constraint %s <@mesh, [{{}}, {{"seq"}}]> : tensor<512x512xf32>
    %u = stablehlo.cosine %t : tensor<512x512xf32>
    %v = sdy.sharding_constraint %u <@mesh, [{{"data", "seq"}}, {{}}]> : tensor<512x512xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %v : tensor<i32>, tensor<512x512xf32>
  }}
  return %w#1 : tensor<512x512xf32>
}}"""


def optimized(text: str, effort: int = 1, emit: str = "auto", needs_run: bool = False, **options):
    """Returns the module after the pipeline and its checks, as text, and the session."""
    pipeline, session = Pipeline.emitting(emit, {"topology": "h100:2x4", **options}), Session(RunOptions(effort=effort))
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text, context)

        def run(part: Pipeline) -> ir.Module:
            part.run(module, session)
            return module

        asked = {"compiles": True, "value_bytes": None, "needs_run": needs_run}
        parse = lambda: ir.Module.parse(text, context)  # noqa: E731
        return str(checks.run_and_checked(parse, run, pipeline, session, **asked)), session


@pytest.fixture
def planned(monkeypatch) -> list:
    """The modules whose sites were planned."""
    found, run = [], PlanSitesPass.run
    monkeypatch.setattr(PlanSitesPass, "run", lambda self, *more: found.append(more) or run(self, *more))
    return found


def test_no_site_is_planned_where_no_set_of_sites_can_be_as_good(planned):
    module, session = optimized(SUMS_AND_CUBE, topology="cpu:8")  # compilers for GPUs make one sum of it, too
    (check,) = session.results.checks
    assert check.taken_over == "time" and check.our_time.seconds < check.stock_time.seconds and not planned
    assert check.attempts == 1 and "manual_axes" in module
    assert {row["kind"] for row in session.results.report_rows} == {"local"}
    (remark,) = [each for each in session.remarks if "written per device" in each.message]
    assert "no set of sites takes less than" in remark.message


def test_the_result_is_the_same_if_sites_are_planned(planned):
    first, _ = optimized(SUMS_AND_CUBE, topology="cpu:8")
    assert not planned
    second, session = optimized(SUMS_AND_CUBE, topology="cpu:8", needs_run=True)
    assert planned and first == second and session.results.checks[0].taken_over == "time"


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    ("text", "how"),
    [
        (CUBE, {}),
        (ROW_AND_CUBE, {}),
        (GRADIENT, {}),
        (SUMS_AND_CUBE, {"effort": 2}),
        (SUMS_AND_CUBE, {"topology": ""}),
        (SUMS_AND_CUBE, {"policy": "strict"}),
        (SUMS_AND_CUBE, {"emit": "manual"}),
    ],
    ids=(
        "as good",
        "less",
        "operands are gathered",
        "more effort",
        "unknown network",
        "another policy",
        "islands only",
    ),
)
def test_sites_are_planned(text, how, planned):
    optimized(text, **how)
    assert planned


@pytest.mark.parametrize("lacks_memory", [False, True])
def test_forms_are_not_written_twice_if_sites_are_planned_after_all(lacks_memory, monkeypatch):
    written, write = [], whole_module_check.take_over_as

    def watched(form, *more):
        written.append(form)
        return write(form, *more)

    monkeypatch.setattr(whole_module_check, "take_over_as", watched)
    for module in ("taken_over", "tried_wholes"):
        monkeypatch.setattr(f"reshard.passes.whole_module.{module}.take_over_as", watched)
    if lacks_memory:
        monkeypatch.setattr(TriedWholes, "_lacking_memory_alone", lambda self, *_: (self.tried[0], 0.0))
        monkeypatch.setattr(ModuleCriterion, "excess_bytes", lambda *_: 1000)
    _, session = optimized(CUBE)
    assert session.results.checks and len(written) == len(set(written))
    assert lacks_memory == any(each.endswith((LEAN, "released")) for each in written)


def test_stock_is_compiled_once(monkeypatch):
    modules, compile = [], XlaChild.compile
    monkeypatch.setattr(
        XlaChild,
        "compile",
        lambda self, module, *more, **how: modules.append(module) or compile(self, module, *more, **how),
    )
    optimized(CUBE)
    stock = [each for each in modules if "manual_computation" not in each and "128x128x128" in each]
    assert sum("stablehlo.sine" in each for each in stock) <= 2  # one of them is the question about the site


def test_a_mistake_of_the_user_is_reported_once():
    sharding = '{mhlo.sharding = "{devices=[2,2]0,1}"}'
    wrong = CUBE.replace("stablehlo.sine %cube", f"stablehlo.custom_call @Sharding(%cube) {sharding}")
    wrong = wrong.replace(": tensor<128x128x128xf32>\n", ": (tensor<128x128x128xf32>) -> tensor<128x128x128xf32>\n", 1)
    with pytest.raises(DiagnosedError, match="2 devices for 4 tiles") as refused:
        optimized(wrong)
    assert len(refused.value.diagnostics) == 1


@pytest.mark.mostly_slow
@pytest.mark.parametrize("topology", ["h100:2x4", "v5e:2x4", "cpu"])
@pytest.mark.parametrize(
    "text",
    [ROW_AND_CUBE, CUBE, SUMS_AND_CUBE, GRADIENT, IN_A_LOOP],
    ids=("row", "cube", "sums", "gradient", "in a loop"),
)
def test_no_set_of_sites_gains_more_than_the_bound_says(text, topology):
    pipeline = Pipeline.emitting("auto", {"topology": topology})
    with make_context() as context, ir.Location.unknown(context):
        begun = whole_module_check.begin(ir.Module.parse(text, context), pipeline, Session())
        begun.before_sites()
        least = begun._least_with_sites()
    _, session = optimized(text, effort=3, emit="manual", topology=topology)
    (check,) = session.results.checks
    assert least is not None and check.our_time.seconds >= least.seconds * (1 - 1e-9)


def test_numbers_of_another_module_with_the_same_ops():
    with make_context() as context:
        module, same, other = (ir.Module.parse(text, context) for text in (CUBE, CUBE, GRADIENT))
        numbered = NumberedOps(module)
        found = numbered.numbers_of(ops_in(same.operation))
        ((sine, number),) = [each for each in found.items() if each[0].name == "stablehlo.sine"]
        assert numbered.of_name(f"reshard.op/{number}").name == sine.name
        assert numbered.numbers_of(ops_in(other.operation)) is None
