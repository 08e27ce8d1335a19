# SPDX-License-Identifier: Apache-2.0
"""The comparison of plans before and after a change: its problems stay the same, and it finds a worse plan."""

import doctest
import hashlib
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks import plan_costs
from benchmarks.before_after import checkouts, comparison, problems
from benchmarks.before_after.checkouts import CheckoutError, Planner, answers, sources_digest
from benchmarks.before_after.comparison import Row, failures
from benchmarks.before_after.problems import Call, Problem
from reshard import Mesh, NoPlanError, Sharding, Topology, plan
from reshard.tools.commands.flags import parse_flags

ROOT = Path(plan_costs.__file__).resolve().parents[1]
BEFORE = "0123456789abcdef"  # in place of the digest of another version


def a_call(objective="bytes", *, topology=None, limit=None) -> Call:
    ends, networks = ('[{"x"}, {}]', '[{}, {"x"}]'), (("h100",), ("h100",))
    problem = Problem("pairs", 0, "x=4", None, (8, 8), "f32", *ends, "sum", *networks, 160)
    return Call(problem, objective, topology or ("h100" if objective == "time" else None), limit)


def ok(cost: float, **fields) -> dict:
    found = {"status": "ok", "bytes": cost, "time_s": cost, "peak_bytes": 1, "collectives": 1, "is_optimal": True}
    return {**found, "chain": "all_to_all", "seconds": 0.01, **fields}


def refused(least_limit: int | None) -> dict:
    return {"status": "refused", "message": "needs more", "least_limit": least_limit, "seconds": 0.01}


@pytest.fixture
def few_devices(monkeypatch):
    """Limits the problems to few devices, so that they are planned fast."""
    monkeypatch.setattr(problems, "DEVICES", (2, 4, 6))


ERROR = {"status": "error", "message": "KeyError: 'x'", "seconds": 0.01}


# ---- problems


def test_the_problems_are_the_same_ones_as_ever():
    """The stored results belong to these problems; a change here makes all stored results useless."""
    some = problems.problems(200)
    text = "\n".join(call.key for problem in some for call in problem.calls(on_all=True))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "0763b0330a1b4d56"
    assert problems.problems(20)[:20] == some[:20]


def test_each_kind_of_problem_is_among_them():
    some = problems.problems(1000)
    assert {each.suite for each in some} == {*problems.TURNS, problems.NETWORKS}
    assert {Mesh.parse(each.mesh).size for each in some} >= set(problems.DEVICES)
    assert any(each.target_mesh and "<[]" in each.target_mesh + each.mesh for each in some), "a single device"
    assert any("unreduced" in each.source for each in some) and any("unreduced" in each.target for each in some)
    assert any("device_ids" in each.mesh for each in some) and any(":(" in each.source for each in some)
    assert any(0 in each.shape for each in some) and len({each.dtype for each in some}) == len(problems.BITS)


def test_all_networks_fit_and_meshes_of_few_devices_are_timed_on_all_of_them():
    for each in problems.problems(300):
        devices = max(Mesh.parse(mesh).devices for mesh in (each.mesh, each.target_mesh or each.mesh))
        for name in each.topologies:
            assert Topology.parse(name).fitted(devices).size == devices
        assert len(each.topologies) == (1 if each.suite == problems.NETWORKS else 4)
        assert each.timed_on == each.topologies or (len(each.timed_on) == 1 and devices > problems.FEW_DEVICES)
        assert len(list(each.calls())) == 2 + 2 * len(each.timed_on)


def test_the_limit_is_five_quarters_of_both_tiles(few_devices):
    checked = 0
    for each in problems.problems(30):
        try:
            plan(**{**next(each.calls()).arguments, "memory_limit": 1})
        except NoPlanError as error:
            tiles = re.findall(r"(?:source|target) tile ([\d,]+)", str(error))
            if len(tiles) == 2:
                checked += 1
                both = sum(int(tile.replace(",", "")) for tile in tiles)
                assert each.limit_bytes == pytest.approx(1.25 * both, abs=2)
    assert checked > 20


def test_the_command_line_of_a_call_is_read_as_that_call():
    for each in problems.problems(10):
        for call in each.calls():
            flags = parse_flags(shlex.split(call.command())[1:])
            assert (flags.objective, flags.topology or None) == (call.objective, call.topology or flags.topology)
            assert Mesh.parse(flags.mesh) == Mesh.parse(each.mesh) and flags.to_mesh == each.target_mesh
            assert (flags.source, flags.target, flags.reduction) == (each.source, each.target, each.reduction)
            assert Sharding.parse(each.source) and flags.memory_limit == call.memory_limit


# ---- checkouts


