# SPDX-License-Identifier: Apache-2.0
"""Rejected alternatives: they solve the same request as the plan in other ways, and their reasons are true."""

import re

import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.explain.alternatives import Alternative, _key, rejected
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan, plan
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs.tile_program import On

UNIFORM = Topology.parse("uniform")
PAIRS = random_pairs(41, 40, (4, 6, 8, 12)) + random_reductions(42, 15, (4, 6, 8))


def found_and_rejected(mesh: str, shape, source: str, target: str, topology="uniform", most=20, **options):
    on, ends = Topology.parse(topology), (Sharding.parse(source), Sharding.parse(target))
    found = plan(Mesh.parse(mesh), shape, 32, *ends, topology=on, with_exchange=True, **options)
    return found, rejected(found, most)


def by_way(alternatives: tuple[Alternative, ...]) -> dict[str, Alternative]:
    return {each.way: each for each in alternatives}


ISSUE = "x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]'


def test_by_bytes_the_reason_is_bytes_or_else_collectives_or_else_memory():
    ways = by_way(found_and_rejected(*ISSUE)[1])
    assert ways["one axis at a time"].reason == "receives 1.43x as much"
    assert ways["exchange alone"].reason == "7 collectives instead of 1"
    assert ways["leading axes alone"].reason == "receives 2.86x as much"


def test_what_xla_falls_back_to_is_priced_and_breaks_r2():
    gathered = by_way(found_and_rejected(*ISSUE)[1])["everything gathered, then sliced"]
    assert gathered.reason == "needs a tile of 16 KiB, more than source or target (R2)"
    assert gathered.plan.bytes_received == 14336 and gathered.plan.largest_tile_bytes == 16384
    assert gathered.plan.chain_text == "all_gather x: dim 2, y: dim 0; slice x: dim 1, y: dim 1"


def test_by_time_the_reason_names_the_slow_level():
    """If a chain does not use the fast axis, all bytes cross the network cards."""
    found, others = found_and_rejected(
        "node=4,gpu=8", (4096, 4096), '[{"node"}, {}]', '[{}, {"node"}]', topology="h100", objective="time"
    )
    assert found.chain_text.endswith("all_gather gpu: dim 0")
    ways = by_way(others)
    slower = ways["fewest bytes"]
    ratio = slower.plan.time_s / found.time_s
    assert ratio > 1.5 and slower.reason == f"takes {ratio:.2f}x as long: its all_to_all crosses node, 50 GB/s"


def test_by_time_the_reason_may_be_the_number_of_starts():
    _, others = found_and_rejected(*ISSUE, objective="time")
    ways = by_way(others)
    assert re.fullmatch(r"takes \d\.\d\dx as long: 2 collectives instead of 1", ways["one axis at a time"].reason)


def test_three_best_are_shown():
    assert len(found_and_rejected(*ISSUE, most=3)[1]) == 3


def test_nothing_to_do_has_no_alternatives():
    assert found_and_rejected("x=4", (8,), '[{"x"}]', '[{"x"}]')[1] == ()
    assert found_and_rejected("x=4", (0,), '[{"x"}]', "[{}]")[1] == ()


def test_a_padded_chain_rejects_the_exchange():
    _, others = found_and_rejected("x=4", (10, 3), '[{"x"}, {}]', '[{}, {"x"}]', objective="time")
    assert [each.way for each in others] == ["exchange alone", "fewest bytes"]


