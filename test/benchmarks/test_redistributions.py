# SPDX-License-Identifier: Apache-2.0
"""The comparison with the peers: its stored answers, its counts, and a run of 2 % of its cases."""

import dataclasses
import doctest
import importlib
import math
import os
import shlex
import shutil

import pytest

from benchmarks import redistributions
from benchmarks.conversions.answers import PEERS, Ours, Peers, as_answer, as_entry, our_answer
from benchmarks.conversions.cases import Case, fitting_presets, network_cases, random_cases
from benchmarks.conversions.pairs import Pair, random_pairs
from benchmarks.conversions.report import Row, Theirs, as_markdown, beyond_rules, failings
from benchmarks.harness.journal import Journal
from benchmarks.redistributions import DEVICES, Benchmark, question
from reshard.dialect_utils.compare.peers import Answer
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import forget, plan
from reshard.synthesis.programs.tile_program import Copies
from reshard.synthesis.programs.traffic import Collective
from reshard.tools.commands.flags import parse_flags

TWO_PERCENT = 20


def a_case(source='[{"x"}, {}]', target='[{}, {"x"}]') -> Case:
    return Case(
        Pair(Mesh.parse("x=4"), (8, 8), Sharding.parse(source), Sharding.parse(target)),
        "f32",
        ("uniform",),
        "4 devices",
    )


def a_row(cost: float, theirs: float | None, *, rounds=1, **fields) -> Row:
    """Returns a row by bytes in which each peer costs `theirs` in one round."""
    ours = Ours(**{"status": "ok", "rounds": rounds, "bytes_received": cost, "bound_bytes": 1, **fields})
    return Row(a_case(), None, ours, {name: Theirs("ok", theirs, 1, 1) for name in PEERS})


def timed_row(ours: tuple[float, float], theirs: tuple[float, float | None], *, rounds=1, is_beyond_ends=False) -> Row:
    """Returns a row by time; each side is (time of the collectives, time with copies); None means unknown copies."""
    talk_s, whole_s = theirs
    cost = talk_s if whole_s is None else whole_s
    peer = Theirs("ok", cost, 1, 1, is_beyond_ends, talk_s, whole_s is not None)
    mine = Ours("ok", rounds=rounds, collectives_time_s=ours[0], time_s=ours[1])
    return Row(a_case(), "uniform", mine, dict.fromkeys(PEERS, peer))


ABOVE_IN_TIME = ["modelled time: above XLA", "modelled time: above Shardy"]


def failing_titles(*rows: Row) -> list[str]:
    return [each.title for each in failings(rows) if each.rows]


# ---- journals


def test_answers_are_found_again(tmp_path):
    Journal(tmp_path / "new" / "folder.jsonl").add("why", {"because": [1, None]})
    assert Journal(tmp_path / "new" / "folder.jsonl").get("why") == {"because": [1, None]}


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_a_kill_cut_short_costs_one_answer(tmp_path, cut):
    path = tmp_path / "cut.jsonl"
    for number in range(3):
        Journal(path).add(f"question {number}", {"answer": number})
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(path)
    assert ["question 1" in journal, "question 2" in journal] == [True, cut == 1]
    journal.add("question 3", {"answer": 3})
    assert "question 1" in Journal(path) and Journal(path).get("question 3") == {"answer": 3}


