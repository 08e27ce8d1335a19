# SPDX-License-Identifier: Apache-2.0
"""A law: a plan for the redistribution that a collective is gives every device what StableHLO says of the collective.

The collectives are computed here on the groups of devices alone; neither the planner nor its interpreter takes part.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reshard.synthesis.hierarchy.device_groups import factors_of
from reshard.synthesis.hierarchy.redistributions import KINDS, REDUCING, InGroups, redistribution_of
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import interpreter

MESHES = ("x=8", "x=2,y=4", "x=4,y=2", "x=2,y=2,z=2", "x=2,y=3", "x=6", "x=3,y=4", "x=12", "x=2,y=2,z=3", "x=4,y=1,z=2")
UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def some(draw, values):
    """Returns some of the values in any order, at least one."""
    return tuple(draw(st.permutations(values))[: draw(st.integers(1, len(values)))])


@st.composite
def meshes(draw) -> Mesh:
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    if not draw(st.booleans()):
        return mesh
    return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size)))))


@st.composite
def factors(draw, mesh: Mesh) -> tuple[Factor, ...]:
    """Returns whole axes, or parts of them that do not touch, in any order."""
    found = []
    for name in some(draw, [name for name, size in mesh.axes if size > 1]):
        size = mesh.axis_size(name)
        pre = draw(st.sampled_from([each for each in range(1, size) if size % each == 0]))
        part = draw(st.sampled_from([each for each in range(2, size // pre + 1) if size // pre % each == 0]))
        found.append(draw(st.sampled_from([Factor(name, 1, size), Factor(name, pre, part)])))
    return tuple(found)


@st.composite
def collectives(draw) -> tuple[Mesh, InGroups, frozenset[str]]:
    """Returns a collective on a mesh, and axes along which the tiles differ, mostly those of the collective, too."""
    mesh = draw(meshes())
    along = draw(factors(mesh))
    count = math.prod(factor.size for factor in along)
    kind = draw(st.sampled_from(KINDS))
    rank = draw(st.integers(0 if kind == "all_reduce" else 1, 3))
    tile = [draw(st.sampled_from((1, 2, 3, 4, 6))) for _ in range(rank)]
    dim, joined = (draw(st.integers(0, max(0, rank - 1))) for _ in range(2))
    if kind in ("reduce_scatter", "all_to_all"):
        tile[dim] *= count
    if rank and draw(st.integers(0, 19)) == 0:
        tile[draw(st.integers(0, rank - 1))] = 0
    others = draw(st.frozensets(st.sampled_from(mesh.axis_names)))
    joined = joined if kind == "all_to_all" else 0
    own = {factor.axis for factor in along} if draw(st.integers(0, 4)) else frozenset()
    return mesh, InGroups(kind, tuple(tile), along, dim, joined), others | own


@st.composite
def networks(draw, mesh: Mesh) -> Topology:
    """Returns a network of up to three levels, slower to the outside, on which bytes or latencies take long."""
    levels, left, speed = [], mesh.size, 1e6
    latency = draw(st.sampled_from((0.0, 1e-6, 1e-3)))
    while left > 1:
        size = draw(st.sampled_from([each for each in range(2, left + 1) if left % each == 0]))
        kind = draw(st.sampled_from(("switch", "bus", "ring")))
        levels.append(Level(f"l{left}", size, kind, speed, latency))
        left, speed, latency = left // size, speed * draw(st.sampled_from((1, 10))), latency / 10
    rings = draw(st.sampled_from(((), ("all_gather", "reduce_scatter", "all_reduce"))))
    return Topology("drawn", tuple(levels), 1e12, 0.0, rings=rings)


def tiles_before(mesh: Mesh, collective: InGroups, varying: frozenset[str]) -> interpreter.Tiles:
    """Returns for each device a tile of random whole numbers, the same along the axes that do not vary."""
    rng = np.random.default_rng(0)
    known: dict[tuple, np.ndarray] = {}
    tiles = {}
    sizes = [size for _, size in mesh.axes]
    for at, place in enumerate(np.ndindex(*sizes)):
        place = tuple(digit for digit, name in zip(place, mesh.axis_names) if name in varying)
        if place not in known:
            known[place] = rng.integers(1, 100, collective.tile)
        tiles[mesh.device_at(at)] = known[place]
    return tiles


def tiles_after(listed, collective: InGroups, tiles: interpreter.Tiles, ufunc: np.ufunc) -> interpreter.Tiles:
    """Returns what StableHLO says the collective gives each device."""
    found = {}
    for group in listed:
        held = [tiles[device] for device in group]
        for number, device in enumerate(group):
            match collective.kind:
                case "all_reduce":
                    found[device] = ufunc.reduce(held)
                case "reduce_scatter":
                    found[device] = np.split(ufunc.reduce(held), len(group), collective.dim)[number]
                case "all_gather":
                    found[device] = np.concatenate(held, collective.dim)
                case "all_to_all":
                    parts = [np.split(tile, len(group), collective.dim)[number] for tile in held]
                    found[device] = np.concatenate(parts, collective.joined)
    return found


@settings(deadline=None)
@given(st.data())
def test_a_plan_for_the_redistribution_does_what_the_collective_does(data):
    mesh, collective, varying = data.draw(collectives())
    listed = groups(mesh, collective.factors).tolist()
    reduction = data.draw(st.sampled_from(sorted(UFUNCS))) if collective.kind in REDUCING else "sum"
    asked = redistribution_of(mesh, collective, varying)
    topology = data.draw(networks(mesh))
    found = plan(
        mesh, asked.shape, 32, asked.source, asked.target, objective="time", topology=topology, reduction=reduction
    )
    before = tiles_before(mesh, collective, varying)
    program = found.tile_program
    assert math.prod(program.in_shape) == math.prod(collective.tile)
    given_tiles = {device: tile.reshape(program.in_shape) for device, tile in before.items()}
    after = interpreter.run(program, given_tiles)
    wanted = tiles_after(listed, collective, before, UFUNCS[reduction])
    for device, tile in wanted.items():
        assert tile.shape == collective.result
        np.testing.assert_array_equal(after[device].reshape(tile.shape), tile)
    largest = 4 * max(math.prod(collective.tile), math.prod(collective.result))
    assert found.largest_tile_bytes <= largest


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_factors_of_inverts_groups(data):
    mesh = data.draw(meshes())
    along = data.draw(factors(mesh))
    listed = tuple(map(tuple, groups(mesh, along).tolist()))
    shuffled = tuple(data.draw(st.permutations(listed)))
    assert factors_of(mesh, shuffled) == along


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_factors_of_finds_pieces_of_one_axis_in_any_order(data):
    mesh = data.draw(st.sampled_from([Mesh.parse("x=8"), Mesh.parse("x=12"), Mesh.parse("x=8,y=2")]))
    size = mesh.axis_size("x")
    cut = data.draw(st.sampled_from([each for each in range(2, size) if size % each == 0]))
    pieces = [Factor("x", 1, cut), Factor("x", cut, size // cut)]
    along = tuple(
        data.draw(st.permutations([*pieces, *(Factor("y", 1, 2) for name in mesh.axis_names if name == "y")]))
    )
    listed = tuple(map(tuple, groups(mesh, along).tolist()))
    found = factors_of(mesh, listed)
    assert found is not None and tuple(map(tuple, groups(mesh, found).tolist())) == listed


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_groups_of_other_members_have_other_factors_or_none(data):
    """What `factors_of` finds always gives the listed groups, whatever they are."""
    mesh = data.draw(meshes())
    order = data.draw(st.permutations(range(mesh.size)))
    size = data.draw(st.sampled_from([each for each in range(1, mesh.size + 1) if mesh.size % each == 0]))
    listed = tuple(map(tuple, np.reshape(order, (-1, size)).tolist()))
    found = factors_of(mesh, listed)
    if found:
        assert {tuple(row) for row in groups(mesh, found).tolist()} == set(listed)


@pytest.mark.parametrize(
    "mesh, listed",
    [
        ("x=4", ()),
        ("x=4", ((0, 1), (2,))),
        ("x=4", ((0, 1, 2), (3, 0, 1))),
        ("x=4", ((0, 1),)),  # devices 2 and 3 are in no group
        ("x=4", ((0, 3), (1, 2))),
        ("x=4", ((1, 0), (3, 2))),  # members in falling order
        ("x=4", ((0, 0), (1, 1))),
        ("x=4", ((0, 1), (4, 5))),  # not of the mesh
        ("x=6", ((0, 2), (1, 3), (4, 5))),
        ("x=6", ((0, 1, 2, 3), (4, 5))),
        ("x=2,y=4", ((0, 5), (1, 4), (2, 7), (3, 6))),
        ("x=8", ((0, 1, 2, 4), (3, 5, 6, 7))),
    ],
)
def test_irregular_groups_have_no_factors(mesh, listed):
    assert factors_of(Mesh.parse(mesh), listed) is None


def test_groups_of_one_device_are_along_no_factors():
    assert factors_of(Mesh.parse("x=3"), ((0,), (1,), (2,))) == ()


def test_parts_of_one_axis_that_differ_may_not_be_striped():
    """A sum over half an axis leaves the other half of the axis to different arrays."""
    mesh = Mesh.parse("x=4,y=2")
    asked = redistribution_of(mesh, InGroups("all_reduce", (6,), (Factor("x", 1, 2),)), {"x"})
    assert asked.shape == (2, 6)
    assert str(asked.source) == '[{"x":(2)2}, {}], unreduced={"x":(1)2}'


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_same_tiles_are_striped_only_along_axes_that_do_not_vary(data):
    mesh, collective, varying = data.draw(collectives())
    assume(len(mesh.axes) > 1)
    asked = redistribution_of(mesh, collective, varying)
    owned = {axis.name for dim in (*asked.source.dims, asked.source.unreduced) for axis in dim}
    assert {name for name in varying if mesh.axis_size(name) > 1} <= owned


# ---- all_to_alls that pay for each message


def islands(message_s: float) -> Topology:
    levels = Level("node", 4, "switch", 1e10, 1e-5, message_s=message_s), Level("gpu", 16, "switch", 1e11, 3e-6)
    return Topology("islands", levels, 1e12, 1e-5)


def dispatch(mesh_text: str, tile_bytes: int, message_s: float, varying: str = ""):
    """Returns the plan of an all_to_all over the axes of four islands of 16 devices."""
    mesh = Mesh.parse(mesh_text)
    along = tuple(Factor(name, 1, size) for name, size in mesh.axes if name != varying)
    asked = redistribution_of(mesh, InGroups("all_to_all", (tile_bytes // 4,), along), {*mesh.axis_names})
    options = {"objective": "time", "topology": islands(message_s)}
    return plan(mesh, asked.shape, 32, asked.source, asked.target, **options)


@pytest.mark.parametrize("mesh_text", ["node=4,gpu=16", "expert=64"])
def test_small_tiles_go_in_two_hops_and_large_ones_at_once(mesh_text):
    small, large = (dispatch(mesh_text, size, 2e-6) for size in (1 << 12, 1 << 22))
    assert [step.op for step in small.steps if step.op != "relayout"] == ["all_to_all"] * 2
    assert [step.op for step in large.steps if step.op != "relayout"] == ["all_to_all"]
    interpreter.check(small.tile_program, small.shape, small.source, small.target)


def test_two_hops_pay_for_their_second_launch_alone_where_messages_cost_nothing():
    assert dispatch("node=4,gpu=16", 1 << 12, 0.0).collectives == 1


def test_an_all_to_all_across_the_nodes_alone_has_one_hop():
    assert dispatch("node=4,gpu=16", 1 << 12, 2e-6, varying="gpu").collectives == 1
