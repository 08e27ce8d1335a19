# SPDX-License-Identifier: Apache-2.0
"""Traces of modules: valid events, the modelled times, one trip of each loop, and what each collective occupies."""

import json
from pathlib import Path

import pytest

import reshard
from reshard.pictures import traffic_trace
from reshard.synthesis.common import trace_events
from reshard.synthesis.network.topology import TopologyError

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ROOT = Path(__file__).resolve().parents[3]
LOOPS_IN_LOOPS = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, tensor<64x64xf32> cond {
    %n = stablehlo.constant dense<5> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2:2 = stablehlo.while(%j = %zero, %w = %v) : tensor<i32>, tensor<64x64xf32> cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %two = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %j, %two : tensor<i32>
      %4 = sdy.sharding_constraint %w <@mesh, [{"x"}, {}]> : tensor<64x64xf32>
      %5 = stablehlo.sine %4 : tensor<64x64xf32>
      %6 = stablehlo.optimization_barrier %5 : tensor<64x64xf32>
      %7 = sdy.sharding_constraint %6 <@mesh, [{"x"}, {"y"}]> : tensor<64x64xf32>
      stablehlo.return %3, %7 : tensor<i32>, tensor<64x64xf32>
    }
    %8 = stablehlo.cosine %2#1 : tensor<64x64xf32>
    stablehlo.return %1, %8 : tensor<i32>, tensor<64x64xf32>
  }
  return %0#1 : tensor<64x64xf32>
}
"""
MODULES = {
    "loops in loops": (LOOPS_IN_LOOPS, "h100:4x2"),
    "training step": ((ROOT / "examples" / "llama_train_step.mlir").read_text(), "a2mega:2x4"),
    "work beside collectives": ((ROOT / "examples" / "moe_layer.mlir").read_text(), "v5e:2x2*2"),
    "one sum": ((ROOT / "docs" / "four_hosts.mlir").read_text(), "v100:4x4"),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name == "training step" else []) for name in MODULES],
)
def found(request):
    text, network = MODULES[request.param]
    return reshard.traffic(text, topology=network)


def slices(trace, process=1):
    return [each for each in trace["traceEvents"] if each["ph"] == "X" and each["pid"] == process]


def tracks(trace, process=1):
    """Returns the slices of each track, by its name."""
    names = {
        each["tid"]: each["args"]["name"]
        for each in trace["traceEvents"]
        if each["name"] == "thread_name" and each["pid"] == process
    }
    return {name: [each for each in slices(trace, process) if each["tid"] == track] for track, name in names.items()}


def picoseconds(micros: float) -> int:
    return round(micros * 1e6)


def end(event) -> int:
    return picoseconds(event["ts"]) + picoseconds(event["dur"])


def test_each_program_ends_at_its_modelled_time(found):
    trace = found.trace()
    for process, (key, ledger) in enumerate((("stock", found.stock), ("ours", found.ours)), 1):
        if ledger is None:
            continue
        last = max(map(end, slices(trace, process)))
        assert last == pytest.approx(ledger.time.seconds * 1e12, abs=2)
        totals = trace["otherData"][key]
        assert totals["modelled_us"] == pytest.approx(totals["in_collectives_us"] + totals["local_work_us"])
        assert totals["in_collectives_us"] == pytest.approx(ledger.seconds * 1e6)


def test_slices_of_a_track_do_not_overlap(found):
    trace = found.trace()
    for process in (1, 2):
        for name, events in tracks(trace, process).items():
            listed = sorted(events, key=lambda each: (picoseconds(each["ts"]), end(each)))
            for one, other in zip(listed, listed[1:]):
                assert end(one) <= picoseconds(other["ts"]), name


def test_a_collective_runs_alone_and_its_levels_are_occupied_while_it_runs(found):
    for process in (1, 2):
        by_track = tracks(found.trace(), process)
        busy = sorted((picoseconds(each["ts"]), end(each)) for each in by_track.get("collectives", ()))
        for each in by_track.get("compute", ()):
            assert all(last <= picoseconds(each["ts"]) or end(each) <= first for first, last in busy)
        for name, events in by_track.items():
            if name.startswith("level "):
                for each in events:
                    assert any(first <= picoseconds(each["ts"]) and end(each) <= last + 1 for first, last in busy)


def test_events_are_valid_and_equal_ledgers_give_equal_text(found):
    trace = found.trace()
    text = trace_events.as_json(trace)
    assert text == traffic_trace.as_json(found.name, found.stock, found.ours) and json.loads(text) == trace
    assert trace["displayTimeUnit"] == "ns"
    named = set()
    for each in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= each.keys() and each["ph"] in "XM"
        if each["ph"] == "M":
            assert each["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            named.add((each["name"], each["pid"], each["tid"]))
        else:
            assert each["ts"] >= 0 and each["dur"] >= 0
            for kind in ("thread_name", "thread_sort_index"):
                assert (kind, each["pid"], each["tid"]) in named  # metadata comes first
            assert ("process_name", each["pid"], 0) in named


def test_each_collective_of_the_ledger_is_shown_once(found):
    shown = [each["args"]["instruction"] for each in tracks(found.trace())["collectives"]]
    assert sorted(shown) == sorted(entry.name for entry in found.stock.entries)


def test_a_loop_is_shown_as_one_trip_and_a_slice_that_spans_all():
    by_track = tracks(reshard.traffic(LOOPS_IN_LOOPS, topology="h100:4x2", with_ours=False).trace())
    assert list(by_track) == ["loops", "loops, depth 2", "compute", "collectives", "level node", "level gpu"]
    (outer,), (inner,), (gather,) = by_track["loops"], by_track["loops, depth 2"], by_track["collectives"]
    assert [each["args"]["trips"] for each in (outer, inner)] == [5, 3]
    assert outer["name"] == "loop, 5 trips"
    assert outer["dur"] == pytest.approx(5 * outer["args"]["us_of_one_trip"])
    assert outer["args"]["us_of_one_trip"] > inner["dur"] > 2 * inner["args"]["us_of_one_trip"]
    assert gather["args"]["runs"] == 15 and gather["args"]["us_of_all_runs"] == pytest.approx(15 * gather["dur"])


def test_a_collective_shows_its_line_its_reason_its_group_and_the_port_that_limits_it():
    text, network = MODULES["one sum"]
    trace = reshard.traffic(text, topology=network).trace()
    (whole,) = tracks(trace)["collectives"]
    known = whole["args"]
    assert (known["why"], known["algorithm"], known["bytes_received"]) == (
        "the program has this all_reduce", "ring", 31_457_280,
    )  # fmt: skip
    assert (known["groups"], known["devices_in_a_group"]) == (1, 16) and known["line"].endswith(":13:12")
    ours = tracks(trace, 2)
    (on_cards,) = ours["level host"]
    assert on_cards["args"]["limited_by"] == "shared port of a host" and on_cards["args"]["groups_sharing_it"] == 4
    assert on_cards["args"]["bytes_over_the_busiest"] == 4 * on_cards["args"]["bytes_received"]
    assert [each["name"].split()[0] for each in ours["collectives"]] == ["reduce_scatter", "all_reduce", "all_gather"]


def test_a_trace_needs_a_known_network():
    found = reshard.traffic(LOOPS_IN_LOOPS, with_ours=False)
    with pytest.raises(TopologyError, match="a trace shows the levels of a known network"):
        found.trace()
