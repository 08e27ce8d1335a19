# SPDX-License-Identifier: Apache-2.0
"""Runs of schedules on the one device of this process; those that move tiles are tested with eight, end to end."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from reshard.live.leaves import Ends, RedistributeError
from reshard.live.redistributing import plan_tree
from reshard.live.running import Run, check_leaf, refuse_shapes
from reshard.live.transfers import transfer_of

DEVICE = jax.devices()[0]
MESH = jax.sharding.Mesh(np.array([DEVICE]), ("x",))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("x")), NamedSharding(MESH, PartitionSpec())
NUMBERS = np.arange(4, dtype=np.float32)


def on_device() -> jax.Array:
    return jax.device_put(NUMBERS, SPLIT)


def run_of(tree, target, **options) -> Run:
    return Run(plan_tree(tree, target, **options), jax.tree_util.tree_leaves(tree))


def test_each_kind_of_leaf_arrives():
    tree = {"host": NUMBERS, "shares": on_device(), "stays": on_device(), "same": None}
    tree["same"] = tree["shares"]
    found = run_of(tree, {"host": WHOLE, "shares": WHOLE, "stays": SPLIT, "same": WHOLE}).results(False)
    assert all(np.array_equal(each, NUMBERS) for each in found.values())
    assert {name: each.sharding for name, each in found.items()} == {
        "host": WHOLE,
        "shares": WHOLE,
        "stays": SPLIT,
        "same": WHOLE,
    }
    assert found["stays"] is tree["stays"]
    pointers = {each.unsafe_buffer_pointer() for each in (found["shares"], found["same"], tree["shares"])}
    assert len(pointers) == 1


@pytest.mark.parametrize("target", [SPLIT, WHOLE])
def test_a_donated_source_whose_buffers_a_result_has_lives_on(target):
    array = on_device()
    run = run_of([array], [target], donate=True)
    (found,) = run.results(False)
    assert np.array_equal(found, NUMBERS) and not array.is_deleted() and run.consumed == []


def test_small_elements_go_by_way_of_the_host():
    """XLA on CPU damages its memory where it computes with them."""
    array = jax.device_put(np.array([1, 0, 1, 1]).astype("int2"), SingleDeviceSharding(DEVICE))
    (found,) = run_of([array], [WHOLE]).results(False)
    assert found.dtype == array.dtype and np.asarray(found).astype(int).tolist() == [1, 0, 1, 1]


def test_an_exception_has_what_arrived_and_says_that_the_sources_are_intact(monkeypatch):
    run, put = run_of({"a": NUMBERS, "b": NUMBERS}, WHOLE), []

    def stop_at_the_second(number):
        put.append(number)
        if len(put) == 2:
            raise KeyboardInterrupt
        return Run._put(run, number)

    monkeypatch.setattr(run, "_put", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt) as stopped:
        run.results(False)
    assert stopped.value.__notes__ == ["reshard.redistribute stopped; all sources are intact"]
    assert stopped.value.moved == {} and list(run.moved) == put[:1]


def test_an_exception_names_the_donated_leaves_that_are_gone():
    array = on_device()
    run = run_of({"a": array, "b": NUMBERS}, WHOLE, donate=True)
    run.consumed, run.moved = [0], {0: "its new array"}
    error = RuntimeError()
    run._explain(error)
    assert "stopped after 1 donated leaves, whose sources are consumed: ['a'];" in error.__notes__[0]
    assert error.moved == {"['a']": "its new array"}


def test_a_shape_has_no_elements_to_move():
    refuse_shapes(["['a']"], [NUMBERS])
    with pytest.raises(RedistributeError, match=r"\['b'\] is a shape without elements"):
        refuse_shapes(["['a']", "['b']"], [NUMBERS, jax.ShapeDtypeStruct((4,), np.float32)])


@pytest.mark.parametrize("other", [NUMBERS, NUMBERS[:2], NUMBERS.astype(np.int32)], ids=["source", "shape", "type"])
def test_a_leaf_is_the_one_that_was_planned_for(other):
    planned = transfer_of(Ends("['a']", on_device(), WHOLE), None, "time", None)
    check_leaf(on_device(), planned)
    with pytest.raises(RedistributeError, match=r"\['a'\] is .*, the schedule is for .*; plan the tree anew"):
        check_leaf(other, planned)


def test_a_leaf_that_is_gone_is_refused():
    array = on_device()
    planned = transfer_of(Ends("['a']", array, WHOLE), None, "time", None)
    array.delete()
    with pytest.raises(RedistributeError, match=r"\['a'\] has been deleted or donated; pass a live array"):
        check_leaf(array, planned)
