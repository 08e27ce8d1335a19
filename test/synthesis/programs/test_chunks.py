# SPDX-License-Identifier: Apache-2.0
"""Plans in chunks: the untouched digits, the parts of a loop, and the same tiles as the plan in one piece."""

import itertools

import numpy as np
import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.blocks import cut as tiles_of
from reshard.synthesis.layouts.layout import layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.cost import collective_time_s, copies_time_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan, pareto
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.chunks import MOST_CHUNKS, Cut, cuts, untouched_digit
from reshard.synthesis.programs.tile_program import Loop, Reshape, collectives, copies
from reshard.synthesis.programs.traffic import bytes_received


def plans(mesh: str, shape, source: str, target: str, **options) -> tuple[Plan, ...]:
    return pareto(Mesh.parse(mesh), shape, 32, Sharding.parse(source), Sharding.parse(target), **options)


def digits(mesh: str, shape, source: str, target: str, **options) -> list[int]:
    program = plans(mesh, shape, source, target, **options)[0].tile_program
    return [untouched_digit(program, dim) for dim in range(len(shape))]


def loop_of(plan: Plan) -> Loop:
    (loop,) = (each for each in plan.tile_program.operations if isinstance(each, Loop))
    return loop


# -- untouched digits


def test_dimensions_that_nobody_splits_are_untouched():
    assert digits("x=2", (4, 6, 10), '[{"x"}, {}, {}]', '[{}, {"x"}, {}]') == [2, 3, 10]


def test_what_is_behind_the_digits_that_move_is_untouched():
    """x takes the digit of size 2 after the digit of y, so that a digit of size 24 / 3 / 2 = 4 is left."""
    assert digits("x=2,y=3", (24, 4), '[{"y"}, {"x"}]', '[{"y", "x"}, {}]') == [4, 2]


def test_a_digit_is_followed_through_reshapes_transposes_and_slices():
    found = plans("x=2,y=2,z=2", (16, 4), '[{}, {"x"}]', '[{"x","y","z"}, {}]')[0].tile_program
    assert [untouched_digit(found, dim) for dim in (0, 1)] == [2, 2]


def test_a_permute_of_single_elements_leaves_nothing():
    assert digits("x=2,y=2", (4,), '[{"x", "y"}]', '[{"y", "x"}]') == [1]


def test_an_exchange_of_uneven_blocks_leaves_what_divides_all_bounds():
    """Shards of 3, 3, 3, 1 have bounds in units of 1; dimension 1 is whole on both sides."""
    assert digits("x=4", (10, 6), '[{"x"}, {}]', "[{}, {}]", with_exchange=True) == [1, 6]


def test_sums_leave_other_dimensions_alone():
    assert digits("x=2", (4, 6), '[{}, {}], unreduced={"x"}', '[{"x"}, {}]') == [2, 6]


def test_counts_are_the_least_divisors_from_each_power_of_two_on():
    program = plans("x=2", (2, 45), '[{"x"}, {}]', "[{}, {}]")[0].tile_program
    assert list(cuts(program)) == [Cut(1, count, 45) for count in (3, 5, 9, 45)]


def test_there_are_at_most_so_many_chunks():
    counts = [each.count for each in cuts(plans("x=2", (4096,), '[{"x"}]', "[{}]")[0].tile_program)]
    assert counts[0] == 2 and counts[-1] == MOST_CHUNKS


def test_a_loop_whose_result_would_be_copied_comes_last():
    """XLA copies the tile after a reshape to dimensions of size 1; a loop over dimension 1 needs no such copy."""
    program = plans("x=2", (8, 8, 1, 3), '[{"x"}, {}, {}, {}]', '[{}, {"x"}, {}, {}]')[0].tile_program
    assert list(cuts(program)) == [Cut(1, 2, 4), Cut(3, 3, 3), Cut(1, 4, 4)]


# -- loops


def test_a_loop_takes_and_puts_parts_of_an_axis():
    whole, *chunked = plans("x=2", (4, 8), '[{"x"}, {}]', '[{}, {"x"}]')
    half = next(each for each in chunked if loop_of(each).count == 2)
    loop = loop_of(half)
    assert half.tile_program.operations == (loop, Reshape((4, 4)))  # rows 2i + j: the digit of j counts the chunks
    assert (loop.taken, loop.put, loop.out_shape) == (0, 1, (2, 2, 4))
    assert (loop.body.in_shape, loop.body.out_shape) == ((1, 8), (2, 4))
    assert half.chain_text == f"2 chunks along dim 0: {whole.chain_text}"


def test_chunks_move_the_same_bytes_with_as_many_latencies():
    whole, *chunked = plans("x=4,y=2", (256, 256), '[{"x"}, {"y"}]', '[{"y"}, {"x"}]')
    for each in chunked:
        count = loop_of(each).count
        assert each.bytes_received == whole.bytes_received and each.bytes_sent == whole.bytes_sent
        assert each.collectives == count * whole.collectives
        assert each.time_s > whole.time_s + (count - 1) * whole.collectives * 9.6e-6
        assert bytes_received(collectives(each.tile_program, 32), 8) == each.bytes_received


