# SPDX-License-Identifier: Apache-2.0
"""The whole-module check finds rewrites that are better at their sites but worse together, and takes them back."""

import dataclasses
import re
from types import SimpleNamespace

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled, CompileRequest, KindCount, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import report
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import BETTER, STRICT, TABLES_OF_POINTERS_BYTES
from reshard.passes.whole_module import whole_module_check
from reshard.passes.whole_module.check_record import network_of
from reshard.passes.whole_module.module_cost import ModuleCriterion
from reshard.passes.whole_module.site_groups import groups_of
from reshard.passes.whole_module.whole_module_check import MOST_ATTEMPTS

# The layout check is off: it would compile modules too, and these tests look at the compiled modules.
PASSES = "find-mismatches,plan-sites{layout-check=off},synthesize-collectives,strip-findings"


def run(text: str, *, policy="better", judge=None, topology="", child=None, **options) -> tuple[str, Session]:
    """Returns the module after the pipeline and the check, as text, and the session. No module is taken over whole.

    With the policy `always`, nobody asks XLA about sites; `judge` is then the policy of the check.
    """
    given = {"policy": policy, "leave": options.pop("leave", ""), "topology": topology, "emit": "manual"}
    pipeline = Pipeline.parse(PASSES).with_options(given)
    session = Session(RunOptions(xla_child=child, **options))
    with make_context() as context, ir.Location.unknown(context):
        original, module = ir.Module.parse(text), ir.Module.parse(text)
        pipeline.run(module, session)
        rows = session.results.report_rows
        return str(whole_module_check.check(original, module, pipeline, session, rows, policy=judge)), session


def parsed(text: str) -> str:
    with make_context() as context:
        return str(ir.Module.parse(text, context))


def islands(module: str) -> int:
    return module.count("sdy.manual_computation(")


# ---------------------------------------------------------------------------------------------------------------------
# At work, with stock XLA
# ---------------------------------------------------------------------------------------------------------------------