def test_a_change_in_a_subfolder_or_of_a_preset_is_another_version(tmp_path):
    (tmp_path / "synthesis" / "search").mkdir(parents=True)
    versions = set()
    for name in ("plan.py", "search/states.py", "search/uniform.toml"):
        (tmp_path / "synthesis" / name).write_text("1")
        versions.add(sources_digest(tmp_path))
    (tmp_path / "synthesis" / "search" / "states.py").write_text("2")
    versions.add(sources_digest(tmp_path))
    (tmp_path / "synthesis" / "notes.txt").write_text("no source")
    assert len(versions) == 4 and sources_digest(tmp_path) in versions


def test_a_folder_without_sources_is_no_checkout(tmp_path, capsys):
    assert plan_costs.main(["--before", str(tmp_path), "--count", "5"]) == 2
    assert "is no checkout of reshard" in capsys.readouterr().err


def test_a_checkout_that_cannot_be_imported_is_named(tmp_path):
    shutil.copytree(ROOT / "synthesis", tmp_path / "synthesis")
    with pytest.raises(CheckoutError, match="reshard is imported from .*, not from"):
        list(answers(tmp_path, [a_call()], jobs=1))


def test_the_death_of_a_process_is_an_answer_and_the_next_call_is_planned():
    with Planner(ROOT) as planner:
        first = planner.ask(a_call())
        planner._process.kill()
        second, third = planner.ask(a_call()), planner.ask(a_call("time"))
    assert [each["status"] for each in (first, second, third)] == ["ok", "error", "ok"]
    assert second["message"].startswith("the process ended with -9")


def test_several_processes_answer_what_one_does(few_devices, monkeypatch):
    monkeypatch.setattr(checkouts, "CALLS_PER_PROCESS", 3)
    calls = [call for problem in problems.problems(2) for call in problem.calls() if call.objective == "bytes"]
    found = [{call.key: answer | {"seconds": 0} for call, answer in answers(ROOT, calls, jobs)} for jobs in (1, 2)]
    assert found[0] == found[1] and len(found[0]) == len(calls)


# ---- comparison


@pytest.mark.parametrize(
    ("objective", "before", "after", "ratio", "words"),
    [
        ("bytes", ok(100), ok(100), 1, None),
        ("bytes", ok(0), ok(0), 1, None),
        ("bytes", ok(100), ok(99), 0.99, None),
        ("bytes", ok(1000000), ok(1000001), 1.000001, "by bytes 1 plans are worse"),
        ("bytes", ok(0), ok(1), math.inf, "by bytes 1 plans are worse"),
        ("bytes", ok(100), refused(9), math.inf, "by bytes 1 plans are worse"),
        ("bytes", refused(9), ok(100), 0, None),
        ("bytes", refused(10), refused(11), 1.1, "by bytes 1 plans are worse"),
        ("bytes", refused(11), refused(10), 10 / 11, None),
        ("bytes", refused(None), refused(10), 1, None),
        ("bytes", refused(10), ERROR, math.inf, "1 calls end in an error; the first one: KeyError: 'x'"),
        ("bytes", ERROR, ERROR, 1, "1 calls end in an error"),
        ("time", ok(1.0), ok(1.0 + 1e-12), 1 + 1e-12, None),
        ("time", ok(1.0), ok(1.005), 1.005, "1 of 1 plans are worse; at most 0.1% may be"),
        ("time", ok(1.0), ok(1.02), 1.02, "by time 1 plans are worse by more than 1%"),
        ("time", ok(1.0), refused(None), math.inf, "by time 1 plans are worse by more than 1%"),
    ],
)
def test_what_is_worse(objective, before, after, ratio, words):
    row = Row(a_call(objective), before, after)
    found = failures([row])
    assert row.ratio == pytest.approx(ratio) and (any(words in each for each in found) if words else not found)
    assert row.is_better == (ratio < 1) and (row.is_worse == bool(found) or before == after == ERROR)
    assert json.dumps(comparison.as_json([row])) and comparison.as_markdown([row], show=1)


def test_a_few_plans_by_time_may_be_a_little_worse():
    rows = [Row(a_call("time"), ok(1.0), ok(1.0))] * 999
    assert not failures([*rows, Row(a_call("time"), ok(1.0), ok(1.009))])
    assert failures([*rows, *[Row(a_call("time"), ok(1.0), ok(1.009))] * 2])


