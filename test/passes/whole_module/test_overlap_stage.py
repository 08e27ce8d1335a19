# SPDX-License-Identifier: Apache-2.0
"""The last stage of the whole-module check: pipelines are written if a target's compiler agrees, and only then."""

import dataclasses
from types import SimpleNamespace

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.overlap_collectives import _of_different_ops
from reshard.passes.whole_module import overlap_stage
from reshard.passes.whole_module.check_record import Check
from reshard.passes.whole_module.overlap_stage import may_overlap, overlapped
from reshard.synthesis.programs.traffic import Collective

GROUPS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
GATHER = f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {CHANNEL}, {GROUPS}}}>'
MODULE = f"""module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%a: tensor<4096x8192xbf16>, %b: tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16> {{
    %0 = sdy.manual_computation(%a, %b) in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{"x"}}]>]
        out_shardings=[<@mesh, [{{}}, {{"x"}}]>] manual_axes={{"x"}}
        (%x: tensor<1024x8192xbf16>, %w: tensor<8192x2048xbf16>) {{
      %1 = {GATHER} : (tensor<1024x8192xbf16>) -> tensor<4096x8192xbf16>
      %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
          : (tensor<4096x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<4096x2048xbf16>
      sdy.return %2 : tensor<4096x2048xbf16>
    }} : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
    return %0 : tensor<4096x8192xbf16>
  }}
}}"""
SLOW, FAST = (Collective("all_gather", size, 4 * size, groups=((0, 1, 2, 3),)) for size in (1 << 24, 1 << 23))


def compiled(collective: Collective, **changes) -> Compiled:
    """Returns the answer of a compiler for a program of one collective."""
    answer = Compiled(
        "ok", bytes_received=1, bytes_sent=1, largest_collective_tile_bytes=1, moved=(collective,),
        argument_bytes=100, output_bytes=100, temp_bytes=100, alias_bytes=0, peak_memory_bytes=300,
        peak_has_chip=True,
        final_bytes_received=1, final_bytes_sent=1, final_moved=(collective,), estimated_seconds=1e-3,
    )  # fmt: skip
    return dataclasses.replace(answer, **changes)


class Child:
    """A compiler that keeps what it is asked.

    Args:
      answer: a `Compiled`, or what gives one for the text of a module.
    """

    def __init__(self, answer):
        self.answer = answer
        self.asked: list[str] = []

    def compile(self, module, num_devices, *, target, with_estimate, **_):
        assert not with_estimate
        self.asked.append(module)
        found = self.answer(module) if callable(self.answer) else self.answer
        return dataclasses.replace(found, estimated_seconds=None, lacks_estimate=found.estimated_seconds is not None)

    def estimated(self, compiled, module, num_devices, target):
        if not compiled.lacks_estimate:
            return compiled
        found = self.answer(module) if callable(self.answer) else self.answer
        return dataclasses.replace(compiled, estimated_seconds=found.estimated_seconds, lacks_estimate=False)


def run(answer, pipeline: str = "reshard", topology: str = "v5e:2x2", text: str = MODULE, effort: int = 1, stock=None):
    """Returns the session after the stage, the text of its result, and how often the compiler was asked."""
    child = Child(answer)
    target = Target.parse("tpu:v5e:2x2")
    session = Session(RunOptions(compile_for=target, xla_child=child, effort=effort))  # type: ignore[arg-type]
    stock = stock or compiled(SLOW)
    session.results.checks.append(Check(stock, stock, (), False, target, topology))
    with make_context():
        original, module = ir.Module.parse(text), ir.Module.parse(text)
        if may_overlap(module, session.results.checks[-1]):
            module = overlapped(original, module, Pipeline.parse(pipeline), session)
        return session, str(module), len(child.asked)


def test_a_shorter_program_is_handed_over_with_its_rows():
    session, module, asked = run(compiled(FAST))
    assert "stablehlo.all_gather" not in module and module.count("collective_permute") == 3 and asked == 1
    (row,) = session.results.report_rows
    assert row["kind"] == "overlap" and row["is_rewritten"] and row["site"] == 0
    (check,) = session.results.checks
    assert check.is_rewritten and check.ours.final_moved == (FAST,)
    assert check.our_time is not None and check.our_time.hidden_s == 0
    assert "1 collective overlap" in session.remarks[-1].message


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (compiled(SLOW), "modelled time"),
        (compiled(FAST, temp_bytes=10_000), "memory in bytes 300 -> 10,200"),
        (compiled(FAST, estimated_seconds=1.1e-3), "the compiler's own estimate"),
        (Compiled("error", "no"), "XLA fails: no"),
    ],
    ids=("no shorter", "more memory", "longer by the compiler", "refused"),
)
def test_what_is_worse_stays_as_it_was_and_the_row_says_why(answer, problem):
    session, module, _ = run(answer)
    assert "stablehlo.all_gather" in module and "collective_permute" not in module
    (row,) = session.results.report_rows
    assert not row["is_rewritten"] and problem in row["reason"]
    assert not session.results.checks[-1].is_rewritten


