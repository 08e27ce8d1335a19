# SPDX-License-Identifier: Apache-2.0
"""The check by values takes back the rewrites that change values, and says why it cannot run a module.

A rewrite stays if only the stock program computes wrong values.
"""

from pathlib import Path

import numpy as np
import pytest

from reshard.dialect_utils.compare.array_differences import Difference
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Compiled, Ran
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import module_verification, report, values_check
from reshard.passes.results.module_verification import EQUAL, UNKNOWN, WRONG, Verdict, Verification
from reshard.passes.results.values_check import GIVEN_BACK, NOT_CHECKED, STOCK_IS_WRONG, WITHIN
from reshard.passes.traffic import summary
from reshard.passes.whole_module.check_record import Check
from reshard.passes.whole_module.replanned import Replanned

ROOT = Path(__file__).resolve().parents[3]
PASSES = "find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings"


def run(
    text: str, *, child=None, checks: list[Check] | None = None, passes: str = PASSES, **limits
) -> tuple[str, Session]:
    """Returns the module after the pipeline and the check, as text, and the session."""
    session = Session(RunOptions(xla_child=child))
    with make_context() as context, ir.Location.unknown(context):
        original, module = ir.Module.parse(text), ir.Module.parse(text)
        Pipeline.parse(passes).run(module, session)
        session.results.checks += checks or []
        pipeline, rows = Pipeline.parse(passes), session.results.report_rows
        return str(values_check.check(original, module, pipeline, session, rows, **limits)), session


def converted(body: str = "", sizes=(8,)) -> str:
    """Returns a function on 4 devices that converts one argument of each size from rows to columns.

    If there is a `body`, it computes %r from the first argument, and %r is converted.
    """
    arguments = [f'%a{n}: tensor<{n}x{n}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}' for n in sizes]
    results = [f'tensor<{n}x{n}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}' for n in sizes]
    names = ["%r" if body and n == sizes[0] else f"%a{n}" for n in sizes]
    types = [f"tensor<{n}x{n}xf32>" for n in sizes]
    return f"""sdy.mesh @mesh = <["x"=4]>
        func.func @main({", ".join(arguments)}) -> ({", ".join(results)}) {{
          {body}
          return {", ".join(names)} : {", ".join(types)} }}"""


class TestWithStockXla:
    def test_a_conversion_of_data_is_equal_bit_for_bit_and_stays(self):
        module, session = run(converted())
        (found,) = session.results.value_checks
        assert (found.status, found.outputs, found.runs) == (EQUAL, 1, 2) and found.seconds > 0
        assert "sdy.manual_computation(" in module and session.results.report_rows[0]["is_rewritten"]
        assert "values on random inputs: equal, 1 output (2 runs" in report.as_text(session)
        assert report.as_dict(session)["value_checks"][0]["status"] == "equal"

    def test_floats_are_compared_within_tolerance(self):
        """A program with rounding ops is equal to stock's, or within tolerance."""
        text = converted("%r = stablehlo.tanh %a8 : tensor<8x8xf32>")
        _, session = run(text)
        assert session.results.value_checks[0].status in (EQUAL, WITHIN)

    def test_inputs_that_give_no_number_are_replaced_by_positive_ones(self):
        _, session = run(converted("%r = stablehlo.log %a8 : tensor<8x8xf32>"))
        assert session.results.value_checks[0].status in (EQUAL, WITHIN) and session.results.value_checks[0].runs == 3

    @pytest.mark.slow
    def test_where_only_stock_is_wrong_the_rewrite_stays_and_a_warning_names_the_op(self):
        module, session = run((ROOT / "docs" / "updated.mlir").read_text())
        (found,) = session.results.value_checks
        assert found.status == STOCK_IS_WRONG and "the rewritten one does not" in found.message
        assert "stablehlo.dynamic_update_slice" in found.message and "sdy.manual_computation(" in module
        assert all(row["is_rewritten"] for row in session.results.report_rows)


