# SPDX-License-Identifier: Apache-2.0
"""A target's slow compiler is asked about the forms of a module that promise most, as XLA partitions them for CPU."""

import dataclasses

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import checks, report
from reshard.passes.whole_module.finalists import Finalists
from reshard.passes.whole_module.joint_choice import JointChoice, Outcome
from reshard.passes.whole_module.module_cost import is_better
from reshard.passes.whole_module.search import NOT_ASKED, Found, Search

MORE = Outcome("more memory", 5.0)


def measured(promised: list[float | Outcome], made: list[float | Outcome], most=3, slack=0.0) -> list[int]:
    """Returns the numbers of the finalists in their order. The module as it came takes 10 s both ways."""
    promises, results = ([each if isinstance(each, Outcome) else Outcome("", each) for each in side]
                         for side in (promised, made))  # fmt: skip
    finalists, asked = Finalists(promises, Outcome("", 10.0), Outcome("", 10.0), most, slack), []
    finalists.measure(lambda number: asked.append(number) or results[number])
    assert list(finalists.outcomes) == asked
    return asked


@pytest.mark.parametrize(
    ("promised", "made", "asked"),
    [
        ([9.0, 8.0, 8.5], [9.0, 8.0, 8.5], [1]),
        ([9.0, 8.0, 8.5], [9.0, 9.2, 8.5], [1]),  # what it made of the first, it makes of the others
        ([9.0, 8.0, 8.5], [9.0, 10.5, 8.5], [1]),
        ([9.0, 8.0, 8.5], [9.0, MORE, 8.5], [1, 2]),  # the promise was 8, so 5 scales the others down
        ([9.0, 8.0, 8.5], [MORE, MORE, MORE], [1, 2, 0]),
        ([8.0, 8.0, 9.0], [MORE, 7.0, 9.0], [0, 2]),
        ([10.0, 11.0], [1.0, 1.0], []),
        ([Outcome("temporaries", 7.0), 8.0], [6.0, 9.0], [1, 0]),  # what needs more memory here may not there
        ([Outcome("temporaries", 7.0), 10.5], [6.0, 9.0], [0]),
        ([Outcome("temporaries", 5.0), 8.0, 8.9], [5.0, 9.0, 9.0], [1, 0]),
        ([Outcome("XLA aborts", float("inf")), 8.0], [6.0, 8.0], [1]),
        ([Outcome("XLA aborts", float("inf")), 8.0], [6.0, MORE], [1, 0]),
        ([], [], []),
    ],
    ids=(
        "the one that promises most",
        "others err alike",
        "slower than it came, so the others are too",
        "too much memory, so the next one",
        "each may fail",
        "what promises the same is the same program",
        "nothing promises more",
        "memory for CPU devices is no reason",
        "others promise nothing",
        "others are measured, and this one still promises more",
        "what XLA cannot partition is not needed",
        "what XLA cannot partition is the last hope",
        "no form",
    ),
)
def test_finalists(promised, made, asked):
    assert measured(promised, made) == asked


def test_a_promise_that_is_nearly_as_good_is_measured_where_promises_err():
    assert measured([9.0, 8.0, 8.3], [9.0, 9.2, 8.5], slack=0.05) == [1, 2]


def test_promises_of_another_kind_do_not_err_alike():
    """The first form is slower than promised; the second one is too, if it is of the same kind."""
    promised, (before, none) = [Outcome("", 8.0), Outcome("", 8.5)], [Outcome("", 10.0)] * 2
    for kinds, asked in (((), [0]), ((False, False), [0]), ((False, True), [0, 1])):
        finalists = Finalists(promised, before, none, 3, kinds=kinds)
        finalists.measure(lambda number: Outcome("", (10.5, 8.0)[number]))
        assert list(finalists.outcomes) == asked
    assert finalists.scale(False) == pytest.approx(10.5 / 8) and finalists.scale(True) == pytest.approx(8 / 8.5)


