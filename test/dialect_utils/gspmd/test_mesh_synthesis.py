# SPDX-License-Identifier: Apache-2.0
"""On synthesized meshes each device holds the same blocks as before."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.dialect_utils.gspmd import gspmd_shardings as gspmd
from reshard.dialect_utils.gspmd.gspmd_shardings import InexpressibleError, Tiled, parse
from reshard.dialect_utils.gspmd.mesh_synthesis import synthesize
from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding


def on_mesh(*texts: str) -> list[str]:
    leaves = [parse(text) for text in texts]
    found = synthesize(leaves)
    meshes = [f"@{index} = {mesh}" for index, mesh in enumerate(found.meshes)]
    translations = [found.translation(leaf) for leaf in leaves]
    return [*meshes, *(f"@{each.mesh} {each.sharding}" for each in translations)]


def test_one_mesh_is_the_common_refinement():
    assert on_mesh(
        "{devices=[4,8]<=[8,4]T(1,0)}",
        "{devices=[1,2,16]<=[32] last_tile_dim_replicate}",
        "{devices=[4,4,2]<=[2,16]T(1,0) last_tile_dim_replicate}",
    ) == [
        '@0 = <["axis_0"=2, "axis_1"=4, "axis_2"=4]>',
        '@0 [{"axis_2"}, {"axis_0", "axis_1"}]',
        '@0 [{}, {"axis_0"}]',
        '@0 [{"axis_1"}, {"axis_2"}]',
    ]


def test_a_list_of_devices_that_is_row_major_needs_no_order():
    assert on_mesh("{devices=[2,4]0,1,2,3,4,5,6,7}")[0] == '@0 = <["axis_0"=2, "axis_1"=4]>'
    assert on_mesh("{devices=[4,2]0,1,4,5,2,3,6,7}")[0] == '@0 = <["axis_0"=2, "axis_1"=2, "axis_2"=2]>'


def test_cuts_that_are_no_refinement_of_each_other_are_sub_axes():
    assert on_mesh(
        "{devices=[2,1,3]<=[6] last_tile_dim_replicate}", "{devices=[3,1,2]<=[6] last_tile_dim_replicate}"
    ) == [
        '@0 = <["axis_0"=6]>',
        '@0 [{"axis_0":(1)2}, {}]',
        '@0 [{"axis_0":(1)3}, {}]',
    ]


def test_an_order_that_no_row_major_mesh_has_is_kept():
    assert (
        on_mesh("{devices=[2,3]<=[2,3]T(1,0)}")[0] == '@0 = <["axis_0"=2, "axis_1"=3], device_ids=[0, 3, 1, 4, 2, 5]>'
    )


def test_shardings_of_one_odd_order_share_a_mesh():
    assert on_mesh(
        "{devices=[4,1,2]0,7,4,5,2,3,1,6 last_tile_dim_replicate}",  # devices of one tile may come in any order
        "{devices=[4,2]0,7,4,5,2,3,6,1}",
        "{devices=[1,2,4]0,4,2,6,7,5,3,1 last_tile_dim_replicate}",
    ) == [
        '@0 = <["axis_0"=4, "axis_1"=2], device_ids=[0, 7, 4, 5, 2, 3, 6, 1]>',
        '@0 [{"axis_0"}, {}]',
        '@0 [{"axis_0"}, {"axis_1"}]',
        '@0 [{}, {"axis_1"}]',
    ]


def test_an_odd_order_that_only_partly_replicated_shardings_show():
    meshes = synthesize(
        [
            parse("{devices=[4,1,2]0,7,4,5,2,3,1,6 last_tile_dim_replicate}"),
            parse("{devices=[2,1,4]2,0,6,4,5,7,1,3 last_tile_dim_replicate}"),
        ]
    ).meshes
    assert [str(mesh) for mesh in meshes] == ['<["axis_0"=4, "axis_1"=2], device_ids=[0, 7, 4, 5, 2, 3, 6, 1]>']


def test_orders_with_nothing_in_common_get_a_mesh_each():
    assert on_mesh("{devices=[4,2]<=[8]}", "{devices=[8,1]7,6,5,4,3,2,1,0}")[:2] == [
        '@0 = <["axis_0"=4, "axis_1"=2]>',
        '@1 = <["axis_0"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>',
    ]


def test_a_named_mesh_serves_the_unnamed_shardings_too():
    assert on_mesh("{devices=[2,4]<=[8]}", "{mesh['x'=2,'y'=4], [{}, {'y', ?}]}", "{devices=[4,2]<=[8]}") == [
        '@0 = <["x"=2, "y"=4]>',
        '@0 [{"x"}, {"y"}]',
        '@0 [{}, {"y", ?}]',
        '@0 [{"x", "y":(1)2}, {"y":(2)2}]',
    ]


def test_groups_of_devices_become_manual_and_unreduced_axes():
    leaf = parse("{devices=[2,2,2]<=[8] last_tile_dims={manual, unreduced}}")
    found = synthesize([leaf])
    translation = found.translation(leaf)
    assert str(translation.sharding) == '[{"axis_0"}], unreduced={"axis_2"}' and translation.manual == (
        AxisRef("axis_1"),
    )


def test_different_numbers_of_devices_are_refused():
    with pytest.raises(InexpressibleError, match="for 8 and 4 devices"):
        synthesize([parse("{devices=[8]<=[8]}"), parse("{devices=[4]<=[4]}")])


# ---- witnesses: each device holds the same blocks as before


def tiles_by_device(leaf: Tiled, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the first index of the tile of each device, an array (devices, rank), from the assignment alone."""
    starts = np.empty((math.prod(leaf.tiles), len(shape)), np.int64)
    for tile, device in np.ndenumerate(leaf.assignment()):
        starts[device] = [i * size // count for i, size, count in zip(tile, shape, leaf.tiles)]
    return starts


def assert_same_blocks(leaves: list[Tiled]) -> None:
    found = synthesize(leaves)
    for leaf in leaves:
        translation = found.translation(leaf)
        shape = tuple(2 * count for count in leaf.tiles[: leaf.rank])
        held = Blocks.of_sharding(found.meshes[translation.mesh], shape, translation.sharding)
        assert np.array_equal(held.starts, tiles_by_device(leaf, shape)), (str(leaf), str(translation.sharding))


def random_mesh(rng: random.Random) -> Mesh:
    sizes = [rng.choice([2, 2, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))]
    ids = list(range(math.prod(sizes)))
    if rng.random() < 0.4:
        rng.shuffle(ids)
    return Mesh(tuple((f"m{i}", size) for i, size in enumerate(sizes)), tuple(ids))


def random_sharding(rng: random.Random, mesh: Mesh) -> Sharding:
    pieces = []
    for name, size in mesh.axes:
        half = next((d for d in (2, 3) if size % d == 0 and size > d), None)
        if half and rng.random() < 0.5:
            pieces += [AxisRef(name, 1, half), AxisRef(name, half, size // half)]
        else:
            pieces.append(AxisRef(name))
    rng.shuffle(pieces)
    dims = [[] for _ in range(rng.randint(1, 3))]
    for piece in pieces[: rng.randint(0, len(pieces))]:
        rng.choice(dims).append(piece)
    return Sharding(tuple(map(tuple, dims)))


def as_list(mesh: Mesh, sharding: Sharding, rng: random.Random) -> Tiled:
    """Returns a sharding as a list of devices (V1), made from the blocks that the devices hold."""
    shards = sharding.shards(mesh)
    held = Blocks.of_sharding(mesh, shards, sharding)
    groups: dict[tuple[int, ...], list[int]] = {}
    for device in rng.sample(range(mesh.size), mesh.size):
        groups.setdefault(tuple(held.starts[device].tolist()), []).append(device)
    same = mesh.size // math.prod(shards)
    devices = [device for tile in np.ndindex(*shards) for device in groups[tile]]
    return Tiled((*shards, *([same] if same > 1 else [])), tuple(devices), groups=(gspmd.REPLICATED,) * (same > 1))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_lists_of_devices_hold_what_their_shardings_hold(rng):
    mesh = random_mesh(rng)
    leaves = [as_list(mesh, random_sharding(rng, mesh), rng) for _ in range(rng.randint(1, 4))]
    assert_same_blocks(leaves)
    assert len(synthesize(leaves[:1]).meshes) == 1


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_iotas_hold_what_their_shardings_hold(rng):
    iota = tuple(rng.choice([2, 2, 3, 4]) for _ in range(rng.randint(1, 4)))
    leaves = []
    for _ in range(rng.randint(1, 4)):
        transpose = rng.sample(range(len(iota)), len(iota))
        tiles, left = [], math.prod(iota)
        for _ in range(rng.randint(1, 3)):
            tiles.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= tiles[-1]
        groups = (gspmd.REPLICATED,) if left > 1 else ()
        leaf = Tiled((*tiles, *([left] if left > 1 else [])), None, iota, tuple(transpose), groups)
        leaves.append(leaf)
        assert str(parse(str(leaf))) == str(leaf)
    assert_same_blocks(leaves)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_permutation_holds_what_it_holds(rng):
    count = rng.choice([4, 6, 8, 12])
    leaves = []
    for _ in range(rng.randint(1, 3)):
        first = rng.choice([d for d in range(1, count + 1) if count % d == 0])
        leaves.append(Tiled((first, count // first), tuple(rng.sample(range(count), count))))
    assert_same_blocks(leaves)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_xla_assigns_the_devices_that_we_do(rng):
    xla_client = pytest.importorskip("jaxlib.xla_client")
    mesh = random_mesh(rng)
    leaf = as_list(mesh, random_sharding(rng, mesh), rng)
    if math.prod(leaf.tiles[: leaf.rank]) == 1:  # XLA prints these as replicated
        return
    xla = xla_client.HloSharding.from_string(str(leaf))
    ours = np.sort(leaf.assignment(), axis=-1) if leaf.groups else leaf.assignment()
    assert list(xla.tile_assignment_dimensions()) == list(leaf.tiles)
    assert list(xla.tile_assignment_devices()) == ours.reshape(-1).tolist()


def test_synthesis_is_the_same_in_any_order_of_hashes():
    leaves = [parse(f"{{devices=[8]{','.join(map(str, np.roll(range(8), n)))}}}") for n in range(4)]
    found = synthesize(leaves)
    assert [found.translation(leaf).mesh for leaf in leaves] == [0, 1, 2, 3]