def conversions(values: dict[tuple[int, ...], list[str]]) -> str:
    """Returns a function on mesh x=2,y=2 that returns each argument in other layouts.

    In the arguments `y` splits dimension 0 and `x` splits dimension 2.
    """
    arguments, results, returned = [], [], []
    for number, (shape, targets) in enumerate(values.items()):
        type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
        source = '[{"y"}, {}, {"x"}' + ", {}" * (len(shape) - 3) + "]"
        arguments.append(f"%a{number}: {type_} {{sdy.sharding = #sdy.sharding<@mesh, {source}>}}")
        results += [f"{type_} {{sdy.sharding = #sdy.sharding<@mesh, {target}>}}" for target in targets]
        returned += [(f"%a{number}", type_)] * len(targets)
    names, types = (", ".join(each) for each in zip(*returned))
    return f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
        func.func @main({", ".join(arguments)}) -> ({", ".join(results)}) {{ return {names} : {types} }}"""


def on_one_dimension(rank: int) -> list[str]:
    """Returns the layouts with both axes on one dimension, in both orders.

    Dimensions 0 and 2 are left out. Stock XLA gathers the whole value to reach these layouts.
    """
    free = [dim for dim in range(rank) if dim not in (0, 2)]
    layouts = []
    for dim in free:
        for axes in ('{"x", "y"}', '{"y", "x"}'):
            layouts.append("[" + ", ".join(axes if each == dim else "{}" for each in range(rank)) + "]")
    return layouts


class TestWithStockXla:
    @pytest.mark.slow
    def test_conversions_that_are_worse_together_are_all_taken_back(self):
        """Stock XLA gathers once for all six results; one all_to_all moves less than the gather, but six move more."""
        text = conversions({(4,) * 5: on_one_dimension(5)})
        module, session = run(text)
        (found,) = session.results.checks
        assert module == parsed(text)
        assert not found.is_rewritten
        assert found.ours == found.stock
        # Each conversion alone is better; the module with all of them, or with any part of them, is worse.
        rows = session.results.report_rows
        assert [(row["stock_bytes"], row["our_bytes"]) for row in rows] == [(3072, 768)] * 6
        assert found.stock.bytes_received == 3072 < 6 * 768
        ((sites, problem),) = found.dropped
        assert sites == (0, 1, 2, 3, 4, 5)
        assert "received bytes per device 3,072 -> 4,608 on an unknown network" in problem
        assert all(not row["is_rewritten"] and "the whole module is worse" in row["reason"] for row in rows)
        assert f"left to XLA again: site 0, 1, 2, 3, 4, 5: {problem}" in report.as_text(session)

    @pytest.mark.slow
    def test_a_conversion_that_pays_survives_those_that_do_not(self):
        """The set is halved until the part that pays stands alone."""
        pays = ['[{}, {"x", "y"}, {}]']
        text = conversions({(4,) * 6: on_one_dimension(6), (16, 16, 18): pays})
        module, session = run(text)
        (found,) = session.results.checks
        assert 1 <= islands(module) < 9
        assert (
            session.results.report_rows[-1]["type"] == "tensor<16x16x18xf32>"
            and session.results.report_rows[-1]["is_rewritten"]
        )
        assert found.is_rewritten
        assert found.ours.bytes_received <= found.stock.bytes_received
        assert found.ours.output_shardings == found.stock.output_shardings

    def test_two_small_exchanges_take_longer_than_one_small_gather(self):
        """Each alone is as fast and receives less; together they are launched twice."""
        text = conversions({(8, 8, 8): on_one_dimension(3)})
        module, session = run(text)
        assert module == parsed(text)
        assert "modelled time" in session.results.checks[0].dropped[0][1]

    def test_together_better_means_all_stay(self):
        module, session = run(conversions({(128, 128, 128): on_one_dimension(3)}))
        (found,) = session.results.checks
        assert islands(module) == 2
        assert found.dropped == ()
        assert found.ours.bytes_received < found.stock.bytes_received

    def test_an_op_that_stock_partitions_better_is_taken_back(self):
        """The policy `always` rewrites sites that `strict` would keep; a strict check takes the rewrite back."""
        matrix = "tensor<16x16xf32>"
        text = f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
        func.func @main(%a: {matrix} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
            %b: {matrix} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x", "y"}}]>}})
            -> ({matrix} {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{"x"}}]>}}) {{
          %r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({matrix}, {matrix}) -> {matrix}
          return %r : {matrix}
        }}"""
        module, session = run(text, policy="always", judge="strict")
        assert module == parsed(text)
        assert session.results.checks[0].dropped == (((0, 1), "received bytes per device 640 -> 832"),)

    def test_always_measures_and_takes_nothing_back(self):
        module, session = run(conversions({(4,) * 5: on_one_dimension(5)}), policy="always")
        (found,) = session.results.checks
        assert islands(module) == 6 and found.dropped == ()
        assert found.ours.bytes_received > found.stock.bytes_received

    @pytest.mark.slow
    def test_on_a_known_network_time_decides_and_bytes_may_rise(self):
        """Over a slow link stock XLA's one gather of all data costs more than six exchanges within a host."""
        text = conversions({(4,) * 5: on_one_dimension(5)})
        times = {}
        for topology in ("uniform", "h100:2x2"):
            _, session = run(text, topology=topology)
            (found,) = session.results.checks
            assert found.our_time.seconds <= found.stock_time.seconds
            times[topology] = found.stock_time.seconds / found.our_time.seconds
            assert found.topology == topology
        assert times["h100:2x2"] >= 1.0

    def test_a_module_without_rewritten_sites_is_not_compiled(self):
        class Nobody:
            def compile(self, *_, **__):
                raise AssertionError("nothing is to be compiled")

        text = (
            'sdy.mesh @mesh = <["x"=4]>\nfunc.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : '
            "tensor<8xf32> }"
        )
        module, session = run(text, child=Nobody())
        assert module == parsed(text)
        assert session.results.checks == []


# ---------------------------------------------------------------------------------------------------------------------
# The order of dropping, with made-up answers
# ---------------------------------------------------------------------------------------------------------------------


def compiled(received=100, temp=5000, inputs=("in",), outputs=("out",), all_to_alls=0) -> Compiled:
    counts = (KindCount("all_to_all", all_to_alls, all_to_alls),)
    return Compiled(
        "ok",
        bytes_received=received,
        temp_bytes=temp,
        largest_collective_tile_bytes=0,
        collectives=counts,
        input_shardings=inputs,
        output_shardings=outputs,
    )