@pytest.mark.parametrize(("goal_s", "asked"), [(7.0, [0]), (8.2, [0, 1]), (float("inf"), [0, 1, 2])])
def test_behind_the_first_finalist_none_is_measured_that_is_slower_than_the_goal(goal_s, asked):
    """The first one shows what promises are worth, here as much as they say."""
    finalists = Finalists([Outcome("", 7.8), Outcome("", 8.1), Outcome("", 8.3)], *[Outcome("", 10.0)] * 2, 3)
    finalists.measure(lambda number: Outcome("more memory", (7.8, 8.1, 8.3)[number]), goal_s)
    assert list(finalists.outcomes) == asked


def test_promises_may_err_as_the_one_of_the_module_as_it_came_did():
    """Stock XLA's program took 4 s of the 10 s that its partitioning promised; then 8 s may become 3.2 s, or 1.3 s."""
    finalists = Finalists([Outcome("", 8.0), Outcome("", 9.0)], Outcome("", 10.0), Outcome("", 4.0), 3)
    assert finalists.least_s == pytest.approx(3.2) and finalists.least_possible_s == pytest.approx(1.28)
    slower = Finalists([Outcome("", 8.0)], Outcome("", 10.0), Outcome("", 20.0), 3)
    assert slower.least_s == pytest.approx(16.0) and slower.least_possible_s == pytest.approx(8.0)


def test_the_number_of_finalists_is_bounded():
    assert measured([9.0, 8.0, 8.5], [MORE, MORE, MORE], most=2) == [1, 2]


# Two arrays that change their layouts, of which stock XLA gathers both, beside a product.
TEXT = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(
    %a: tensor<64x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>},
    %b: tensor<96x96x96xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (
    tensor<64x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}, {}]>},
    tensor<96x96x96xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}, {}]>}) {
  %0 = stablehlo.sine %a : tensor<64x64x64xf32>
  return %0, %b : tensor<64x64x64xf32>, tensor<96x96x96xf32>
}"""
# A row of a table whose rows are split, which an island cannot help, beside an array that changes its layout.
ROW_AND_CUBE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(
    %table: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}, %place: tensor<i32>,
    %cube: tensor<64x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) -> (
    tensor<64x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}, {}]>},
    tensor<1x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %table, %place, %zero, sizes = [1, 1024]
    : (tensor<8192x1024xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1024xf32>
  return %cube, %0 : tensor<64x64x64xf32>, tensor<1x1024xf32>
}"""
TARGET = Target.parse("tpu:v5e:2x4")


class SlowCompiler:
    """Answers for a target with what XLA compiles for CPU devices, changed by `make`; `asked` counts the modules."""

    def __init__(self, make=lambda compiled, number: compiled):
        self.make, self.asked, self.child, self.requests = make, [], shared_child(), []
        self.limits: list[float | None] = []  # of questions for the target, in seconds

    def compile(self, module, num_devices, *, target=None, with_estimate=True, **wanted) -> Compiled:
        self.requests.append((module, target))
        compiled = self.child.compile(module, num_devices, **wanted)
        if target is None:
            return compiled
        self.limits.append(wanted.get("timeout_s"))
        if module not in self.asked:
            self.asked.append(module)
        return self.make(compiled, self.asked.index(module))

    def __getattr__(self, name):
        return getattr(self.child, name)


def run(compiler: SlowCompiler, emit="auto", text=TEXT) -> tuple[str, Session]:
    session = Session(RunOptions(compile_for=TARGET, xla_child=compiler))  # pyright: ignore[reportArgumentType]
    pipeline = Pipeline.emitting(emit, {"topology": "v5e:2x4", "platform": "tpu"})
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        pipeline.run(module, session)
        rows, parse = session.results.report_rows, lambda: ir.Module.parse(text, context)
        return str(checks.checked(parse, module, pipeline, session, rows, compiles=True, value_bytes=None)), session


def islands(module: str) -> int:
    return module.count("sdy.manual_computation(")


def test_our_forms_may_take_the_targets_compiler_six_times_as_long_as_stock_did():
    compiler = SlowCompiler(lambda compiled, _: dataclasses.replace(compiled, compile_seconds=206.0))
    run(compiler, emit="manual")
    stock, *ours = compiler.limits
    assert stock == 1800 and ours and set(ours) == {1236}


