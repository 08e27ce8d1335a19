# SPDX-License-Identifier: Apache-2.0
"""Schedules of trees: what counts as held, which ways a limit allows, and the table."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from reshard.live.leaves import RedistributeError
from reshard.live.redistributing import plan_tree
from reshard.live.transfers import MOVES, Transfer
from reshard.live.tree_schedule import Schedule, arrays_used_again, bytes_held, scheduled_transfers
from reshard.live.ways import Placement, Question, by_peak, fastest
from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("x")), NamedSharding(MESH, PartitionSpec())
SHAPE = (64, 64)
FOUR = Mesh.parse("x=4")


@dataclasses.dataclass(frozen=True)
class Device:
    id: int


@dataclasses.dataclass(frozen=True)
class Side:
    """A sharding over four devices that this process does not have."""

    text: str

    @property
    def device_set(self) -> set[Device]:
        return set(map(Device, range(FOUR.size)))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size // n for size, n in zip(shape, Sharding.parse(self.text).shards(FOUR)))

    @property
    def placement(self) -> Placement:
        held = Blocks.of_sharding(FOUR, SHAPE, Sharding.parse(self.text))
        boxes = tuple(tuple(zip(low, high)) for low, high in zip(held.starts.tolist(), held.stops.tolist()))
        return Placement((0, 1, 2, 3), boxes, FOUR.axes, Sharding.parse(self.text))


ROWS, COLUMNS = Side('[{"x"}, {}]'), Side('[{}, {"x"}]')
TILE = 64 * 64 * 4 // 4


def moving(path: str, source: Side = ROWS, target: Side = COLUMNS, **options) -> Transfer:
    question = Question(SHAPE, 32, source.placement, target.placement)
    dtype = np.dtype(np.float32)
    return Transfer(path, dtype, SHAPE, source, target, MOVES, question=question, ways=(fastest(question),), **options)


def schedule(*transfers: Transfer, limit: int | None = None, donate: bool = False, used_again=frozenset()) -> Schedule:
    held = dict.fromkeys(range(4), sum(each.source_bytes for each in transfers))
    return scheduled_transfers(transfers, held, set(used_again), None, limit, donate)


def test_an_array_that_occurs_twice_is_held_once():
    one, other = (jax.device_put(np.zeros(4, np.float32), SPLIT) for _ in range(2))
    tree = [one, other, one, np.zeros(4)]
    assert arrays_used_again(tree) == {0, 2}
    transfers = plan_tree(tree, None).transfers
    assert bytes_held(tree, transfers) == {jax.devices()[0].id: 2 * 16}


def test_equal_leaves_move_in_one_batch_the_fastest_way():
    found = schedule(moving("a"), moving("b"))
    assert found.batches == ((0, 1),)
    assert found.transfers[0].chosen == fastest(moving("a").question)
    assert found.bytes_received == found.bound_bytes == 2 * 3 * TILE // 4


def test_under_a_limit_a_leaf_takes_a_way_with_a_smaller_peak():
    ways = by_peak(moving("a").question)
    found = schedule(moving("a"), limit=ways[-1].peak_bytes)
    assert len(ways) > 1 and found.transfers[0].ways == ways[-1:]
    assert found.peak_bytes == ways[-1].peak_bytes < schedule(moving("a")).peak_bytes


def test_a_limit_that_no_order_keeps_is_refused_with_the_least_one():
    least = by_peak(moving("a").question)[-1].peak_bytes
    with pytest.raises(RedistributeError, match=f"needs at least {least:,} bytes per device, limit {least - 1:,}"):
        schedule(moving("a"), limit=least - 1)


def test_sources_that_exceed_the_limit_alone_are_refused():
    tree = [jax.device_put(np.zeros(4, np.float32), SPLIT)]
    with pytest.raises(RedistributeError, match="the sources alone are 16 bytes on a device, limit 15; raise .* to 16"):
        plan_tree(tree, None, memory_limit=15)


@pytest.mark.parametrize(
    ("donate", "used_again", "tiles"), [(False, (), 4), (True, (), 3), (True, (0,), 3), (True, (0, 1), 4)]
)
def test_donated_sources_make_room_unless_another_leaf_needs_them(donate, used_again, tiles):
    """`tiles` are the sources and targets on a device at the worst time, with one leaf after the other."""
    pair = moving("a"), moving("b")
    temporaries = by_peak(pair[0].question)[-1].peak_bytes - 2 * TILE
    most = tiles * TILE + temporaries
    assert schedule(*pair, donate=donate, used_again=used_again, limit=most).peak_bytes <= most
    with pytest.raises(RedistributeError, match="memory limit: needs at least"):
        schedule(*pair, donate=donate, used_again=used_again, limit=most - 1)


def test_a_leaf_that_shares_anothers_new_array_goes_its_way_and_is_not_moved_again():
    found = schedule(moving("a"), moving("b", same_as=0), limit=by_peak(moving("a").question)[-1].peak_bytes + TILE)
    assert found.batches == ((0,),)
    assert found.transfers[1].ways == found.transfers[0].ways
    assert found.bytes_received == found.transfers[0].chosen.bytes_received


def test_the_table_has_a_row_for_each_kind_of_leaf():
    tree = {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32), "c": jax.device_put(np.zeros(2), WHOLE)}
    lines = plan_tree(tree, WHOLE, memory_limit="1KiB").text().splitlines()
    assert sorted(line.split("  ")[0] for line in lines if line.startswith("[")) == ["['a'] and 1 more", "['c']"]
    assert lines[-2] == "leaves: 3 on x=1; batches: 2; sources kept"
    assert lines[-1].endswith("limit 1,024")


def test_the_schedule_as_data_names_leaves_by_path():
    found = plan_tree({"a": np.zeros(4, np.float32), "b": 1}, WHOLE, donate=True).to_dict()
    assert found["schema"] == "reshard.schedule/1" and found["donate"] and found["memory_limit"] is None
    assert [each["path"] for each in found["leaves"]] == ["['a']", "['b']"]
    assert sorted(path for batch in found["batches"] for path in batch) == ["['a']", "['b']"]
    assert found["totals"] == {"bytes_received": 0, "bound_bytes": 0, "peak_bytes": 20}


def test_another_tree_than_the_planned_one_is_refused():
    planned = plan_tree({"a": np.zeros(4, np.float32)}, WHOLE)
    with pytest.raises(RedistributeError, match="the schedule is for .*; plan the tree anew"):
        planned.run([np.zeros(4, np.float32)])
    with pytest.raises(RedistributeError, match=r"\['a'\] is .*, the schedule is for .*; plan the tree anew"):
        planned.run({"a": np.zeros(8, np.float32)})