def problem(stock: Compiled, ours: Compiled) -> str:
    return ModuleCriterion(STRICT, SiteNetwork(), 4).problem(stock, ours)


class FakeChild:
    """Answers by a function of the arguments that islands convert; `asked` lists these arguments for each module."""

    def __init__(self, judge):
        self.judge = judge
        self.asked: list[tuple[int, ...]] = []
        self.foreseen: list[CompileRequest] = []
        self.requests: list[CompileRequest] = []

    def compile(self, module, num_devices, *, has_final=False, **_):
        self.requests.append(CompileRequest(module, num_devices, has_final=has_final))
        converted = tuple(int(each) for each in re.findall(r"sdy\.manual_computation\(%arg(\d+)\)", module))
        self.asked.append(converted)
        return self.judge(converted)

    def propagate(self, module, num_devices):
        return self.compile(module, num_devices)

    def prepare(self, num_devices):
        pass

    def foresee(self, requests):
        """Foresees nothing, so that `asked` lists what was needed; `foreseen` lists the requests."""
        self.foreseen += requests

    def begin(self, requests):
        self.foresee(requests)


def independent(count: int) -> str:
    """Returns a function that returns its arguments in another layout; each argument is larger than the one before."""
    shapes = [f"tensor<{4 * (number + 1)}x4xf32>" for number in range(count)]
    x, y = (f'{{sdy.sharding = #sdy.sharding<@mesh, [{{"{axis}"}}, {{}}]>}}' for axis in "xy")
    arguments = ", ".join(f"%arg{number}: {shape} {x}" for number, shape in enumerate(shapes))
    results = ", ".join(f"{shape} {y}" for shape in shapes)
    names = ", ".join(f"%arg{number}" for number in range(count))
    return f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
        func.func @main({arguments}) -> ({results}) {{ return {names} : {", ".join(shapes)} }}"""


def test_sites_where_stock_does_as_well_are_in_one_set_to_start_with_only():
    """The policy `always` rewrites them too, and `better` is never worse than that."""
    rows = [
        {"site": site, "group": site, "possible": possible, "is_rewritten": site == 0, "stock_us": 2.0, "our_us": 1.0}
        for site, possible in enumerate(["strict", "better", "always", None])
    ]
    groups = groups_of(rows, Pipeline(()), "better")
    assert [(group.sites, group.is_even) for group in groups] == [((0,), False), ((1,), False), ((2,), True)]


def test_what_a_site_gains_counts_as_often_as_it_runs():
    rows = [
        {"site": site, "group": site, "possible": "better", "stock_us": 3.0, "our_us": 1.0, "runs": runs}
        for site, runs in enumerate([1, 12, None])
    ]
    groups = groups_of(rows, Pipeline(()), "better")
    assert [round(group.gain_s * 1e6) for group in groups] == [2, 24, 2]
    assert [group.is_known for group in groups] == [True, True, False]


class TestDropping:
    """The policy `strict`: as many of the proposed sites as are not worse."""

    def test_halves_are_tried_while_there_are_attempts(self):
        child = FakeChild(lambda converted: compiled(received=101 if len(converted) > 1 else 100))
        module, session = run(independent(4), policy="always", judge="strict", child=child)
        assert child.asked == [(), (0, 1, 2, 3), (0, 1), (2, 3), (0,), (0, 2), (0, 3)]
        assert islands(module) == 1
        assert [sites for sites, _ in session.results.checks[0].dropped] == [(1, 2, 3)]

    def test_the_one_bad_site_is_found(self):
        child = FakeChild(lambda converted: compiled(received=101 if 2 in converted else 100))
        module, session = run(independent(4), policy="always", judge="strict", child=child)
        assert child.asked == [(), (0, 1, 2, 3), (0, 1), (0, 1, 2), (0, 1, 3)]
        assert islands(module) == 3
        assert session.results.checks[0].dropped == (((2,), "received bytes per device 100 -> 101"),)

    def test_what_is_foreseen_is_what_is_asked(self, monkeypatch):
        monkeypatch.setattr("reshard.dialect_utils.xla.worker._LARGE", 1)  # every module is worth it
        child = FakeChild(lambda converted: compiled(received=101 if 2 in converted else 100))
        run(independent(4), policy="always", judge="strict", child=child)
        assert child.requests[:2] == child.foreseen[:2] and set(child.requests) <= set(child.foreseen)

    def test_the_attempts_are_bounded(self):
        child = FakeChild(lambda converted: compiled(received=100 + len(converted)))
        module, session = run(independent(30), policy="always", judge="strict", child=child)
        assert len(child.asked) <= 1 + MOST_ATTEMPTS
        assert islands(module) == 0
        assert sum(len(sites) for sites, _ in session.results.checks[0].dropped) == 30

    def test_more_effort_allows_more_attempts(self):
        child = FakeChild(lambda converted: compiled(received=100 + len(converted)))
        run(independent(30), policy="always", judge="strict", child=child, effort=3)
        assert 1 + MOST_ATTEMPTS < len(child.asked) <= 1 + 3 * MOST_ATTEMPTS

    def test_a_chain_of_constraints_is_dropped_as_a_whole(self):
        t = "tensor<8x4xf32>"
        text = f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
        func.func @main(%arg0: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
            %arg1: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
            -> ({t} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"y"}}]>}}, {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}}) {{
          %0 = sdy.sharding_constraint %arg0 <@mesh, [{{}}, {{"x"}}]> : {t}
          %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"y"}}]> : {t}
          return %1, %arg1 : {t}, {t}
        }}"""  # noqa: E501
        child = FakeChild(lambda converted: compiled(received=101 if 0 in converted else 100))
        module, session = run(text, policy="always", judge="strict", child=child)
        assert child.asked == [(), (0, 1), (0,), (1,)]
        assert session.results.checks[0].dropped[0][0] == (0, 1)
        assert module.count("sdy.sharding_constraint") == 2

    def test_sites_that_the_caller_leaves_stay_left(self):
        child = FakeChild(lambda converted: compiled(received=101 if 0 in converted else 100))
        module, _ = run(independent(3), policy="always", judge="strict", child=child, leave="1")
        assert child.asked == [(), (0, 2), (0,), (2,)] and islands(module) == 1

    def test_nothing_is_worse_than_a_failure_of_stock(self):
        child = FakeChild(lambda converted: compiled(received=10**6) if converted else Compiled("abort", "SIGABRT"))
        module, session = run(independent(2), policy="always", child=child)
        assert islands(module) == 2
        assert session.results.checks[0].dropped == ()

    def test_the_site_that_makes_xla_fail_is_dropped(self):
        child = FakeChild(lambda converted: Compiled("abort", "SIGABRT: oh") if 1 in converted else compiled())
        module, session = run(independent(3), policy="always", child=child)
        assert islands(module) == 2
        assert session.results.checks[0].dropped[0] == ((1,), "XLA aborts: SIGABRT: oh")

    def test_where_xla_refuses_both_nothing_is_measured(self):
        """A library without a main function, say: sites stay as they were judged alone."""
        child = FakeChild(lambda converted: Compiled("error", "no main"))
        module, session = run(independent(3), policy="always", judge="strict", child=child)
        assert islands(module) == 3 and session.results.checks == []
        said = "XLA compiles the module neither way: no main"
        assert f"nothing is measured as a whole: {said}" in [each.message for each in session.remarks]
        assert report.as_dict(session)["not_measured"] == f"nothing measured: {said}"

    def test_a_target_with_another_number_of_devices_is_refused(self):
        with pytest.raises(DiagnosedError, match="the module is for 4 devices, the target has 8"):
            run(
                independent(1),
                policy="always",
                child=FakeChild(lambda _: compiled()),
                compile_for=Target.parse("cpu:8"),
            )


