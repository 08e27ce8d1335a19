# SPDX-License-Identifier: Apache-2.0
"""DTensor's placements, the prices of its steps, and its planner where torch is installed."""

import json
import signal
import subprocess

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.dialect_utils.compare import peers_dtensor
from reshard.dialect_utils.compare.peers import Answer
from reshard.dialect_utils.compare.peers_dtensor import State, Step, merged, refined, state_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import received_elements_bound

ISSUE = ("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]')

needs_torch = pytest.mark.skipif(not peers_dtensor.is_installed(), reason="needs torch: pip install 'torch>=2.13'")


def dtensor(mesh: str, shape, source: str, target: str, **options) -> Answer:
    return peers_dtensor.dtensor_answer(
        Mesh.parse(mesh), shape, 32, Sharding.parse(source), Sharding.parse(target), **options
    )


class Says:
    """Takes the place of the child process: answers with the steps of each planner."""

    returncode, stderr = 0, ""

    def __init__(self, *plans):
        self.stdout = "".join(f"{json.dumps(plan)}\n" for plan in plans)

    def run(self, *_, **options):
        self.request = json.loads(options["input"])
        return self


def planned(steps, how="planned greedily") -> dict:
    return {"how": how, "steps": steps}


@pytest.fixture
def child(monkeypatch):
    def pretend(*plans) -> Says:
        says = Says(*plans)
        monkeypatch.setattr(peers_dtensor.subprocess, "run", says.run)
        return says

    return pretend


# ---- placements


@pytest.mark.parametrize(
    "mesh, source, target, pieces, states",
    [
        (*ISSUE[:1], *ISSUE[2:], ["x", "y"], [State(((1,), (), (0,))), State(((), (0, 1), ()))]),
        ("x=2,y=2", '[{"x","y"}]', '[{"y","x"}]', ["x", "y"], [State(((0, 1),)), State(((1, 0),))]),
        (
            "x=8",
            '[{"x":(1)2}, {"x":(4)2}]',
            '[{"x"}, {}]',
            ["x:(1)2", "x:(2)2", "x:(4)2"],
            [State(((0,), (2,))), State(((0, 1, 2), ()))],
        ),
        ("x=4,z=1", '[{"z"}], unreduced={"x"}', '[{"x"}]', ["x"], [State(((),), (0,)), State(((0,),))]),
        ("x=1", "[{}]", '[{"x"}]', [], [State(((),)), State(((),))]),
    ],
)
def test_shardings_become_placements_on_a_refined_mesh(mesh, source, target, pieces, states):
    mesh, sides = Mesh.parse(mesh), [Sharding.parse(source), Sharding.parse(target)]
    found = refined(mesh, sides)
    assert [piece.text(mesh) for piece in found] == pieces
    assert [state_of(mesh, found, side) for side in sides] == states


def test_the_planner_is_asked_in_its_own_terms(child):
    says = child(planned([]))
    dtensor("x=4,y=2", (8, 8), '[{"x":(1)2}, {"y"}]', '[{"x":(1)2}, {"y"}]', devices_per_host=4)
    end = {"dims": [[0], [2]], "partial": []}
    assert says.request == {
        "sizes": [2, 2, 2], "shape": [8, 8], "bits": 32, "ends": [end, end], "reduce_op": "sum", "devices_per_host": 4
    }  # fmt: skip


@pytest.mark.parametrize(
    "mesh, source, target, options, reason",
    [
        (
            "x=6",
            '[{"x":(1)2}]',
            '[{"x":(1)3}]',
            {},
            'axis "x" of size 6 is cut at 2 and at 3, which no mesh of sub-axes has',
        ),
        ("x=4", '[{}], unreduced={"x"}', '[{"x"}]', {"reduction": "or"}, 'DTensor has no partial sums by "or"'),
    ],
)
def test_what_dtensor_cannot_express_is_unsupported_and_says_why(mesh, source, target, options, reason):
    answer = dtensor(mesh, (12,), source, target, **options)
    assert answer.status == "unsupported" and reason in answer.message and answer.bytes_received is None


# ---- steps and prices


def test_neighbours_are_merged_as_torch_merges_them():
    gathers = [Step((2,), "S0", "R"), Step((0,), "S0", "R"), Step((1,), "S1", "R")]
    assert merged(gathers) == [Step((0, 2), "S0", "R"), Step((1,), "S1", "R")]
    moves = [Step((1,), "S0", "S1"), Step((0,), "S0", "S1")]
    assert merged(moves) == moves
    scatters = [Step((0,), "P", "S0"), Step((1,), "P", "S0")]
    assert merged(scatters) == [Step((0, 1), "P", "S0")] and merged(scatters[::-1]) == scatters[::-1]
    assert merged([Step((1,), "P", "R"), Step((0,), "P", "R")]) == [Step((0, 1), "P", "R")]


@pytest.mark.parametrize(
    "problem, steps, kinds, received, groups",
    [
        (
            ISSUE,
            [([1], "S0", "R"), ([0], "S2", "S1"), ([1], "R", "S1")],
            "1 all_gather, 1 all_to_all",
            2048 + 3072,
            [(0, 1), (0, 2, 4, 6)],
        ),
        (
            ("x=2,y=2", (4,), '[{"x","y"}]', "[{}]"),
            [([1], "S0", "R"), ([0], "S0", "R")],
            "1 all_gather",
            12,
            [(0, 1, 2, 3)],
        ),
        (("x=4", (8,), '[{}], unreduced={"x"}', '[{"x"}]'), [([0], "P", "S0")], "1 reduce_scatter", 24, [(0, 1, 2, 3)]),
        (("x=4", (8,), '[{}], unreduced={"x"}', "[{}]"), [([0], "P", "R")], "1 all_reduce", 48, [(0, 1, 2, 3)]),
        (("x=4", (8,), "[{}]", '[{}], unreduced={"x"}'), [([0], "R", "P")], "none", 0, []),
        (("x=4", (10, 3), '[{"x"}, {}]', '[{}, {"x"}]'), [([0], "S0", "S1")], "1 all_to_all", 36, [(0, 1, 2, 3)]),
        (
            ('<["x"=2,"y"=2], device_ids=[0,2,1,3]>', (4,), '[{"x"}]', "[{}]"),
            [([0], "S0", "R")],
            "1 all_gather",
            8,
            [(0, 1)],
        ),
    ],
)
def test_steps_are_priced_as_ours_are(problem, steps, kinds, received, groups, child):
    child(planned(steps))
    answer = dtensor(*problem)
    assert (answer.status, answer.kinds_text, answer.bytes_received) == ("ok", kinds, received)
    assert [each.groups[0] for each in answer.collectives] == groups


def test_the_plan_that_receives_less_counts(child):
    gathers = [([1], "S0", "R"), ([0], "S2", "R"), ([0], "R", "S1"), ([1], "R", "S1")]
    moves = [([0], "S2", "S1"), ([1], "S0", "S1")]
    child(planned(gathers), planned(moves, "planned by search"))
    answer = dtensor(*ISSUE)
    assert (answer.message, answer.bytes_received) == ("planned by search", 1536 + 1024)


def test_a_plan_that_ends_elsewhere_is_an_error(child):
    child(planned([([0], "S2", "R")]))
    answer = dtensor(*ISSUE)
    assert answer.status == "error" and answer.message.startswith("the plan ends in ")


# ---- failures


def test_what_the_planner_raises_is_an_answer(child):
    child({"error": "planned by search: no path found"})
    assert (dtensor(*ISSUE).status, dtensor(*ISSUE).message) == ("error", "planned by search: no path found")


def test_an_abort_is_an_answer(child):
    says = child()
    says.returncode = -signal.SIGABRT
    assert dtensor(*ISSUE).status == "abort"


@pytest.mark.parametrize(
    "said, status", [(b"", "hang"), (json.dumps(planned([([0], "S0", "R")])).encode() + b'\n{"how": "pl', "ok")]
)
def test_a_search_that_never_ends_leaves_the_greedy_plan(said, status, monkeypatch):
    def late(*_, **__):
        raise subprocess.TimeoutExpired("torch", 1, output=said)

    monkeypatch.setattr(peers_dtensor.subprocess, "run", late)
    answer = dtensor("x=4", (8,), '[{"x"}]', "[{}]")
    assert answer.status == status and "120 s" in answer.message


def test_a_search_may_be_given_so_many_seconds():
    with pytest.raises(peers_dtensor._OutOfTime, match="no answer after 0.05 s"), peers_dtensor._limited_to(0.05):
        while True:
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_two_planners_out_of_time_are_a_hang(child):
    child({"error": "planned by search: no answer after 10 s", "status": "hang"})
    answer = dtensor("x=4", (8,), '[{"x"}]', "[{}]")
    assert (answer.status, answer.message) == ("hang", "planned by search: no answer after 10 s")


# ---- the real planner


@needs_torch
@pytest.mark.parametrize(
    "problem, kinds, received",
    [
        (ISSUE, "1 all_gather, 1 all_to_all", 5120),
        (("x=4,y=2", (1024, 1024, 16), *ISSUE[2:]), "2 all_to_all", 10485760),
        (("x=2,y=2", (8,), '[{"x","y"}]', '[{"y","x"}]'), "1 all_gather", 24),
        (("x=4", (8, 8), '[{"x":(1)2},{"x":(2)2}]', '[{"x":(1)2},{}]'), "1 all_gather", 64),
        (("x=2,y=2", (8,), '[{}], unreduced={"x","y"}', "[{}]"), "1 all_reduce", 48),
    ],
)
def test_torch_plans(problem, kinds, received):
    answer = dtensor(*problem, in_child=False)
    assert (answer.status, answer.kinds_text, answer.bytes_received) == ("ok", kinds, received), answer.message


@needs_torch
def test_no_plan_of_torch_is_below_the_bound():
    for pair in random_pairs(11, 40, (4, 6, 8)):
        answer = dtensor(str(pair.mesh), pair.shape, str(pair.source), str(pair.target), in_child=False)
        if answer.status != "unsupported":
            assert answer.is_ok, answer.message
            assert answer.bytes_received >= 4 * received_elements_bound(
                pair.mesh, pair.shape, pair.source, pair.target
            ), str(pair)


@needs_torch
def test_a_child_answers_as_the_process_itself():
    assert dtensor(*ISSUE, in_child=True) == dtensor(*ISSUE, in_child=False)