def test_lines_that_are_no_answers_are_passed_over(tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text('[]\n{"question": "q"}\nnonsense\n\n{"question": "q", "answer": {}}\n')
    assert Journal(path).get("q") == {}


def test_an_answer_comes_back_as_it_was():
    gather = Collective("all_gather", 4, 8, groups=((0, 1), (2, 3)), trip_count=3)
    collectives = (gather, Collective("collective_permute", 4, 4, pairs=((0, 1),)))
    for answer in (
        Answer("xla", 4, collectives=collectives, copies=Copies(8, 4, 2, 1)),
        Answer("xla", 4, "abort", "SIGABRT: no"),
    ):
        assert as_answer("xla", 4, as_entry(answer)) == answer


# ---- cases


def test_the_first_cases_are_the_same_whatever_the_count():
    few, many = (random_cases((8, 12), count, 0, ("uniform",)) for count in (3, 5))
    assert few == many[:6]
    assert [case.group for case in few[:2]] == ["8 devices", "12 devices"]


def test_pairs_of_many_devices_are_on_meshes_of_that_size():
    assert {pair.mesh.size for pair in random_pairs(0, 200, (512,))} == {512}


def test_presets_that_cannot_be_built_are_left_out():
    assert fitting_presets(("h100", "cpu", "gb200"), 100) == ("cpu",)


def test_networks_have_distinct_pairs_that_divide():
    cases = network_cases(30, 0)
    assert len({(str(case), case.topologies) for case in cases}) == len(cases) == 30 * 9 and {
        len(case.topologies) for case in cases
    } == {1}
    for case in cases:
        pair = case.pair
        for side in (pair.source, pair.target):
            assert all(size % shards == 0 for size, shards in zip(pair.shape, side.shards(pair.mesh)))


def test_the_command_line_of_a_case_can_be_read():
    for case in [*random_cases((8, 12), 4, 1, ("cpu",)), *network_cases(3, 0)]:
        flags = parse_flags(shlex.split(case.command("time", case.topologies[0]))[1:])
        assert (flags.objective, flags.topology, flags.compare) == ("time", case.topologies[0], ("xla", "shardy"))
        assert Mesh.parse(flags.mesh) == case.pair.mesh and Sharding.parse(flags.source) == case.pair.source


# ---- resuming


def counted(monkeypatch, most: int) -> list:
    """Returns the list of the cases that are planned; a Ctrl-C comes after `most` cases."""
    asked = []

    def answer(case, on):
        if len(asked) == most:
            raise KeyboardInterrupt
        asked.append((case, on))
        return our_answer(case, on)

    monkeypatch.setattr(redistributions, "our_answer", answer)
    return asked


def run(tmp_path, *flags: str) -> int:
    common = ["--devices", "4,6", "--count", "2", "--presets", "uniform", "--state", str(tmp_path), "--only", "plans"]
    return redistributions.main([*common, *flags])


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    first = counted(monkeypatch, most=3)
    assert run(tmp_path) == redistributions.INTERRUPTED
    assert "3 of 8 plans; the same command goes on" in capsys.readouterr().err
    rest = counted(monkeypatch, most=100)
    assert run(tmp_path) == 0
    assert (len(first), len(rest)) == (3, 5) and not set(first) & set(rest)


def test_a_new_planner_plans_again(tmp_path, monkeypatch):
    counted(monkeypatch, most=100)
    run(tmp_path)
    monkeypatch.setattr(redistributions, "planner_version", lambda: "newer")
    again = counted(monkeypatch, most=100)
    run(tmp_path)
    assert len(again) == 8


def test_a_report_asks_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(redistributions, "our_answer", None)
    assert run(tmp_path, "--report") == 0
    assert capsys.readouterr().out.startswith("4 pairs; 0 of 8 answers of peers, 0 of 8 plans")


def test_a_crash_of_the_planner_is_an_answer(monkeypatch):
    monkeypatch.setattr("benchmarks.conversions.answers.plan", lambda *_, **__: 1 // 0)
    assert our_answer(a_case(), None).status == "crash"


# ---- counts that must be 0


@pytest.mark.parametrize(
    "row, titles",
    [
        (a_row(5, 5), []),
        (a_row(4, 5), []),
        (a_row(6, 5), ["received bytes: above XLA", "received bytes: above Shardy"]),
        (a_row(5, None), []),
        (a_row(0, 0, bound_bytes=0), []),
        (a_row(1, 1, bound_bytes=0), ["bytes received though none are needed"]),
        (a_row(0, 5, status="no plan"), ["refusals and crashes"]),
        (timed_row((1.0, 1.0), (1.0, 1.0), rounds=2), ["more rounds than Shardy, and no less time"]),
        (timed_row((0.9, 0.9), (1.0, 1.0), rounds=2), []),
        (timed_row((0.1 + 0.2, 0.1 + 0.2), (0.3, 0.3)), []),
        (timed_row((1.1, 1.1), (1.0, 1.0)), ABOVE_IN_TIME),
        (timed_row((1.1, 1.1), (1.0, 1.2)), []),
        (timed_row((1.0, 1.2), (1.0, 1.1)), ABOVE_IN_TIME),
        (timed_row((1.1, 1.2), (1.0, 1.2)), ABOVE_IN_TIME),
        (timed_row((1.0, 1.2), (1.1, None)), []),
        (timed_row((1.1, 1.2), (1.0, None)), ABOVE_IN_TIME),
        (timed_row((1.1, 1.1), (1.0, 1.0), is_beyond_ends=True), []),
    ],
)
def test_promises_are_counted(row, titles):
    assert failing_titles(row) == titles


def test_the_worst_come_first_with_the_command_that_shows_them():
    mild, bad = a_row(6, 5), dataclasses.replace(a_row(20, 5), case=a_case('[{"x"}, {}]', "[{}, {}]"))
    text = as_markdown([mild, bad], show=1)
    assert "received bytes: above XLA: 2\n\n    # 4.000 times" in text
    assert bad.case.command("bytes") in text and mild.case.command("bytes") not in text


def test_a_peer_whose_tile_is_above_both_ends_is_told(tmp_path):
    """XLA gathers the whole array, 256 bytes, before it slices; the tile at each end has only 128 bytes."""
    case, gather = (
        a_case('[{"x":(1)2}, {}]', '[{}, {"x":(1)2}]'),
        Collective("all_gather", 64, 256, groups=((0, 2), (1, 3))),
    )
    assert case.largest_tile_bytes == 128
    benchmark = Benchmark([case], tmp_path)
    for name, collectives in (("xla", (gather,)), ("shardy", ())):
        benchmark.answers.add(question(case, name), as_entry(Answer(name, 4, collectives=collectives)))
    benchmark.plan(("bytes",))
    (row,) = benchmark.rows()
    assert [row.theirs[name].is_beyond_ends for name in ("xla", "shardy")] == [True, False]


def test_who_is_faster_with_a_tile_above_both_ends_breaks_no_promise_and_is_listed():
    row = timed_row((1.1, 1.1), (1.0, 1.0), is_beyond_ends=True)
    assert failing_titles(row) == [] and [len(each.rows) for each in beyond_rules([row])] == [1, 1]
    _, listed = as_markdown([row], show=1).split("### Faster only with a tile that R2 forbids")
    assert "modelled time: above XLA: 1\n\n    # 1.100 times, 1.100 whole, 1.100 in collectives" in listed


def test_who_is_faster_than_a_plan_with_as_large_a_tile_breaks_a_promise():
    row = timed_row((1.1, 1.1), (1.0, 1.0), is_beyond_ends=True)
    theirs = {name: dataclasses.replace(each, largest_tile_bytes=4096) for name, each in row.theirs.items()}
    for time_s, titles in (
        (1.0, []),
        (
            1.05,
            ["modelled time: above XLA, given as large a tile", "modelled time: above Shardy, given as large a tile"],
        ),
    ):
        given = {4096: Ours("ok", rounds=1, collectives_time_s=time_s, time_s=time_s)}
        again = dataclasses.replace(row, theirs=theirs, given=given)
        assert failing_titles(again) == titles
        assert (" --tile-limit 4096 " in as_markdown([again], show=1)) == bool(titles)


def test_a_pair_is_planned_again_with_the_tile_of_a_peer_that_is_faster_with_it(tmp_path):
    """XLA gathers a whole small array in one collective; a plan within R2 needs two collectives."""
    sides = Sharding.parse('[{}, {"x":(2)2, "y"}, {}, {}]'), Sharding.parse('[{}, {}, {"x"}, {}]')
    case = Case(Pair(Mesh.parse("x=4,y=4"), (1, 16, 4, 2), *sides), "f32", ("uniform",), "16 devices")
    groups = tuple(tuple(x * 4 + y for x in range(start, start + 2) for y in range(4)) for start in (0, 2))
    gather = Collective("all_gather", 64, 512, groups=groups)
    benchmark = Benchmark([case], tmp_path)
    benchmark.answers.add(question(case, "xla"), as_entry(Answer("xla", 16, collectives=(gather,), copies=Copies(128))))
    benchmark.answers.add(question(case, "shardy"), as_entry(Answer("shardy", 16, "error")))
    benchmark.plan(("time",))
    (row,) = benchmark.rows()
    assert row.lost_by("xla") > 1 and list(row.given) == [512]
    assert row.given_their_tile("xla").lost_by("xla") is None and failing_titles(row) == []


def test_fewer_bytes_break_a_promise_whatever_the_tile():
    row = a_row(6, 5)
    theirs = {name: dataclasses.replace(each, is_beyond_ends=True) for name, each in row.theirs.items()}
    assert len(failing_titles(dataclasses.replace(row, theirs=theirs))) == len(PEERS)


def test_our_time_is_the_plans_own_and_plans_on_disk_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    for case in random_cases((8, 16), 6, 3, ("uniform",)):
        pair = case.pair
        options = {"objective": "time", "topology": Topology.parse("h100"), "with_exchange": True}
        answer = our_answer(case, "h100")
        assert not any(tmp_path.iterdir()) and "RESHARD_CACHE" not in os.environ
        found = plan(pair.mesh, pair.shape, case.bits, pair.source, pair.target, **options)
        assert math.isclose(answer.time_s, found.time_s, rel_tol=1e-5, abs_tol=1e-11)  # steps have whole picoseconds
        forget()
        for each in tmp_path.iterdir():
            shutil.rmtree(each)


def test_a_promise_that_is_broken_is_the_exit_status(tmp_path, monkeypatch):
    monkeypatch.setattr(Benchmark, "rows", lambda self: [a_row(6, 5)])
    assert run(tmp_path, "--report") == 1


@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--presets", "h100,dgx", 'unknown "dgx"; known: a100,'),
        ("--objectives", "speed", 'unknown "speed"; known: bytes, time'),
        ("--devices", "8,x", '"8,x" are no numbers of devices; write e.g. 8,12'),
    ],
)
def test_a_wrong_flag_is_named(tmp_path, capsys, flag, value, message):
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, flag, value)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["conversions.cases", "harness.journal", "harness.progress"])
def test_examples_of(name):
    assert doctest.testmod(importlib.import_module(f"benchmarks.{name}")).failed == 0


