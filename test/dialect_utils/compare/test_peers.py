# SPDX-License-Identifier: Apache-2.0
"""The prices of Shardy's collectives, and peers that fail."""

import signal

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.dialect_utils.compare import peers
from reshard.dialect_utils.xla.child import XlaChild
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs.tile_program import collectives, lower
from reshard.synthesis.programs.traffic import bytes_received
from reshard.synthesis.search.greedy_chain import greedy_chain


def shardy(mesh: str, shape, source: str, target: str, **options) -> peers.Answer:
    tensor = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
    return peers.shardy_answer(
        tensor,
        Mesh.parse(mesh),
        shape,
        32,
        Sharding.parse(source),
        Sharding.parse(target),
        **{"in_child": False, **options},
    )


@pytest.mark.parametrize(
    "mesh, shape, source, target, kinds, received",
    [
        ("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]', "2 all_to_all", 1536 + 1024),
        ("x=4", (8,), '[{"x"}]', "[{}]", "1 all_gather", 24),
        ("x=4", (8,), "[{}]", '[{"x"}]', "none", 0),
        ("x=2,y=2", (4, 4), '[{"x"}, {"y"}]', "[{}, {}]", "1 all_gather", 48),
        ("x=2,y=2", (8,), '[{"x","y"}]', '[{"y","x"}]', "1 collective_permute", 8),
        ("x=4", (8, 8), '[{"x":(1)2}, {"x":(2)2}]', '[{"x":(1)2}, {}]', "1 all_gather", 64),
        ("x=4", (10, 3), '[{"x"}, {}]', '[{}, {"x"}]', "1 all_to_all", 36),
    ],
)
def test_shardys_collectives_are_priced(mesh, shape, source, target, kinds, received):
    answer = shardy(mesh, shape, source, target)
    assert (answer.status, answer.kinds_text, answer.bytes_received) == ("ok", kinds, received)


@pytest.mark.parametrize(
    "mesh, shape, source, target, copied",
    [
        ("x=4", (8,), '[{"x"}]', "[{}]", 0),
        ("x=4", (4, 8), '[{}, {"x"}]', "[{}, {}]", 4 * 8 * 4),  # the tiles arrive one after the other
        ("x=4", (8, 8), '[{"x"}, {}]', '[{}, {"x"}]', 4 * 16),  # dimension 1 is split into parts, each in one piece
        ("x=4", (8, 8), '[{}, {"x"}]', '[{"x"}, {}]', 4 * 16),  # parts along dimension 1 are joined
        ("x=2,y=2", (8,), '[{"x","y"}]', '[{"y","x"}]', 0),
        ("x=4", (6, 3), '[{"x"}, {}]', '[{}, {"x"}]', 4 * 8),  # padded to 8x4
    ],
)
def test_shardys_steps_are_charged_for_the_copies_that_ours_would_need(mesh, shape, source, target, copied):
    assert shardy(mesh, shape, source, target).copies.all_relaid == copied


def test_whoever_takes_the_same_steps_takes_the_same_time():
    mesh, ends = Mesh.parse("x=4"), (Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
    on = Topology.parse("h100")
    found = plan(mesh, (8, 8), 32, *ends, objective="time", topology=on)
    ours = peers.our_answer("tensor<8x8xf32>", found)
    assert ours.time_s(on) == shardy("x=4", (8, 8), *map(str, ends)).time_s(on) > ours.collectives_time_s(on)
    assert ours.time_s(on) == pytest.approx(found.time_s, rel=1e-6)


def test_our_plans_are_charged_as_the_planner_charges_them_and_shardys_with_the_same_prices():
    """`cpu` prices slices, and leaves a part of what is copied right before an all_to_all free."""
    on, sliced = Topology.parse("cpu"), 0
    for pair in random_pairs(13, 40, (4, 8, 12)):
        found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, objective="time", topology=on)
        ours = peers.our_answer("", found)
        assert ours.time_s(on) == pytest.approx(found.time_s, rel=1e-4, abs=1e-10), str(pair)
        theirs = shardy(str(pair.mesh), pair.shape, str(pair.source), str(pair.target))
        sliced += bool(theirs.copies and theirs.copies.sliced)
    assert sliced


def test_shardys_steps_nearly_always_have_a_price_with_their_copies():
    pairs = random_pairs(11, 60, (8, 12, 16, 24))
    answers = [shardy(str(pair.mesh), pair.shape, str(pair.source), str(pair.target)) for pair in pairs]
    assert sum(answer.copies is None for answer in answers) <= 3


def test_a_child_answers_as_the_process_itself():
    problem = ("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]')
    assert shardy(*problem, in_child=True) == shardy(*problem)


def test_no_price_is_below_the_bound():
    for pair in random_pairs(11, 60, (4, 6, 8, 12)):
        answer = shardy(str(pair.mesh), pair.shape, str(pair.source), str(pair.target))
        assert answer.is_ok, answer.message
        assert answer.bytes_received >= 4 * received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target), (
            str(pair)
        )


def test_a_module_that_shardy_refuses_is_an_answer():
    answer = peers.shardy_answer(
        "tensor<8xnonsense>", Mesh.parse("x=4"), (8,), 32, Sharding.parse('[{"x"}]'), Sharding.parse("[{}]")
    )
    assert answer.status == "error" and answer.message and answer.bytes_received is None


def test_an_abort_is_an_answer(monkeypatch):
    class Dead:
        returncode, stdout, stderr = -signal.SIGABRT, "", "F0101 00:00:00.000000 1 made_up.cc:1] Check failed: false"

    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: Dead)
    answer = shardy("x=4", (8,), '[{"x"}]', "[{}]", in_child=True)
    assert (answer.status, answer.collectives) == ("abort", ()) and answer.message.startswith("SIGABRT: made_up.cc")


def test_xla_and_we_are_priced_from_what_xla_compiles():
    mesh, sides = Mesh.parse("x=4"), (Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
    with XlaChild(uses_cache=False, num_devices=4) as child:
        found_copies = {8: 64, 10: 40}
        for shape in ((8, 8), (10, 3)):
            tensor = f"tensor<{shape[0]}x{shape[1]}xf32>"
            found = plan(mesh, shape, 32, *sides, with_exchange=True)
            ours, theirs = peers.our_answer(tensor, found, child), peers.xla_answer(tensor, mesh, *sides, child)
            assert ours.bytes_received == found.bytes_received and ours.temp_bytes > 0
            assert ours.copies.all_relaid == found_copies[shape[0]] and theirs.copies.all_relaid > 0
            assert theirs.kinds_text == "1 all_to_all" and theirs.bytes_received == {8: 48, 10: 36}[shape[0]]


@pytest.mark.slow
def test_the_greedy_chain_receives_no_more_than_shardys_pass_in_no_more_collectives():
    compared = 0
    for pair in random_pairs(74, 200, (4, 6, 8, 12, 16, 24, 36, 64)):
        found = greedy_chain(pair.mesh, pair.shape, pair.source, pair.target)
        theirs = shardy(str(pair.mesh), pair.shape, str(pair.source), str(pair.target))
        if found is None or not theirs.is_ok:
            continue
        moved = collectives(lower(pair.mesh, found.source, found), 32)
        assert bytes_received(moved, pair.mesh.size) <= theirs.bytes_received, str(pair)
        assert len(moved) <= theirs.collective_runs, str(pair)
        compared += 1
    assert compared >= 190