def test_temporaries_shrink_by_the_number_of_chunks():
    whole, *chunked = plans("x=4", (64, 64), '[{"x"}, {}]', '[{}, {"x"}]')
    ends = 2 * 64 * 16 * 4
    assert whole.peak_bytes - ends == ends
    assert [each.peak_bytes - ends for each in chunked] == [ends // loop_of(each).count for each in chunked]


def test_the_steps_of_a_chunk_keep_the_rules():
    """R1: the typing rules, on all digits except the untouched one, lead from the source to the target."""
    source, target = '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]'
    for each in plans("x=4,y=2", (16, 16, 16), source, target)[1:]:
        layout = layout_of(each.mesh, each.shape, each.source)
        for step in each.steps:
            layout = steps.apply(layout, step.step)
        assert layout == layout_of(each.mesh, each.shape, each.target)


def test_a_chunk_that_cuts_an_owned_digit_breaks_a_rule():
    layout = layout_of(Mesh.parse("x=4"), (8,), Sharding.parse('[{"x"}]'))
    with pytest.raises(steps.RuleError, match="chunks: "):
        steps.apply(layout, steps.Chunked(0, 4, ()))
    with pytest.raises(steps.RuleError, match="does not divide into 3 chunks"):
        steps.apply(layout, steps.Chunked(0, 3, ()))


def test_json_has_the_steps_of_a_chunk():
    half = plans("x=4", (64, 64), '[{"x"}, {}]', '[{}, {"x"}]')[1]
    (step,) = half.to_dict()["steps"]
    assert (step["op"], step["chunks"]["dim"], step["chunks"]["count"]) == ("chunks", 0, 2)
    moved = [each for each in step["chunks"]["steps"] if each["op"] == "all_to_all"]
    assert [each["bytes_received"] for each in moved] == [step["bytes_received"] / 2]
    assert step["bytes_received"] == half.to_dict()["totals"]["bytes_received"]


# -- the same tiles


def assert_same_tiles(found: tuple[Plan, ...], tiles: dict[int, np.ndarray]) -> None:
    whole, *others = (semantics.run(each.tile_program, tiles) for each in found)
    for other in others:
        for device, tile in whole.items():
            assert tile.shape == other[device].shape and (tile == other[device]).all()


@pytest.mark.mostly_slow
@pytest.mark.parametrize("with_exchange", [False, True])
@pytest.mark.parametrize("pair", random_pairs(60, 25, (4, 6, 8, 12)), ids=str)
def test_chunked_plans_of_random_pairs_end_with_the_tiles_of_the_whole(pair: Pair, with_exchange: bool):
    found = pareto(pair.mesh, pair.shape, 32, pair.source, pair.target, with_exchange=with_exchange)
    semantics.check(found[0].tile_program, pair.shape, pair.source, pair.target)
    indices = np.arange(np.prod(pair.shape)).reshape(pair.shape)
    assert_same_tiles(found, semantics.scatter(indices, pair.mesh, pair.source))


@pytest.mark.parametrize("pair", random_reductions(61, 25, (4, 6, 8, 12)), ids=str)
def test_chunked_plans_of_partial_sums_add_up(pair: Pair):
    for each in pareto(pair.mesh, pair.shape, 32, pair.source, pair.target):
        semantics.check(each.tile_program, pair.shape, pair.source, pair.target)


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target"),
    [
        ("x=4", (10, 64, 3), '[{"x"}, {}, {}]', '[{}, {}, {"x"}]'),
        ("x=2,y=3", (10, 12, 7), '[{"y"}, {"x"}, {}]', '[{"x"}, {"y"}, {}]'),
        ("x=8", (5, 64), '[{"x"}, {}]', '[{}, {"x"}]'),
    ],
)
def test_chunked_plans_of_dimensions_that_do_not_divide(mesh, shape, source, target):
    found = plans(mesh, shape, source, target, with_exchange=True)
    assert any(each.steps[0].op == "chunks" for each in found)
    for each in found:
        semantics.check(each.tile_program, shape, each.source, each.target)


def test_a_wrong_part_is_seen():
    """Checks the comparison itself: a program on wrong tiles ends with other tiles."""
    half = plans("x=4", (10, 64, 3), '[{"x"}, {}, {}]', '[{}, {}, {"x"}]', with_exchange=True)[1]
    ends = [Blocks.of_sharding(half.mesh, half.shape, side) for side in (half.source, half.target)]
    tiles = tiles_of(np.arange(10 * 64 * 3).reshape(half.shape), ends[0])
    wrong = {device: tile[:, ::-1] for device, tile in tiles.items()}
    right, other = (semantics.run(half.tile_program, each) for each in (tiles, wrong))
    assert any((right[device] != other[device]).any() for device in tiles)


# -- copies


@pytest.mark.slow
def test_copies_are_what_a_plan_takes_beside_its_collectives():
    """The time of a plan is the time of its collectives plus the time of the copies in its tile program.

    This holds for plans in one piece, with exchanges and in chunks.
    """
    for pair, name in itertools.product(random_pairs(5, 40, (4, 6, 8)), ("uniform", "cpu")):
        topology = Topology.parse(name)
        for found in pareto(pair.mesh, pair.shape, 32, pair.source, pair.target, with_exchange=True, topology=topology):
            talk_s = sum(
                collective_time_s(topology, pair.mesh.size, each) for each in collectives(found.tile_program, 32)
            )
            copied_s = copies_time_s(topology, copies(found.tile_program, 32))
            assert found.time_s == pytest.approx(talk_s + copied_s, rel=1e-4, abs=1e-10), str(pair)