@pytest.mark.parametrize("estimated_s", [None, 1e-3])
@pytest.mark.parametrize("seconds, is_taken", [(1e-3, True), (1e-1, False)])
def test_the_code_generators_time_may_not_be_longer_than_that_of_the_best_form(seconds, is_taken, estimated_s):
    def answer(module):
        generated_s = seconds if "collective_permute" in module else 1e-3
        return compiled(FAST, estimated_seconds=estimated_s, generated_seconds=generated_s)

    session, module, _ = run(answer, stock=compiled(SLOW, estimated_seconds=estimated_s, generated_seconds=1e-3))
    assert ("collective_permute" in module) is is_taken
    (row,) = session.results.report_rows
    assert is_taken or "time by the compiler's code generator" in row["reason"]


def test_memory_on_the_chip_does_not_count():
    _, module, _ = run(compiled(FAST, peak_memory_bytes=3000))
    assert "collective_permute" in module


@pytest.mark.parametrize(
    "options", [{"topology": ""}, {"pipeline": "plan-sites{policy=strict}"}, {"pipeline": "plan-sites{policy=always}"}]
)
def test_nobody_is_asked_without_a_network_or_under_another_policy(options):
    session, module, asked = run(compiled(FAST), **options)
    assert asked == 0 and "collective_permute" not in module and not session.results.report_rows


SUM = """({
      ^bb0(%p: tensor<bf16>, %q: tensor<bf16>):
        %s = stablehlo.add %p, %q : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
      })"""
SCATTER = f'"stablehlo.reduce_scatter"(%3) <{{scatter_dimension = 0 : i64, {CHANNEL}, {GROUPS}}}>'
OF_BOTH_PATTERNS = MODULE.replace(
    "sdy.return %2 : tensor<4096x2048xbf16>",
    f"""%h = stablehlo.tanh %2 : tensor<4096x2048xbf16>
      %3 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [1]
          : (tensor<4096x2048xbf16>, tensor<8192x2048xbf16>) -> tensor<4096x8192xbf16>
      %4 = {SCATTER} {SUM} : (tensor<4096x8192xbf16>) -> tensor<1024x8192xbf16>
      sdy.return %4 : tensor<1024x8192xbf16>""",
).replace('out_shardings=[<@mesh, [{}, {"x"}]>]', 'out_shardings=[<@mesh, [{"x"}, {}]>]')


def taken_where(is_faster):
    """Returns the collectives that are left if the compiler finds what `is_faster` says faster, and the reasons."""
    session, module, asked = run(lambda text: compiled(FAST if is_faster(text) else SLOW), text=OF_BOTH_PATTERNS)
    left = [kind for kind in ("all_gather", "reduce_scatter") if f'"stablehlo.{kind}"' in module]
    reasons = [row["reason"] for row in session.results.report_rows if not row["is_rewritten"]]
    return left, reasons, asked


def taken_in(seconds_of):
    """Returns the same if programs take as many times as long as `seconds_of` says of the collectives in them."""

    def answer(text):
        kinds = tuple(kind for kind in ("all_gather", "reduce_scatter") if f'"stablehlo.{kind}"' in text)
        size = int((1 << 24) * seconds_of(kinds))
        return compiled(Collective("all_gather", size, 4 * size, groups=((0, 1, 2, 3),)))

    session, module, asked = run(answer, text=OF_BOTH_PATTERNS)
    left = [kind for kind in ("all_gather", "reduce_scatter") if f'"stablehlo.{kind}"' in module]
    return left, [row["reason"] for row in session.results.report_rows if not row["is_rewritten"]], asked


def test_patterns_are_tried_one_after_the_other_sums_that_are_scattered_first():
    left, reasons, asked = taken_where(lambda text: "reduce_scatter" not in text)
    assert left == ["all_gather"] and asked == 2
    assert len(reasons) == 1 and reasons[0].startswith("left as it is: modelled time")  # no shorter than without it