# ---- the peers, and the seeded 2 %


@pytest.mark.slow
def test_questions_after_the_death_of_shardys_process_are_answered():
    case = a_case()
    with Peers(4) as peers:
        for _ in range(2):
            assert peers.ask("shardy", case).bytes_received == 48
            (process,) = peers._shardy._processes.values()
            process.kill()
            process.join()
            assert peers.ask("shardy", case).bytes_received == 48


@pytest.fixture(scope="module")
def two_percent(tmp_path_factory) -> list[Row]:
    """Returns the rows by bytes of the first 2 % of the cases of `benchmarks/redistributions.py`."""
    cases = random_cases(DEVICES, TWO_PERCENT, 0, ("uniform",))
    benchmark = Benchmark(cases, tmp_path_factory.mktemp("state"))
    benchmark.ask_peers()
    benchmark.plan(("bytes",))
    rows = benchmark.rows()
    assert len(rows) == len(cases) == TWO_PERCENT * len(DEVICES)
    return rows


@pytest.mark.slow
def test_two_percent_by_bytes_breaks_no_promise(two_percent):
    broken = {
        each.title: [row.case.command("bytes") for _, row in each.rows] for each in failings(two_percent) if each.rows
    }
    assert not broken


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["uniform", "h100", "v5e"])
def test_one_percent_by_time_break_no_promise(preset, tmp_path):
    benchmark = Benchmark(random_cases(DEVICES, TWO_PERCENT // 2, 0, (preset,)), tmp_path)
    benchmark.ask_peers()
    benchmark.plan(("time",))
    broken = {
        each.title: [row.case.command("time", preset) for _, row in each.rows] for each in failings(benchmark.rows())
    }
    assert not {title: commands for title, commands in broken.items() if commands}


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_two_percent_by_bytes_are_at_most_one_percent_above_the_bound(two_percent, devices):
    rows = [row for row in two_percent if row.case.pair.mesh.size == devices and row.ours.bound_bytes]
    logs = [math.log(row.ours.bytes_received / row.ours.bound_bytes) for row in rows]
    assert math.exp(sum(logs) / len(logs)) <= 1.01
