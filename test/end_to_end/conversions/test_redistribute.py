# SPDX-License-Identifier: Apache-2.0
"""`reshard.redistribute` on live arrays of eight CPU devices."""

import logging
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import reshard
from reshard import RedistributeError
from reshard.dialect_utils.platform import compat
from reshard.live import programs as live_programs
from reshard.live import running, scheduling

P = PartitionSpec


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


@pytest.fixture(scope="module")
def backwards() -> Mesh:
    return Mesh(np.array(jax.devices())[::-1].reshape(2, 2, 2), ("a", "b", "c"))


@pytest.fixture(scope="module")
def some() -> Mesh:
    return Mesh(np.array(jax.devices())[3:7].reshape(2, 2), ("p", "q"))


def values(shape=(16, 8, 8), dtype="float32", first: int = 0) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(first, first + count) % (1 << 22)).reshape(shape).astype(dtype)


def assert_holds(array: jax.Array, value: np.ndarray, sharding) -> None:
    """Asserts that every shard, including replicas, has the right bytes."""
    assert array.sharding == sharding and array.committed
    assert (array.shape, array.dtype) == (value.shape, value.dtype)
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(value[shard.index]).tobytes()


TYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint4",
    "int2",
)  # fmt: skip


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", TYPES)
def test_every_type_arrives_bit_for_bit(name, mesh, some):
    assert_type_arrives(name, [(mesh, P("x", "y"))], [(mesh, P(None, ("y", "x"))), (some, P(None, "p"))])


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_every_type_arrives_from_and_at_every_kind_of_mesh(name, mesh, backwards, some):
    ends = [
        (mesh, P("x", "y")),
        (mesh, P(None, ("y", "x"))),
        (backwards, P(None, "a", ("c", "b"))),
        (some, P(None, "p")),
    ]
    assert_type_arrives(name, ends, ends)


def assert_type_arrives(name: str, sources, targets) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    value = (np.arange(1024) % (2 if name in ("bool", "int2", "float4_e2m1fn") else 7)).reshape(16, 8, 8).astype(dtype)
    with jax.enable_x64(True):
        tree = [jax.device_put(value, NamedSharding(*each)) for each in sources]
    for on, spec in targets:
        for result in reshard.redistribute(tree, NamedSharding(on, spec)):
            assert_holds(result, value, NamedSharding(on, spec))


