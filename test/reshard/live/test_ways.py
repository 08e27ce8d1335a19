# SPDX-License-Identifier: Apache-2.0
"""Ways between placements, over the same devices and over different devices."""

from reshard.live.ways import Placement, Question, by_peak, fastest
from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding


def placement(mesh: str, sharding: str, shape: tuple[int, ...], ids: tuple[int, ...] | None = None) -> Placement:
    on, side = Mesh.parse(mesh), Sharding.parse(sharding)
    held = Blocks.of_sharding(on, shape, side)
    boxes = tuple(tuple(zip(low, high)) for low, high in zip(held.starts.tolist(), held.stops.tolist()))
    return Placement(ids or tuple(range(on.size)), boxes, on.axes, side)


def question(source: Placement, target: Placement, shape: tuple[int, ...], **options) -> Question:
    return Question(shape, 32, source, target, **options)


def test_over_the_same_devices_the_way_is_the_plan():
    shape = (8, 8)
    found = fastest(question(placement("x=4", '[{"x"}, {}]', shape), placement("x=4", '[{}, {"x"}]', shape), shape))
    assert (found.text, found.bytes_received, found.bound_bytes) == ("all_to_all x: dim 0 -> 1", 48, 48)


def test_ids_of_devices_need_not_begin_at_zero():
    shape = (8, 8)
    ends = [placement("x=4", side, shape, (3, 9, 5, 7)) for side in ('[{"x"}, {}]', '[{}, {"x"}]')]
    (stage,) = fastest(question(*ends, shape)).stages
    assert stage.device_ids == (3, 5, 7, 9)


def test_between_other_devices_each_receives_its_tile():
    shape = (8, 8)
    ends = placement("x=4", '[{"x"}, {}]', shape), placement("y=4", '[{}, {"y"}]', shape, (4, 5, 6, 7))
    found = fastest(question(*ends, shape))
    assert found.bytes_received == found.bound_bytes == 8 * 2 * 4
    assert found.stages[0].device_ids == tuple(range(8))


def test_between_overlapping_devices_what_is_there_stays():
    shape = (8, 8)
    ends = placement("x=4", '[{"x"}, {}]', shape), placement("y=2", '[{"y"}, {}]', shape, (0, 5))
    found = fastest(question(*ends, shape, objective="bytes"))
    assert found.bound_bytes == 8 * 4 * 4  # device 5 holds no elements; device 0 lacks half of its tile


def test_copies_on_other_devices_are_gathered_there():
    shape = (1 << 12, 1 << 12)
    ends = placement("x=2", '[{"x"}, {}]', shape), placement("y=4", "[{}, {}]", shape, (4, 5, 6, 7))
    found = fastest(question(*ends, shape))
    assert found.text.endswith("all_gather y: dim 0")
    assert [stage.device_ids for stage in found.stages] == [(0, 1, 4, 5, 6, 7), (4, 5, 6, 7)]
    assert found.bytes_received == found.bound_bytes
    whole = 4 << 24
    assert found.bytes_sent == whole * 3 // 4  # in the gather; with an exchange alone each source would send 2 * whole


def test_ways_by_peak_are_faster_or_smaller():
    shape = (64, 64)
    asked = question(placement("x=4", '[{"x"}, {}]', shape), placement("x=4", '[{}, {"x"}]', shape), shape)
    ways = by_peak(asked)
    assert len(ways) > 1
    assert all(a.time_s <= b.time_s and a.peak_bytes > b.peak_bytes for a, b in zip(ways, ways[1:]))


def test_parts_are_cut_along_the_dimension_that_moves_least():
    shape = (512, 2048)
    ends = placement("x=2,y=4", '[{"x"}, {"y"}]', shape), placement("y=4", "[{}, {}]", shape, (0, 1, 2, 3))
    found = fastest(question(*ends, shape))
    assert found.text.endswith("all_gather y: dim 1") and found.bytes_received == found.bound_bytes