SLICE = Target.parse("tpu:v5e:2x2")


def compiled_ahead(received=100, final=100, unpriced=(), seconds: float | None = 1e-4) -> Compiled:
    return dataclasses.replace(
        compiled(received, all_to_alls=2),
        bytes_sent=received,
        argument_bytes=64,
        output_bytes=32,
        alias_bytes=0,
        final_bytes_received=final,
        final_bytes_sent=final,
        final_collectives=(KindCount("all_to_all", 1, 1),),
        final_unpriced=unpriced,
        peak_memory_bytes=9000,
        compile_seconds=1.5,
        estimated_seconds=seconds,
    )


NOTHING_IS_SENT = """HloModule m, is_scheduled=true

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}
"""


class TestAheadOfTime:
    def check(self, child, count=1, **options) -> Session:
        return run(independent(count), policy="always", judge="strict", child=child, compile_for=SLICE, **options)[1]

    def test_the_compiler_of_the_target_is_asked(self):
        child = RecordingChild(lambda converted: compiled_ahead())
        (found,) = self.check(child).results.checks
        assert child.targets == [SLICE, SLICE]
        assert found.target == SLICE and found.is_rewritten

    def test_more_bytes_in_the_final_program_alone_are_a_reason_to_drop(self):
        child = FakeChild(lambda converted: compiled_ahead(received=90, final=101) if converted else compiled_ahead())
        (found,) = self.check(child).results.checks
        assert found.dropped == (((0,), "received bytes per device in the final program 100 -> 101"),)

    def test_only_what_would_be_the_best_set_is_compiled_for_an_estimate(self):
        child = EstimatingChild(lambda converted: compiled_ahead(received=101 if len(converted) > 1 else 100))
        (found,) = self.check(child, count=2).results.checks
        assert child.asked == [(), (0, 1), (0,)]
        assert child.estimates == [(), (0,)]
        assert found.stock.estimated_seconds == found.ours.estimated_seconds == 1e-4

    def test_a_list_of_what_both_programs_send_takes_one_more_compilation_and_no_estimate(self):
        child = EstimatingChild(lambda converted: dataclasses.replace(compiled_ahead(), hlo_text=NOTHING_IS_SENT))
        (found,) = self.check(child, with_traffic=True).results.checks
        assert child.asked == [(), (0,), (0,)]
        assert child.estimates == [(), (0,)]
        assert found.traffic["stock"]["collectives"] == found.traffic["ours"]["collectives"] == []

    def test_a_set_that_is_best_but_for_its_estimate_is_not_chosen(self):
        child = EstimatingChild(lambda converted: compiled_ahead(90, 90, seconds=1.11e-4 if converted else 1e-4))
        (found,) = self.check(child).results.checks
        assert child.estimates == [(), (0,)]
        assert found.dropped == (((0,), "the compiler's own estimate in us 100.0 -> 111.0"),)

    def test_a_longer_time_by_the_compilers_own_estimate_is_a_reason_to_drop(self):
        child = FakeChild(lambda converted: compiled_ahead(90, 90, seconds=1.11e-4 if converted else 1e-4))
        (found,) = self.check(child).results.checks
        assert found.dropped == (((0,), "the compiler's own estimate in us 100.0 -> 111.0"),)

    @pytest.mark.parametrize("seconds", [None, 1.09e-4])
    def test_without_an_estimate_or_with_much_the_same_one_the_bytes_decide(self, seconds):
        assert problem(compiled_ahead(), compiled_ahead(90, 90, seconds=seconds)) == ""

    def test_memory_is_the_larger_of_the_peak_and_of_what_is_allocated(self):
        """More temporary bytes are not worse as long as the sum of the buffers is at most the peak memory."""
        stock = compiled_ahead()
        assert problem(stock, dataclasses.replace(stock, temp_bytes=8_000)) == ""
        for more in ({"temp_bytes": 50_000 - 96}, {"peak_memory_bytes": 50_000}):
            assert problem(stock, dataclasses.replace(stock, **more)) == "memory in bytes 9,000 -> 50,000"

    def test_final_bytes_with_unpriced_traffic_between_slices_say_nothing(self):
        stock, ours = compiled_ahead(final=0), compiled_ahead(final=50, unpriced=("recv", "send"))
        assert problem(stock, ours) == ""

    def test_without_a_rewrite_what_the_compiler_makes_of_the_module_is_told(self):
        child = FakeChild(lambda converted: compiled_ahead())
        (found,) = self.check(child, leave="0").results.checks
        assert child.asked == [()] and found.stock == found.ours and not found.is_rewritten

    def test_no_such_target_is_a_mistake_of_the_user(self):
        child = FakeChild(lambda converted: Compiled("target", "the compiler refuses tpu:v5e:2x2: no"))
        with pytest.raises(DiagnosedError, match="error: the compiler refuses tpu:v5e:2x2: no$"):
            self.check(child)

    def test_report(self):
        child = FakeChild(lambda converted: compiled_ahead(90, 80, seconds=None) if converted else compiled_ahead())
        text = report.as_text(self.check(child))
        rows = [" ".join(line.split()) for line in text.partition("whole module")[2].splitlines() if "---" not in line]
        assert rows[:13] == [
            ", compiled for tpu:v5e:2x2, modelled on an unknown network (us, bytes per device):",
            "modelled in collectives arguments outputs temporaries peak compiled in s estimate in us",
            "stock 0.0 0.0 64 32 5,000 9,000 1.50 100.0",
            "ours 0.0 0.0 64 32 5,000 9,000 1.50 none",
            "right after partitioning:",
            "received sent collectives",
            "stock 100 100 2 all_to_all",
            "ours 90 90 2 all_to_all",
            "in the compiler's final program:",
            "received sent collectives",
            "stock 100 100 1 all_to_all",
            "ours 80 80 1 all_to_all",
            "estimate: the compiler's own, by bandwidth; it knows no latency and not where devices are",
        ]

    @pytest.mark.parametrize(("ours_s", "where"), [(None, "no estimates to compare: "), (9e-5, "")])
    def test_report_says_what_the_code_generator_says(self, ours_s, where):
        """The network, the target's, is known."""

        def compiled(converted):
            found = compiled_ahead(seconds=ours_s if converted else 1e-4)
            return dataclasses.replace(found, generated_seconds=2e-4 if converted else 3e-4)

        session = self.check(FakeChild(compiled))
        assert "code generator" not in report.as_text(session)
        session.results.checks[-1] = dataclasses.replace(session.results.checks[-1], topology="v5e:2x2")
        said = f"\n  {where}the compiler's code generator has 300.0 us for stock, 200.0 us for ours\n"
        assert said in report.as_text(session)
        (found,) = report.as_dict(session)["checks"]
        assert [found[side]["generated_seconds"] for side in ("stock", "ours")] == [3e-4, 2e-4]

    def test_report_of_a_module_that_one_compiler_aborts_on(self):
        child = FakeChild(lambda converted: compiled_ahead() if converted else Compiled("abort", "SIGABRT: oh"))
        rows = [" ".join(line.split()) for line in report.as_text(self.check(child)).splitlines()]
        assert rows.count("stock abort SIGABRT: oh") == 3

    def test_report_as_json(self):
        (found,) = report.as_dict(self.check(FakeChild(lambda converted: compiled_ahead(unpriced=("send",)))))["checks"]
        assert found["target"] == "tpu:v5e:2x2"
        assert found["ours"] == {
            "status": "ok",
            "modelled_us": 0.0,
            "modelled_collectives_us": 0.0,
            "message": "",
            "bytes_received": 100,
            "bytes_sent": 100,
            "collectives": {"all_to_all": 2},
            "argument_bytes": 64,
            "output_bytes": 32,
            "alias_bytes": 0,
            "temp_bytes": 5000,
            "peak_memory_bytes": 9000,
            "final_bytes_received": 100,
            "final_bytes_sent": 100,
            "final_collectives": {"all_to_all": 1},
            "final_unpriced": ("send",),
            "compile_seconds": 1.5,
            "estimated_seconds": 1e-4,
        }