def test_bits_of_nans_survive(mesh):
    for dtype, bits in (("bfloat16", "uint16"), ("float16", "uint16"), ("float8_e5m2", "uint8"), ("float32", "uint32")):
        wide = np.arange(1 << 10, dtype=np.uint64) * (np.iinfo(bits).max // 1023)
        value = wide.astype(bits).view(np.dtype(getattr(ml_dtypes, dtype, None) or dtype)).reshape(32, 32)
        array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
        target = NamedSharding(mesh, P(None, ("x", "y")))
        assert_holds(reshard.redistribute(array, target), value, target)


def test_a_tree_with_a_prefix_of_shardings(mesh):
    value = values((8, 8))
    tree = {"w": [jax.device_put(value + i, NamedSharding(mesh, P("x"))) for i in range(3)], "b": jnp.arange(8.0)}
    found = reshard.redistribute(tree, {"w": NamedSharding(mesh, P(None, "y")), "b": NamedSharding(mesh, P("y"))})
    for i, array in enumerate(found["w"]):
        assert_holds(array, value + i, NamedSharding(mesh, P(None, "y")))
    assert_holds(found["b"], np.arange(8, dtype=np.float32), NamedSharding(mesh, P("y")))


def test_a_spec_is_on_the_mesh_of_the_context_or_of_the_array(mesh, backwards):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    assert reshard.redistribute(array, P("y")).sharding == NamedSharding(mesh, P("y"))
    with jax.set_mesh(backwards):
        assert reshard.redistribute(array, P("b")).sharding == NamedSharding(backwards, P("b"))


def test_devices_and_single_device_shardings_are_targets_and_sources(mesh):
    value, device = values((8, 8)), jax.devices()[5]
    array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
    alone = reshard.redistribute(array, device)
    assert_holds(alone, value, SingleDeviceSharding(device))
    assert_holds(reshard.redistribute(alone, array.sharding), value, array.sharding)


def test_a_sharding_without_a_mesh_is_known_by_its_boxes(mesh):
    value = values((8, 8))
    target = NamedSharding(mesh, P("y", "x"))
    other = compat.array_sharding(target._to_xla_hlo_sharding(2).to_proto(), jax.devices())
    array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
    for there, back in ((other, array.sharding), (array.sharding, other)):
        array = reshard.redistribute(array, there)
        assert np.asarray(array).tobytes() == value.tobytes() and array.sharding.is_equivalent_to(there, 2)
        assert reshard.plan_tree(array, back).transfers[0].kind == "moves"


def test_arrays_in_place_are_returned_as_they_are(mesh):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    assert reshard.redistribute(array, NamedSharding(mesh, P("x"))) is array
    assert reshard.redistribute({"a": array}, None)["a"] is array


def test_another_name_for_the_same_place_copies_nothing(mesh):
    names = Mesh(mesh.devices, ("rows", "columns"))
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    renamed = reshard.redistribute(array, NamedSharding(names, P("rows")))
    assert_holds(renamed, values((8, 8)), NamedSharding(names, P("rows")))
    pointers = [[s.data.unsafe_buffer_pointer() for s in each.addressable_shards] for each in (array, renamed)]
    assert pointers[0] == pointers[1]


def test_what_no_program_moves_is_put_by_jax_and_the_schedule_says_why(mesh):
    target = NamedSharding(mesh, P())
    tree = {
        "number": 3,
        "numpy": values((8, 8)),
        "key": jax.random.key(0),
        "weak": jnp.asarray(1.0),
        "empty": jax.device_put(np.zeros((0, 4), np.float32), NamedSharding(mesh, P(None, "x"))),
        "memory": jax.device_put(values((8, 8)), NamedSharding(mesh, P("x"), memory_kind="pinned_host")),
    }
    schedule = reshard.plan_tree(tree, target)
    reasons = {each.path: each.reason for each in schedule.transfers}
    assert {each.kind for each in schedule.transfers} == {"device_put"}
    assert reasons["['numpy']"] == reasons["['number']"] == "held by the host"
    assert reasons["['weak']"] == "a weak type" and reasons["['empty']"] == "no elements"
    assert reasons["['memory']"] == "in another memory of the device"
    found = reshard.redistribute(tree, target)
    assert all(array.sharding.is_equivalent_to(target, array.ndim) for array in found.values())
    assert found["weak"].weak_type and found["number"] == 3
    assert np.array_equal(found["memory"], values((8, 8))) and found["empty"].shape == (0, 4)
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(tree["key"])).all()


def test_scalars_share_buffers_or_are_put(mesh, some):
    scalar = jax.device_put(np.float32(2.5), NamedSharding(mesh, P()))
    kinds = [
        reshard.plan_tree(scalar, NamedSharding(on, P())).transfers[0].kind
        for on in (Mesh(mesh.devices, ("m", "n")), some)
    ]
    assert kinds == ["shares buffers", "device_put"]
    assert_holds(
        reshard.redistribute(scalar, NamedSharding(some, P())), np.array(2.5, np.float32), NamedSharding(some, P())
    )


def test_under_a_mesh_of_explicit_axes(mesh):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    explicit = jax.make_mesh((2, 4), ("u", "v"))
    with jax.set_mesh(explicit):
        found = reshard.redistribute(array, NamedSharding(explicit, P("v", "u")))
        assert (found + 1).sharding.spec == P("v", "u")
    assert_holds(found, values((8, 8)), NamedSharding(explicit, P("v", "u")))


# Plans


def test_a_schedule_is_planned_from_shapes_alone_and_run_often(mesh):
    before, after = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y", "x"))
    shapes = {"a": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=before)}
    schedule = reshard.plan_tree(shapes, after)
    for i in range(2):
        value = values((8, 8), first=i)
        assert_holds(schedule.run({"a": jax.device_put(value, before)})["a"], value, after)
    with pytest.raises(RedistributeError, match="plan the tree anew"):
        schedule.run({"a": jax.device_put(values((8, 8)), after)})
    with pytest.raises(RedistributeError, match="plan the tree anew"):
        schedule.run({"b": jax.device_put(values((8, 8)), before)})