class TestCompared:
    """`compared` says the same of a module that somebody else has made, and leaves it as it is."""

    def compared(self, text: str, ours: str, most_bytes: int = 1 << 20) -> values_check.ValuesCheck:
        session = Session()
        with make_context() as context, ir.Location.unknown(context):
            modules = ir.Module.parse(text), ir.Module.parse(ours)
            found = values_check.compared(*modules, Pipeline(()), session, most_bytes=most_bytes)
        assert not session.results.value_checks and not session.results.diagnostics.diagnostics
        return found

    def test_equal_ones(self):
        found = self.compared(converted(), converted())
        assert (found.status, found.outputs, found.runs) == (EQUAL, 1, 2)

    def test_one_that_computes_something_else(self):
        ours = converted("%r = stablehlo.negate %a8 : tensor<8x8xf32>")
        found = self.compared(converted("%r = stablehlo.tanh %a8 : tensor<8x8xf32>"), ours)
        assert found.status == WRONG and found.message.startswith("output 0 is off by ")

    @pytest.mark.slow
    def test_one_that_is_right_where_stock_is_wrong(self):
        wrong = (ROOT / "docs" / "updated.mlir").read_text()
        right = wrong.replace('[{}, {"y"}]', "[{}, {}]").replace('[{"x", "y"}, {}]', "[{}, {}]")
        assert self.compared(wrong, right).status == STOCK_IS_WRONG
        assert self.compared(right, wrong).status == WRONG

    def test_what_is_too_large(self):
        found = self.compared(converted(), converted(), most_bytes=511)
        assert found.status == NOT_CHECKED and "the limit is 511" in found.message


class TestNotChecked:
    def reason(self, text: str, **limits) -> str:
        module, session = run(text, **limits)
        (found,) = session.results.value_checks
        assert found.status == NOT_CHECKED and "sdy.manual_computation(" in module
        said = [each.message for each in session.remarks if "values" in each.message]
        assert said == [f"values were not checked: {found.message}"]
        return found.message

    def test_a_module_with_large_arguments_is_not_even_compiled(self):
        assert self.reason(converted(), most_bytes=511) == "arguments and outputs are 512 bytes, the limit is 511"

    def test_temporaries_of_all_devices_count(self):
        assert "bytes on 4 devices, the limit is 520" in self.reason(converted(), most_bytes=520)

    def test_random_numbers_without_a_key_differ_each_time(self):
        bounds = "%c = stablehlo.constant dense<0.0> : tensor<f32> %s = stablehlo.constant dense<8> : tensor<2xi64>"
        draw = '%d = "stablehlo.rng"(%c, %c, %s) {rng_distribution = #stablehlo<rng_distribution UNIFORM>}'
        draw += (
            " : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<8x8xf32> %r = stablehlo.add %a8, %d : "
            "tensor<8x8xf32>"
        )
        assert self.reason(converted(f"{bounds} {draw}")) == "stablehlo.rng gives other numbers each time"

    def test_callbacks_reach_beyond_the_program(self):
        call = "%r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a8) : (tensor<8x8xf32>) -> tensor<8x8xf32>"
        assert "xla_ffi_python_cpu_callback reaches beyond" in self.reason(converted(call, sizes=(8, 16)))

    def test_a_program_that_does_not_end_says_so(self):
        assert "does not end within" in self.reason(converted(), child=FakeChild(hangs=True))


class FakeChild:
    """Runs a module by its text: all outputs are zeros, except those of islands on tensors of the wrong sizes.

    Args:
      wrong: sizes. aborts_below: with fewer islands, but some, XLA aborts.
    """

    def __init__(self, wrong=(), hangs: bool = False, aborts_below: int = 0):
        self.wrong, self.hangs, self.aborts_below, self.ran = wrong, hangs, aborts_below, []

    def compile(self, module, num_devices, **options) -> Compiled:
        islands = module.count("sdy.manual_computation(")
        if 0 < islands < self.aborts_below:
            return Compiled("abort", "SIGABRT")
        memory = {"argument_bytes": 1, "output_bytes": 1, "temp_bytes": 1, "alias_bytes": 0}
        return Compiled("ok", bytes_received=10, bytes_sent=0, largest_collective_tile_bytes=0, **memory)

    def run(self, module, inputs, num_devices, **options) -> Ran:
        if self.hangs:
            return Ran("hang", "no answer")
        self.ran.append(module)
        islands = [line for line in module.splitlines() if "sdy.manual_computation(" in line]
        is_wrong = [n for n in self.wrong if any(f"tensor<{n // 4}x{n}xf32>" in each for each in islands)]
        return Ran("ok", outputs=tuple(np.full_like(each, each.shape[0] in is_wrong) for each in inputs))


@pytest.fixture
def ours_is_wrong(monkeypatch):
    """Replaces the search for the wrong op, which would run watched modules in the fake child."""
    off = Difference(1.0, 0.0)
    found = Verification(Verdict(EQUAL), Verdict(WRONG, output=0, difference=off), is_rewritten=True, outputs=4)
    monkeypatch.setattr(module_verification, "verify", lambda *arguments, **options: found)