class RecordingChild(FakeChild):
    """A `FakeChild` that also records the targets of the questions."""

    def __init__(self, judge):
        super().__init__(judge)
        self.targets: list[Target | None] = []

    def compile(self, module, num_devices, *, target=None, **_):
        self.targets.append(target)
        return super().compile(module, num_devices)


class EstimatingChild(FakeChild):
    """A `FakeChild` whose answers are for a target where the estimate takes another compilation.

    `estimates` lists the converted arguments of the modules that were compiled for it.
    """

    def __init__(self, judge):
        super().__init__(judge)
        self.estimates: list[tuple[int, ...]] = []

    def compile(self, module, num_devices, *, target=None, with_estimate=True, **_):
        found = super().compile(module, num_devices)
        lacking = dataclasses.replace(found, estimated_seconds=None, lacks_estimate=True)
        return self.estimated(lacking, module, num_devices, target) if with_estimate else lacking

    def estimated(self, compiled, module, num_devices, target):
        assert compiled.lacks_estimate and target == SLICE
        found = super().compile(module, num_devices)
        self.estimates.append(self.asked.pop())
        return found


@pytest.mark.parametrize(
    "received, seconds, problem",
    [
        (110, 0.99, "received bytes 100 -> 110 for 1.0% of the time"),
        (110, 0.97, ""),
        (100, 0.99, ""),
        (110, 1.01, "modelled time 1,000,000.0 us -> 1,010,000.0 us"),
    ],
)
def test_more_bytes_have_to_gain_more_time_than_the_model_may_err(received, seconds, problem):
    sizes = {"argument_bytes": 8, "output_bytes": 8, "alias_bytes": 0}
    stock, ours = (dataclasses.replace(compiled(each), **sizes) for each in (100, received))
    times = {id(stock): 1.0, id(ours): seconds}
    network = SimpleNamespace(
        is_known=True,
        has_processes_alone=False,
        memory_limit=None,
        time_beside=lambda beside, each, devices: SimpleNamespace(seconds=times[id(each)]),
    )
    criterion = ModuleCriterion(BETTER, network, 4)  # type: ignore[arg-type]
    assert criterion.problem(stock, ours) == problem
    assert bool(criterion.outcome(stock, ours, 1).problem) == problem.startswith("received")