def test_the_schedule_as_a_table_and_as_data(mesh):
    array = jax.device_put(values((64, 64)), NamedSharding(mesh, P("x")))
    schedule = reshard.plan_tree({"a": array, "b": jax.device_put(values((64, 64)), array.sharding)}, P(None, "x"))
    lines = str(schedule).splitlines()
    assert re.split(r"  +", lines[2])[:5] == [
        "['a'] and 1 more", "f32[64,64]", '[{"x"}, {}]', '[{}, {"x"}]', "all_to_all x: dim 0 -> 1"
    ]  # fmt: skip
    found = schedule.to_dict()
    assert found["schema"] == "reshard.schedule/1" and found["batches"] == [["['a']", "['b']"]]
    assert found["leaves"][0]["bytes_received"] == found["leaves"][0]["bound_bytes"] == 64 * 64 * 4 * 3 // 16
    assert found["totals"]["peak_bytes"] == schedule.peak_bytes


def test_a_topology_and_an_objective_are_the_planners(mesh):
    array = jax.device_put(values((64, 64)), NamedSharding(mesh, P("x", "y")))
    seconds = {
        name: reshard.plan_tree(array, P("y", "x"), topology=name).transfers[0].way.time_s
        for name in ("h100", "ethernet")
    }
    assert seconds["ethernet"] > seconds["h100"]
    fewest = reshard.plan_tree(array, P("y", "x"), objective="bytes")
    assert fewest.bytes_received == fewest.bound_bytes
    with pytest.raises(RedistributeError, match='unknown objective "size"; choose from bytes, time'):
        reshard.plan_tree(array, P("y", "x"), objective="size")


def test_a_second_redistribution_compiles_nothing(mesh):
    before, after = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P(None, ("y", "x")))
    compiled = []
    listener = compiled.append
    trees = [[jax.device_put(values((16, 24), first=i + k), before) for i in range(5)] for k in range(3)]
    reshard.redistribute(trees[0], after)
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: "compile" in event and listener(event))
    try:
        for tree in trees[1:]:
            reshard.redistribute(tree, after)
    finally:
        jax.monitoring.clear_event_listeners()
    assert compiled == []


@pytest.mark.slow
def test_programs_are_kept_up_to_a_number(mesh, monkeypatch):
    monkeypatch.setattr(live_programs, "MOST_PROGRAMS", 2)
    for columns in (8, 16, 24):
        array = jax.device_put(values((8, columns)), NamedSharding(mesh, P("x")))
        reshard.redistribute(array, NamedSharding(mesh, P(None, "x")))
    assert len(live_programs._PROGRAMS) == 2


# Memory


def test_a_limit_is_kept_in_parts_and_refused_with_the_least_one(mesh):
    array = jax.device_put(values((512, 512)), NamedSharding(mesh, P("x", "y")))
    target = NamedSharding(mesh, P("y", "x"))
    with pytest.raises(RedistributeError) as refused:
        reshard.redistribute(array, target, memory_limit=0)
    least = int(str(refused.value).split()[-1])
    free = reshard.plan_tree(array, target)
    schedule = reshard.plan_tree(array, target, memory_limit=least)
    assert schedule.peak_bytes <= least < free.peak_bytes + 1
    assert_holds(schedule.run(array), values((512, 512)), target)
    with pytest.raises(
        RedistributeError, match=f"needs at least {least:,} bytes per device, limit {least - 1:,}; raise"
    ):
        reshard.plan_tree(array, target, memory_limit=least - 1)
    assert not array.is_deleted()


def test_sources_that_alone_exceed_the_limit_are_told(mesh):
    array = jax.device_put(values((64, 64)), NamedSharding(mesh, P("x")))
    with pytest.raises(
        RedistributeError, match="the sources alone are 4,096 bytes on a device, limit 100; raise the limit to 4096"
    ):
        reshard.plan_tree(array, None, memory_limit="100B")