@pytest.mark.usefixtures("ours_is_wrong")
class TestGivenBack:
    SIZES = (4, 8, 12, 16)

    @pytest.mark.parametrize("wrong", [(4,), (12,), (16,), (4, 16), (4, 8, 12, 16)])
    def test_the_sites_that_change_values_are_left_and_no_others(self, wrong):
        module, session = run(converted(sizes=self.SIZES), child=FakeChild(wrong))
        (found,) = session.results.value_checks
        left = [
            int(row["type"].removeprefix("tensor<").split("x")[0])
            for row in session.results.report_rows
            if not row["is_rewritten"]
        ]
        assert sorted(left) == list(wrong) and found.status == GIVEN_BACK and len(found.dropped) == len(wrong)
        assert module.count("sdy.manual_computation(") == len(self.SIZES) - len(wrong)
        reasons = [row["reason"] for row in session.results.report_rows if not row["is_rewritten"]]
        assert all("computes other values: output 0 is off by 1" in each for each in reasons)
        assert [
            each
            for each in session.results.diagnostics.diagnostics
            if "left to XLA: with the rewrite values differ" in each.message
        ]

    def test_nothing_stays_where_the_search_takes_too_long(self, monkeypatch):
        monkeypatch.setattr(values_check, "MOST_ATTEMPTS", 0)
        module, session = run(converted(sizes=self.SIZES), child=FakeChild((4,)))
        assert "sdy.manual_computation(" not in module and not [
            row for row in session.results.report_rows if row["is_rewritten"]
        ]

    def test_what_is_left_is_compared_with_stock_again(self):
        """XLA aborts with three of the four conversions, but not with all four."""
        child = FakeChild((4,), aborts_below=4)
        stock = child.compile("", 4)
        checks = [Check(stock, stock, (), True)]
        module, session = run(converted(sizes=self.SIZES), child=child, checks=checks, is_checked_as_a_whole=True)
        assert "sdy.manual_computation(" not in module and not session.results.checks[0].is_rewritten
        assert any(
            "the whole module is worse: XLA aborts: SIGABRT" in row["reason"] for row in session.results.report_rows
        )
        assert len(session.results.value_checks[0].dropped) == 4

    def test_the_check_of_the_whole_module_is_that_of_what_is_handed_over(self, monkeypatch):
        """Neither sites that were added and then given back stay in it, nor collectives of the wrong program."""
        listed = []
        monkeypatch.setattr(summary, "summary_of", lambda _, ours, *__, **___: listed.append(ours) or {"new": True})
        child = FakeChild((4,))
        stock = child.compile("", 4)
        checks = [Check(stock, stock, (), True, added=(((0, 1), "faster"), ((0,), "alone")), traffic={"old": True})]
        module, session = run(converted(sizes=self.SIZES), child=child, checks=checks, is_checked_as_a_whole=True)
        (found,) = session.results.checks
        assert found.added == (((1,), "faster"),) and found.traffic == {"new": True}
        assert found.is_rewritten and len(listed) == 1 and str(listed[0]) == module


def test_outputs_that_differ_in_one_run_only_are_given_back_and_said_so(monkeypatch):
    """Without an unsharded run, the second run is compared with stock XLA, too; it may be equal bit for bit."""
    found = Verification(Verdict(UNKNOWN), Verdict(EQUAL), is_rewritten=True, no_reference="made up", outputs=1)
    monkeypatch.setattr(module_verification, "verify", lambda *arguments, **options: found)
    _, session = run(converted(), child=FakeChild((8,)))
    (row,) = session.results.report_rows
    assert not row["is_rewritten"]
    assert row["reason"].endswith("one run fails or departs from stock XLA, another run has equal outputs")


def test_nothing_is_run_where_nothing_is_rewritten():
    child = FakeChild()
    _, session = run(converted(), child=child, passes="find-mismatches")
    assert not session.results.value_checks and not child.ran


def test_runs_that_are_not_timed_need_no_optimization():
    """The option changes only the time: a compilation without LLVM's passes takes half as long."""
    with xla_child.XlaChild(uses_cache=False, num_devices=4) as child:
        fast, slow = (child.run(converted(), None, 4, optimizes=each) for each in (False, True))
    assert fast.status == slow.status == "ok" and np.array_equal(fast.outputs[0], slow.outputs[0])


def test_the_module_check_still_leaves_sites_by_number():
    """The check by values uses the same class, `Replanned`."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(converted(sizes=(4, 8)))
        replanned = Replanned(module, Pipeline.parse(PASSES), Session())
        for sites in ([], [1], [0, 1]):
            assert str(replanned.with_sites(sites)).count("sdy.manual_computation(") == len(sites)