def test_a_pattern_that_is_slower_does_not_keep_the_next_one_from_being_tried():
    left, _, asked = taken_where(lambda text: "all_gather" not in text and "reduce_scatter" in text)
    assert left == ["reduce_scatter"] and asked == 3  # what was refused is tried once more beside what is taken


def test_patterns_that_are_refused_alone_are_tried_together():
    """Each alone leaves the array between them whole."""
    left, reasons, asked = taken_where(lambda text: "all_gather" not in text and "reduce_scatter" not in text)
    assert left == reasons == [] and asked == 3
    left, reasons, asked = taken_where(lambda text: False)
    assert left == ["all_gather", "reduce_scatter"] and len(reasons) == 2 and asked == 3


def test_what_is_refused_alone_is_tried_beside_what_is_taken_since():
    left, _, asked = taken_where(lambda text: "all_gather" not in text)
    assert left == ["reduce_scatter"] and asked == 3
    seconds = {(): 0.8, ("reduce_scatter",): 0.9}  # of the program with these collectives left
    left, reasons, asked = taken_in(lambda kinds: seconds.get(kinds, 1.0))
    assert left == reasons == [] and asked == 3


def test_a_pipeline_that_is_refused_together_keeps_its_own_reason(monkeypatch):
    def answer(text):
        kinds = [kind for kind in ("all_gather", "reduce_scatter") if f'"stablehlo.{kind}"' in text]
        return compiled(FAST, temp_bytes=10_000 + len(kinds)) if len(kinds) < 2 else compiled(SLOW)

    session, *_ = run(answer, text=OF_BOTH_PATTERNS)
    assert all("-> 10,201" in row["reason"] for row in session.results.report_rows)
    monkeypatch.setattr(overlap_stage, "MOST_ATTEMPTS", 2)
    session, _, asked = run(answer, text=OF_BOTH_PATTERNS)
    assert asked == 2 and all("-> 10,201" in row["reason"] for row in session.results.report_rows)


def test_a_reduce_scatter_that_is_free_in_an_estimate_does_not_keep_it():
    stock = compiled(SLOW, scheduled_seconds=1e-3, scheduled_without=(SLOW,))
    longer = compiled(FAST, scheduled_seconds=1.01e-3)
    assert "collective_permute" in run(longer, stock=stock)[1]
    assert "collective_permute" not in run(longer, stock=dataclasses.replace(stock, scheduled_without=()))[1]


def test_pipelines_that_gain_less_than_the_model_may_be_wrong_are_tried_after_the_others(monkeypatch):
    told, asked = overlap_stage.pipelined, []

    def pipelined(*args, **how):
        module, rows = told(*args, **how)
        for row in rows:
            row["our_us"] = (0.8 if row["group"].startswith("all_gather") else 0.96) * row["stock_us"]
        return module, rows

    monkeypatch.setattr(overlap_stage, "pipelined", pipelined)
    taken_where(lambda text: asked.append([kind for kind in ("all_gather", "reduce_scatter") if kind in text]))
    assert asked == [["reduce_scatter"], ["all_gather"], []]


def test_no_more_is_compiled_than_the_effort_allows(monkeypatch):
    monkeypatch.setattr("reshard.passes.whole_module.overlap_stage.MOST_ATTEMPTS", 1)
    left, reasons, asked = taken_where(lambda text: True)
    assert left == ["all_gather"] and asked == 1
    assert "--effort" in reasons[0]


def test_a_pattern_that_promises_too_little_is_not_compiled(monkeypatch):
    promised = overlap_stage.promised_s
    is_of_gathers = lambda rows: all("all_gather" in row["group"] for row in rows)  # noqa: E731
    monkeypatch.setattr(overlap_stage, "promised_s", lambda rows: 0.0 if is_of_gathers(rows) else promised(rows))
    left, reasons, asked = taken_where(lambda text: True)
    assert left == ["all_gather"] and asked == 1
    assert reasons == ["left as it is: its pattern promises less than 0.25% of the module's time"]


def test_a_pipeline_that_gains_much_goes_before_one_that_gains_little_in_more_time():
    much, little = (SimpleNamespace(ops={"gather"}, whole_s=whole, pipelined_s=p) for whole, p in ((1, 0.9), (10, 9.7)))
    assert _of_different_ops({0: little, 1: much}) == {1: much}
    assert _of_different_ops({0: little}) == {0: little}