def test_donation_lowers_the_peak_and_frees_the_sources(mesh):
    tree = [jax.device_put(values((1024, 512), first=i), NamedSharding(mesh, P("x", "y"))) for i in range(6)]
    target = NamedSharding(mesh, P("y", "x"))
    kept, donated = (reshard.plan_tree(tree, target, donate=donate) for donate in (False, True))
    tile = 1024 * 512 * 4 // 8
    limit = 8 * tile
    assert kept.peak_bytes >= 12 * tile
    assert reshard.plan_tree(tree, target, donate=True, memory_limit=limit).peak_bytes <= limit < kept.peak_bytes
    found = reshard.redistribute(tree, target, donate=True, memory_limit=limit)
    assert all(array.is_deleted() for array in tree)
    for i, array in enumerate(found):
        assert_holds(array, values((1024, 512), first=i), target)


def test_a_donated_array_in_two_places_of_the_tree_is_moved_once(mesh):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    target, other = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("y"))
    tree, after = {"a": array, "b": array, "c": array}, {"a": target, "b": target, "c": other}
    found = reshard.redistribute(tree, after, donate=True)
    assert found["a"] is found["b"] and array.is_deleted()
    for name, sharding in after.items():
        assert_holds(found[name], values((8, 8)), sharding)


def test_a_donated_array_that_a_result_shares_lives_on(mesh):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    names = NamedSharding(Mesh(mesh.devices, ("m", "n")), P("m"))
    after = {"moved": NamedSharding(mesh, P(None, "x")), "stays": array.sharding, "renamed": names}
    found = reshard.redistribute(dict.fromkeys(after, array), after, donate=True)
    for name, sharding in after.items():
        assert_holds(found[name], values((8, 8)), sharding)


def test_donated_arrays_that_share_buffers_with_each_other_all_arrive(mesh):
    array = jax.device_put(values((8, 8)), NamedSharding(mesh, P("x")))
    renamed = reshard.redistribute(array, NamedSharding(Mesh(mesh.devices, ("m", "n")), P("m")))
    target = NamedSharding(mesh, P(None, "x"))
    for result in reshard.redistribute([array, renamed], target, donate=True):
        assert_holds(result, values((8, 8)), target)
    assert array.is_deleted() and renamed.is_deleted()


# Interruption


@pytest.fixture
def interrupted(monkeypatch):
    """Makes the third launch raise KeyboardInterrupt; each launch moves one leaf."""
    monkeypatch.setattr(scheduling, "MOST_BATCH_JOBS", 1)
    launches = []

    def launch(moves):
        launches.append(moves)
        if len(launches) == 3:
            raise KeyboardInterrupt
        return live_programs.moved(moves)

    monkeypatch.setattr(running, "moved", launch)


def some_leaves(mesh) -> dict:
    return {f"w{i}": jax.device_put(values((8, 8), first=i), NamedSharding(mesh, P("x"))) for i in range(4)}


def test_an_interruption_leaves_the_sources_intact(mesh, interrupted):
    tree = some_leaves(mesh)
    with pytest.raises(KeyboardInterrupt) as stopped:
        reshard.redistribute(tree, NamedSharding(mesh, P(None, "x")))
    assert "all sources are intact" in stopped.value.__notes__[0] and stopped.value.moved == {}
    for i, array in enumerate(tree.values()):
        assert_holds(array, values((8, 8), first=i), NamedSharding(mesh, P("x")))


def test_an_interruption_says_what_donation_consumed_and_hands_it_over(mesh, interrupted):
    tree, target = some_leaves(mesh), NamedSharding(mesh, P(None, "x"))
    with pytest.raises(KeyboardInterrupt) as stopped:
        reshard.redistribute(tree, target, donate=True)
    assert "2 donated leaves, whose sources are consumed: ['w0'], ['w1'];" in stopped.value.__notes__[0]
    assert [array.is_deleted() for array in tree.values()] == [True, True, False, False]
    for i, array in enumerate(stopped.value.moved.values()):
        assert_holds(array, values((8, 8), first=i), target)