def test_the_targets_compiler_is_asked_about_one_set_of_sites():
    compiler = SlowCompiler()
    module, session = run(compiler, emit="manual")
    (check,) = session.results.checks
    assert islands(module) == 2 and check.is_rewritten and check.our_time.seconds < check.stock_time.seconds
    assert len(compiler.asked) == 2 and (check.attempts, check.promised) == (1, 1)
    assert "searched: 1 form of the module as XLA partitions them, 1 compiled for the target" in report.as_text(session)


@pytest.mark.parametrize("is_partitioned", [True, False], ids=("by promise", "by measurement"))
def test_no_form_of_the_module_is_compiled_twice(is_partitioned, monkeypatch):
    monkeypatch.setattr(Search, "_by_promise", Search._by_promise if is_partitioned else lambda self: None)
    compiler = SlowCompiler()
    run(compiler)
    requests = [(text, target) for text, target in compiler.requests if "96x96x96" in text and "sine" in text]
    assert len(requests) == len(set(requests)) > 2


def test_a_finalist_that_needs_too_much_memory_lets_the_next_one_try():
    def make(compiled: Compiled, number: int) -> Compiled:
        return dataclasses.replace(compiled, temp_bytes=compiled.temp_bytes + (1 << 30 if number == 1 else 0))

    compiler = SlowCompiler(make)
    module, session = run(compiler, emit="manual")
    (check,) = session.results.checks
    assert len(compiler.asked) > 2 and check.attempts == len(compiler.asked) - 1
    assert islands(module) < 2 and len(check.dropped) == 1
    assert check.ours.temp_bytes <= check.stock.temp_bytes


class CompilerWithEstimates(SlowCompiler):
    """Gives estimates, of a function of the module, to those who ask for them; `estimates` has the modules."""

    def __init__(self, seconds):
        super().__init__(lambda compiled, number: dataclasses.replace(compiled, lacks_estimate=True))
        self.seconds, self.estimates = seconds, []

    def estimated(self, compiled, module, num_devices, target, **_) -> Compiled:
        if not compiled.lacks_estimate:
            return compiled
        self.estimates.append(module)
        return dataclasses.replace(compiled, lacks_estimate=False, estimated_seconds=self.seconds(module))


def test_a_row_does_not_call_worse_what_nobody_measured(monkeypatch):
    monkeypatch.setattr(Found, "why_not", lambda *_: f"{NOT_ASKED} about that set")
    compiler = SlowCompiler(lambda compiled, number: dataclasses.replace(compiled, temp_bytes=number << 30))
    _, session = run(compiler, emit="manual")
    assert {row["reason"] for row in session.results.report_rows} == {f"{NOT_ASKED} about that set"}


@pytest.mark.parametrize(("seconds", "asked"), [(1.0, [0, 2]), (None, [0])], ids=("as long", "stock has none"))
def test_an_estimate_is_asked_for_where_it_may_be_against_the_best_form(seconds, asked):
    compiler = CompilerWithEstimates(lambda module: seconds)
    module, session = run(compiler, emit="manual")
    (check,) = session.results.checks
    assert islands(module) == 2 and list(map(islands, compiler.estimates)) == asked
    assert check.stock.estimated_seconds == check.ours.estimated_seconds == seconds


def test_an_estimate_of_the_program_as_it_runs_takes_no_other_compilation():
    compiler = CompilerWithEstimates(lambda module: 1.0)
    compiler.make = lambda compiled, number: dataclasses.replace(
        compiled, lacks_estimate=True, scheduled_seconds=1.5 if number == 1 else 1.0
    )
    module, session = run(compiler, emit="manual")
    (check,) = session.results.checks
    assert not compiler.estimates and islands(module) == 1 and check.is_rewritten
    assert "the compiler's own estimate in us" in check.dropped[0][1]


def test_if_one_form_has_no_estimate_as_it_runs_all_are_asked_about():
    """So that the form per device can be confirmed against the best set of sites."""
    compiler = CompilerWithEstimates(lambda module: 1.0)
    compiler.make = lambda compiled, number: dataclasses.replace(
        compiled, lacks_estimate=True, scheduled_seconds=None if number == 1 else 1.0
    )
    _, session = run(compiler)
    (check,) = session.results.checks
    assert check.is_rewritten and len(compiler.estimates) > 1
    assert check.stock.estimated_seconds == check.ours.estimated_seconds == 1.0