class TestWhatIsWorse:
    @pytest.mark.parametrize(
        "ours, words",
        [
            (compiled(received=101), "received bytes per device 100 -> 101"),
            (compiled(temp=9000), "temporaries in bytes 5,000 -> 9,000"),
            (compiled(inputs=("other",)), "the input shardings differ from stock XLA's"),
            (compiled(outputs=("other",)), "the output shardings differ from stock XLA's"),
            (
                compiled(received=101, outputs=()),
                "received bytes per device 100 -> 101, the output shardings differ from stock XLA's",
            ),
            (Compiled("hang", "no answer"), "XLA hangs: no answer"),
            (Compiled("abort"), "XLA aborts: no message"),
        ],
    )
    def test_is_said_in_words(self, ours, words):
        assert problem(compiled(), ours) == words

    def test_equal_or_better_is_nothing(self):
        assert problem(compiled(), compiled()) == ""
        assert problem(compiled(), compiled(received=1, temp=1)) == ""
        assert problem(Compiled("hang", ""), compiled(received=10**9)) == ""

    def test_tables_of_pointers_are_no_temporaries_one_for_each_new_all_to_all(self):
        table = TABLES_OF_POINTERS_BYTES
        assert problem(compiled(), compiled(temp=5000 + table)) == ""
        assert problem(compiled(), compiled(temp=5000 + 3 * table, all_to_alls=3)) == ""
        assert problem(compiled(all_to_alls=2), compiled(temp=5000 + 3 * table, all_to_alls=3)) != ""


def test_the_shared_child_sees_the_same_as_the_oracle():
    """With one value and one target the whole module is the conversion, so both must agree on every cost."""
    starts_before = shared_child().starts
    _, session = run(conversions({(8, 8, 8): on_one_dimension(3)[:1]}))
    (row,), (found,) = session.results.report_rows, session.results.checks
    assert (found.stock.bytes_received, found.ours.bytes_received) == (row["stock_bytes"], row["our_bytes"])
    assert found.stock.temp_bytes == row["stock_temp_bytes"]
    assert shared_child().starts <= starts_before + 2


@pytest.mark.parametrize(
    "pipeline, network",
    [
        ("overlap-collectives{topology=v5e:2x4 platform=tpu}", "v5e:2x4"),
        ("plan-sites{topology=h100:1},overlap-collectives{topology=v5e:2x4 platform=tpu}", "h100:1"),
        ("plan-sites,overlap-collectives{topology=v5e:2x4 platform=tpu}", ""),
        ("find-mismatches", ""),
    ],
)
def test_the_network_is_that_of_the_planned_sites_or_of_the_only_pass_that_has_one(pipeline, network):
    assert network_of(Pipeline.parse(pipeline)).text == network