def test_an_interruption_at_the_very_end_hands_over_all_that_was_consumed(mesh, monkeypatch):
    """A source that several leaves need is deleted after the last transfer."""
    array = some_leaves(mesh)["w0"]
    free = running.Run._free_used_again

    def interrupt(run):
        free(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(running.Run, "_free_used_again", interrupt)
    targets = {
        "a": NamedSharding(mesh, P(None, "x")),
        "b": NamedSharding(mesh, P()),
        "c": NamedSharding(mesh, P(None, "x")),
    }
    with pytest.raises(KeyboardInterrupt) as stopped:
        reshard.redistribute({"a": array, "b": array, "c": array}, targets, donate=True)
    assert array.is_deleted() and sorted(stopped.value.moved) == ["['a']", "['b']", "['c']"]
    for name, target in targets.items():
        assert_holds(stopped.value.moved[f"['{name}']"], values((8, 8)), target)


# Arguments that are refused


def one(mesh, shape=(8, 8)) -> jax.Array:
    return jax.device_put(np.zeros(shape, np.float32), NamedSharding(mesh, P("x")))


def test_a_dimension_that_does_not_divide_is_told(mesh):
    with pytest.raises(
        RedistributeError, match=r"\['a'\]: dimension 1 of size 9 does not divide into the 4 shards of P"
    ):
        reshard.redistribute({"a": one(mesh, (8, 9))}, P(None, "x"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (P("x", None, "y"), r"the array of shape \[8, 8\] cannot be sharded as .*, which has 3 entries"),
        ({"b": None}, "shardings are no prefix of the tree"),
        (
            P(P.UNCONSTRAINED, "x"),
            r"the array: P.* has an entry .*, which names no axes; write a dimension's axes, or None",
        ),
        (3, "3 is no sharding; pass a NamedSharding, a PartitionSpec or a device"),
    ],
)
def test_shardings_that_do_not_serve_are_told(mesh, target, message):
    with pytest.raises(RedistributeError, match=message):
        reshard.redistribute(one(mesh), target)


def test_a_spec_without_a_mesh_and_a_shape_without_a_sharding_are_told(mesh):
    with pytest.raises(RedistributeError, match="is on no mesh; pass a NamedSharding, or call it under jax.set_mesh"):
        reshard.redistribute(np.zeros((8, 8)), P("x"))
    with pytest.raises(RedistributeError, match="is a shape without a sharding"):
        reshard.plan_tree(jax.ShapeDtypeStruct((8, 8), jnp.float32), NamedSharding(mesh, P()))
    abstract = NamedSharding(mesh.abstract_mesh, P("x"))
    with pytest.raises(RedistributeError, match="has no devices; pass a NamedSharding on a jax.sharding.Mesh"):
        reshard.redistribute(one(mesh), abstract)


def test_shapes_without_elements_are_told(mesh):
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    with pytest.raises(
        RedistributeError, match=r"\['a'\] is a shape without elements; pass an array, or ask plan_tree what"
    ):
        reshard.redistribute({"a": shape}, P("y"))
    with pytest.raises(RedistributeError, match="is a shape without elements"):
        reshard.plan_tree(shape, P("y")).run(shape)
    open_shape = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("x", P.UNCONSTRAINED)))
    with pytest.raises(RedistributeError, match="names no axes"):
        reshard.plan_tree(open_shape, P("y"))


def test_deleted_and_traced_arrays_are_told(mesh):
    gone = one(mesh)
    gone.delete()
    with pytest.raises(RedistributeError, match=r"\['a'\] has been deleted or donated"):
        reshard.redistribute({"a": gone}, NamedSharding(mesh, P()))
    with pytest.raises(
        RedistributeError, match="is traced; redistribute takes live arrays, inside jit use reshard.jit"
    ):
        jax.jit(lambda x: reshard.redistribute(x, NamedSharding(mesh, P())))(one(mesh))


@pytest.mark.parametrize("traced", [jax.jit, jax.grad])
def test_a_live_array_does_not_move_while_something_else_is_traced(mesh, traced):
    array, moved = one(mesh), NamedSharding(mesh, P(None, "x"))
    with pytest.raises(RedistributeError, match="jax is tracing here; .* call it outside of the trace"):
        traced(lambda scale: (scale * reshard.redistribute(array, moved)).sum())(2.0)
    assert reshard.redistribute(array, moved).sharding == moved


def test_a_log_line_says_what_was_moved(mesh, caplog):
    with caplog.at_level(logging.INFO, logger="reshard.redistribute"):
        reshard.redistribute(one(mesh), P(None, "x"))
    assert "leaves moved: 1, batches: 1" in caplog.text