def test_the_table_counts_rows_by_suite_objective_preset_and_limit():
    calls = [a_call(), a_call(limit=160), a_call("time"), a_call("time", limit=160)]
    calls.append(a_call("time", topology="h100:1x4"))
    rows = [Row(call, ok(4.0), ok(cost)) for call, cost in zip(calls, (4.0, 2.0, 4.0, 8.0, 16.0), strict=True)]
    found = [list(each.values())[:10] for each in comparison.groups(rows)]
    assert found[:4] == [
        ["pairs", "bytes", "-", "without", 1, 0, 1, 0, 0, 0],
        ["pairs", "bytes", "-", "with", 1, 0, 0, 1, 0, 0],
        ["pairs", "time", "h100", "without", 2, 0, 1, 0, 1, 1],
        ["pairs", "time", "h100", "with", 1, 0, 0, 0, 1, 1],
    ]
    assert [each[1:5] for each in found[4:]] == [
        ["bytes", "all", "without", 1],
        ["bytes", "all", "with", 1],
        ["time", "all", "without", 2],
        ["time", "all", "with", 1],
    ]
    figures = list(comparison.groups(rows))[2]
    assert (figures["after ÷ before: largest"], figures["geomean"]) == (4, 2)


def test_the_worst_plan_comes_first_with_its_command():
    rows = [Row(a_call("time", limit=160), ok(1.0), ok(cost)) for cost in (1.5, 3.0, 2.0)]
    text = comparison.as_markdown(rows, show=2)
    assert text.index("# more than 1 %: 3 times; all_to_all => all_to_all\n    reshard plan") < text.index("2 times")
    assert "1.5 times" not in text and "and 1 more" in text and "--memory-limit 160" in text
    assert [each["ratio"] for each in comparison.as_json(rows)["worse"]] == [3.0, 2.0, 1.5]


def test_what_changes_beside_the_cost_is_counted_and_does_not_fail():
    rows = [Row(a_call(), ok(1), ok(1, collectives=2, peak_bytes=0, is_optimal=False, chain="exchange"))]
    text = comparison.as_markdown(rows, show=1)
    assert "| by bytes | 1 | 1 | 1 | 0 | 0 | 1 | 0 | 1 |" in text and not failures(rows)


# ---- the command


@pytest.fixture
def run(tmp_path, few_devices, capsys):
    """Returns a function that compares two versions on a few problems, and returns the status, the output and JSON."""

    def compare(*flags: str) -> tuple[int, str, dict]:
        files = ["--journal", str(tmp_path / "journal.jsonl"), "--json", str(tmp_path / "found.json")]
        status = plan_costs.main(["--count", "8", *files, *flags])
        said = capsys.readouterr()
        return status, said.out + said.err, json.loads((tmp_path / "found.json").read_text()) if status < 2 else {}

    return compare


def doctored(path: Path, named: str | None = None) -> None:
    """Copies a journal's answers to the version BEFORE in the journal; the named call gets half of its bytes."""
    lines = []
    for line in path.read_text().splitlines():
        question, answer = json.loads(line).values()
        key = question.split(" ", 1)[1]
        was = {**answer, "bytes": answer["bytes"] // 2} if key == named else answer
        lines.append(json.dumps({"question": f"{BEFORE} {key}", "answer": was}))
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n")


def test_a_checkout_is_equal_to_itself_and_a_worse_plan_is_the_exit_status(run, tmp_path):
    status, text, found = run("--before", str(ROOT))
    assert status == 0 and "No plan is worse by more than is allowed." in text
    assert found["before"] == found["after"] == sources_digest(ROOT) and found["worse"] == found["failures"] == []
    assert all(line["equal"] == line["problems"] for line in found["table"])
    journal = (tmp_path / "journal.jsonl").read_text()
    assert run("--before", str(ROOT))[0] == 0
    assert (tmp_path / "journal.jsonl").read_text() == journal, "it plans what it has planned before"

    doctored(tmp_path / "journal.jsonl")
    assert run("--before", BEFORE)[0] == 0
    entries = map(json.loads, journal.splitlines())
    named = next(each["question"].split(" ", 1)[1] for each in entries if each["answer"].get("bytes", 0) > 1)
    doctored(tmp_path / "journal.jsonl", named)
    status, text, found = run("--before", BEFORE)
    assert status == 1 and "by bytes 1 plans are worse; none may be" in text
    assert [each["key"] for each in found["worse"]] == [named] and found["worse"][0]["command"] in text


def test_a_digest_whose_answers_are_not_there_is_named(run):
    status, text, _ = run("--before", BEFORE)
    assert status == 2 and f"{BEFORE} is no folder" in text and "plans are not in" in text


def test_a_run_that_was_stopped_goes_on(run, tmp_path, monkeypatch):
    def stopped(items, title):
        for item, _ in zip(items, range(3), strict=False):
            yield item
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(plan_costs, "shown", stopped)
        status, text, _ = run("--before", str(ROOT))
    assert status == plan_costs.INTERRUPTED and "the same command goes on" in text
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 3
    assert run("--before", str(ROOT))[0] == 0
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(lines) == len({json.loads(line)["question"] for line in lines})


def test_examples():
    assert doctest.testmod(problems).failed == 0