def test_where_the_estimate_is_against_the_best_form_others_are_tried():
    compiler = CompilerWithEstimates(lambda module: 1.5 if islands(module) == 2 else 1.0)
    module, session = run(compiler, emit="manual")
    (check,) = session.results.checks
    assert islands(module) == 1 and check.is_rewritten and len(check.dropped) == 1
    assert sorted(map(islands, compiler.estimates)) == [0, 1, 2] and check.attempts > 1


def test_no_estimate_is_asked_for_where_no_form_is_faster():
    compiler = CompilerWithEstimates(lambda module: 1.0)
    compiler.make = lambda compiled, number: dataclasses.replace(
        compiled, lacks_estimate=True, temp_bytes=compiled.temp_bytes + (number and 1 << 30)
    )
    _, session = run(compiler)
    (check,) = session.results.checks
    assert not compiler.estimates and not check.is_rewritten and check.ours == check.stock


def test_where_no_form_will_do_the_module_stays_as_it_came_and_says_what_was_measured():
    def make(compiled: Compiled, number: int) -> Compiled:
        return dataclasses.replace(compiled, temp_bytes=compiled.temp_bytes + (number and 1 << 30))

    compiler = SlowCompiler(make)
    module, session = run(compiler)
    (check,) = session.results.checks
    assert not islands(module) and not check.is_rewritten and check.ours == check.stock
    assert "temporaries in bytes" in check.not_taken_over
    assert all("temporaries in bytes" in why for _, why in check.dropped) and check.dropped


def test_a_set_that_nobody_measured_is_told_as_it_is_promised_or_as_not_asked_about():
    """The search by promises knows other sets than the measurements that follow where the finalists will not do."""
    none, one, both = (frozenset(each) for each in ((), (1,), (0, 1)))
    choice, told = (JointChoice([1.0, 1.0], lambda _: MORE, Outcome("", 10.0), is_better, 1) for _ in range(2))
    choice.outcomes |= {one: Outcome("", 7.0)}
    choice.best = one
    told.outcomes |= {both: Outcome("", 8e-6), none: Outcome("", 1e-5)}
    found = Found(choice, told, [])
    assert found.why_not(both).startswith("the target's compiler was not asked about that set")
    assert (
        found.why(none) == found.why(both) == "modelled time 7,000,000.0 us with the rewrite, 10,000,000.0 us without"
    )
    choice.best = none
    assert "not asked" in found.why_not(both), "it promises more, so that is no reason"
    told.outcomes[both] = Outcome("", 2e-5)
    assert found.why_not(both) == "modelled time 20.0 us with the rewrite, 10.0 us without, as XLA partitions it"


def test_sets_of_sites_are_measured_if_the_estimate_is_against_the_form_written_per_device():
    for longer, is_taken_over in ((1.0, True), (1.5, False)):
        compiler = CompilerWithEstimates(lambda text: 1.0 if "dynamic_slice %arg0" in text else longer)  # noqa: B023
        module, session = run(compiler, text=ROW_AND_CUBE)
        (check,) = session.results.checks
        assert check.is_rewritten and bool(check.taken_over) == is_taken_over and islands(module) == 1
        assert ("dynamic_slice %arg0" in module) != is_taken_over
        assert is_taken_over or "estimate in us" in check.not_taken_over
        assert (len(compiler.asked) == 2) == is_taken_over, "no set of sites is measured if the whole is better"


def test_a_module_that_xla_cannot_partition_for_cpu_devices_is_searched_by_measurement(monkeypatch):
    compiler = SlowCompiler()
    compile_all = compiler.compile

    def compile(module, num_devices, *, target=None, **wanted):
        if target is None and "sine" in module and "@main" in module and "96x96x96" in module:
            return Compiled("error", "no such custom call")
        return compile_all(module, num_devices, target=target, **wanted)

    compiler.compile = compile
    module, session = run(compiler, emit="manual")
    assert islands(module) == 2 and session.results.checks[0].is_rewritten