@pytest.mark.draws
@pytest.mark.parametrize("objective", ["bytes", "time"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_random_pair(pair: Pair, objective):
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, objective=objective, with_exchange=True)
    others = rejected(found, most=20)
    chains = [each.plan.chain_text for each in others]
    assert found.chain_text not in chains and len(set(chains)) == len(chains)
    costs = [_key(each.plan, objective) for each in others]
    assert costs == sorted(costs)
    for each in others:
        semantics.check(each.plan.tile_program, pair.shape, pair.source, pair.target)
        assert (each.plan.mesh, each.plan.source, each.plan.target) == (found.mesh, found.source, found.target)
        check_reason(found, each)


def check_reason(found: Plan, other: Alternative) -> None:
    """Asserts that the number in a reason follows from the numbers of the two plans."""
    if "(R2)" in other.reason:
        assert other.plan.largest_tile_bytes > found.largest_tile_bytes
    elif match := re.match(r"(takes|receives|peak) ([\d.]+)x", other.reason):
        of = {"takes": lambda p: p.time_s, "receives": lambda p: p.bytes_received, "peak": lambda p: p.peak_bytes}[
            match[1]
        ]
        assert float(match[2]) == pytest.approx(of(other.plan) / of(found), rel=0.06) and of(other.plan) > of(found)
    elif match := re.match(r"(\d+) collectives instead of (\d+)", other.reason):
        assert (int(match[1]), int(match[2])) == (other.plan.collectives, found.collectives)
    else:
        assert other.reason in ("costs as much", "costs less; no search of the planner comes by it")


def test_alternatives_speak_of_the_callers_axes():
    _, others = found_and_rejected("z=4,a=2", (16, 16, 16), '[{"a"}, {}, {"z"}]', '[{}, {"z","a"}, {}]')
    assert all("axis" not in each.plan.chain_text for each in others)
    assert by_way(others)["one axis at a time"].plan.chain_text in (
        "all_to_all z: dim 2 -> 1; all_to_all a: dim 0 -> 1",
        "all_to_all a: dim 0 -> 1; all_to_all z: dim 2 -> 1",
    )


def test_steps_on_a_mesh_of_the_planners_own_do_not_confuse_the_alternatives():
    mesh = Mesh.parse('<["x"=2, "y"=6], device_ids=[1,0,3,2,11,7,5,9,10,6,4,8]>')
    source, target = Sharding.parse('[{"x"}]'), Sharding.parse('[{"y":(2)3, "y":(1)2}]')
    found = plan(
        mesh, (1200,), 8, source, target, objective="time", topology=Topology.parse("h100:2x6"), with_exchange=True
    )
    assert any(isinstance(each, On) for each in found.tile_program.operations)
    assert "exchange in the middle" in [each.way for each in rejected(found)]


EVERYDAY = [
    ("h100", "data=2,model=4", (64, 8192, 8192), '[{}, {"model", "data"}, {}]', '[{"data"}, {}, {}]'),
    ("h100", "data=2,model=4", (8192, 8192), '[{"data"}, {"model"}]', '[{}, {"data"}]'),
    ("h100:4", "data=4,model=8", (64, 8192, 8192), '[{}, {"data"}, {}]', "[{}, {}, {}]"),
    ("h100:4", "data=4,model=8", (8, 2048, 4096), '[{"data"}, {}, {}]', '[{}, {"data"}, {}]'),
    ("v5e:2x4", "data=2,model=4", (8, 2048, 4096), '[{}, {"data", "model"}, {}]', '[{}, {}, {"model"}]'),
    ("a100", "data=2,model=4", (64, 8192, 8192), '[{}, {}, {"model", "data"}]', '[{"data"}, {}, {}]'),
    ("a100", "data=2,model=4", (64, 8192, 8192), '[{}, {"data", "model"}, {}]', '[{}, {"data"}, {}]'),
]


@pytest.mark.parametrize("topology, mesh, shape, source, target", EVERYDAY)
def test_an_exchange_before_a_gather_that_copies_nothing_is_the_plan_where_it_is_faster(
    topology, mesh, shape, source, target
):
    """These plans once gathered along another dimension than the leading one; the faster way was called rejected."""
    found, others = found_and_rejected(mesh, shape, source, target, topology=topology, objective="time")
    assert all(found.time_s <= each.plan.time_s for each in others if "R2" not in each.reason)
    assert "exchange in" in found.chain_text and found.chain_text.endswith("dim 0")
