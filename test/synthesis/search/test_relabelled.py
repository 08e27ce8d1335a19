# SPDX-License-Identifier: Apache-2.0
"""Chains on block meshes, and chains that match replicas by place, are right, and faster where they should be."""

import itertools
import random

import numpy as np
import pytest

from reshard.synthesis.layouts.layout import Factor, layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import forget, plan
from reshard.synthesis.planner.generators import GENERATORS, on_other_meshes
from reshard.synthesis.planner.planner import _Planner
from reshard.synthesis.planner.routes import Routes
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs.steps import RuleError, apply
from reshard.synthesis.programs.tile_program import On, block_ids
from reshard.synthesis.programs.two_meshes import reorder_pairs
from reshard.synthesis.search.leading_axes import leading_axes_chain
from reshard.synthesis.search.relabelled import block_mesh, chains_by_counts, matched_along, replicated_from

SHUFFLED = '<["x"=2, "y"=8], device_ids=[11, 12, 3, 0, 1, 8, 15, 4, 6, 13, 2, 5, 7, 14, 10, 9]>'


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")


def planned(mesh: str, shape, source: str, target: str, topology: str, with_exchange: bool = True):
    ends = Sharding.parse(source), Sharding.parse(target)
    options = {"objective": "time", "topology": Topology.parse(topology), "with_exchange": with_exchange}
    return plan(Mesh.parse(mesh), shape, 32, *ends, **options)


def random_sides(rng: random.Random) -> tuple[Mesh, tuple[int, ...], Sharding, Sharding]:
    sizes = rng.choice([(2, 3), (4, 3), (2, 2, 3), (6, 2), (2, 2, 2), (4, 4)])
    ids = rng.sample(range(int(np.prod(sizes))), int(np.prod(sizes))) if rng.random() < 0.5 else None
    mesh = Mesh(tuple(zip("xyz", sizes)), ids and tuple(ids))

    def side() -> Sharding:
        dims = [[], []]
        for name, _ in mesh.axes:
            if (place := rng.choice((0, 1, None))) is not None:
                dims[place].insert(rng.randint(0, len(dims[place])), name)
        return Sharding.parse("[" + ", ".join("{" + ", ".join(f'"{name}"' for name in dim) + "}" for dim in dims) + "]")

    return mesh, (48, 144), side(), side()


@pytest.mark.draws
@pytest.mark.parametrize("seed", range(60))
def test_every_route_on_made_meshes_brings_every_element_home(seed):
    mesh, shape, source, target = random_sides(random.Random(seed))
    request = Request(mesh, shape, 32, source, target, "time", Topology.parse("v5e"), True, "sum")
    planner = _Planner(request)
    routes: Routes = planner.context.routes
    found = [*routes.on_block_meshes()]
    for each in planner.candidates():
        if any(isinstance(op, On) for op in each.tile_program.operations):
            found.append(each)
    for each in found:
        semantics.check(each.tile_program, shape, source, target)


def test_a_block_mesh_numbers_blocks_and_puts_replicas_in_the_order_of_their_places():
    mesh = Mesh.parse(SHUFFLED)
    layout = layout_of(mesh, (8, 16), Sharding.parse('[{}, {"x"}]'))
    found = block_mesh(mesh, layout, np.arange(16))
    assert found.axes == (("block1", 2), ("replica", 8))
    halves = np.array(found.device_ids).reshape(2, 8)
    block_of = dict(zip(mesh.device_ids, block_ids(mesh, layout).tolist()))
    assert [{block_of[device] for device in half} for half in halves.tolist()] == [{0}, {1}]
    assert (np.diff(halves) > 0).all()
    backwards = block_mesh(mesh, layout, np.arange(16)[::-1])
    assert (np.diff(np.array(backwards.device_ids).reshape(2, 8)) < 0).all()


@pytest.mark.parametrize(
    ("before", "after"),
    list(itertools.permutations(['[{}, {"x"}]', '[{"x", "y"}, {}]', '[{"y"}, {"x"}]', "[{}, {}]"], 2)),
)
def test_chains_by_counts_have_the_counts_of_the_other_side_and_can_be_inverted(before, after):
    mesh = Mesh.parse("x=4,y=6")
    here, there = (layout_of(mesh, (48, 48), Sharding.parse(side)) for side in (before, after))
    replicas = 24 * here.tile_elements // (48 * 48)
    several = list(chains_by_counts(here, there, replicas))
    assert several
    for chain in several:
        assert chain.source.tile_shape == here.tile_shape
        try:
            end = chain.target
        except RuleError:
            continue
        assert end.tile_shape == there.tile_shape
        back = chain.inverted()
        assert back.source == end and back.target == chain.source


def test_devices_are_matched_within_groups_of_replicas_alone():
    mesh = Mesh.parse(SHUFFLED)
    matched = matched_along(mesh, [Factor("y", 1, 8)], np.arange(16))
    for side in ('[{"x"}]', "[{}]"):
        layout = layout_of(mesh, (16,), Sharding.parse(side))
        held = [dict(zip(each.device_ids, block_ids(each, layout).tolist())) for each in (mesh, matched)]
        assert held[0] == held[1]
    assert matched != mesh and matched_along(matched, [Factor("y", 1, 8)], np.arange(16)) == matched


def test_factors_are_replicated_from_where_no_step_takes_them_again():
    mesh = Mesh.parse("x=2,y=4")
    problem = refine(mesh, (8, 8), Sharding.parse('[{"y"}, {}]'), Sharding.parse('[{"x"}, {}]'), into_primes=True)
    layouts = list(itertools.accumulate(leading_axes_chain(problem), apply, initial=problem.source))
    free = replicated_from(mesh, layouts)
    assert free[-1] and all(set(a) <= set(b) for a, b in itertools.pairwise(free))
    assert {factor.axis for factor in free[-1]} == {"y"}


# ---- cases in which such chains are faster


FASTER = {
    "axes in another radix": ("x=4,y=9", (512, 288, 32), '[{}, {"x", "y"}, {}]', '[{}, {"y"}, {"x"}]', "v5p", 1.2),
    "replicas next to each other": (SHUFFLED, (8, 2, 32), '[{"x"}, {}, {"y"}]', '[{}, {"x"}, {}]', "h100", 1.15),
    "a permute to gather near": (
        "x=2,y=2,z=16,w=2,u=2",
        (16, 128, 4, 8),
        '[{"w"}, {"z", "y"}, {}, {"x"}]',
        '[{"x"}, {"w"}, {}, {"u"}]',
        "v5p",
        1.15,
    ),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("what", FASTER)
def test_made_meshes_make_plans_faster(what, monkeypatch):
    *case, factor = FASTER[what]
    forget()
    found = planned(*case)
    forget()
    with monkeypatch.context() as patched:
        others = tuple(each for each in GENERATORS["time"] if each is not on_other_meshes)
        patched.setitem(GENERATORS, "time", others)
        assert planned(*case).time_s > factor * found.time_s
    forget()
    semantics.check(found.tile_program, found.shape, found.source, found.target)


def test_steps_on_made_meshes_name_their_blocks_in_any_names_of_the_axes():
    case = (512, 288, 32), '[{}, {"%s", "%s"}, {}]', '[{}, {"%s"}, {"%s"}]', "v5p"
    for a, b in (("x", "y"), ("model", "data")):
        found = planned(f"{a}=4,{b}=9", case[0], case[1] % (a, b), case[2] % (b, a), case[3])
        assert found.chain_text == "all_to_all block1:(9)4: dim 1 -> 2; permute of whole tiles to their devices"
        (on,) = (each.mesh for each in found.tile_program.operations if isinstance(each, On))
        assert on == Mesh.parse("block1=36")


def test_replicas_split_the_leading_parts_where_that_leaves_neighbours_to_talk():
    """With slices first, the all_to_all joins two adjacent devices of one host, as it does in stock XLA's program."""
    found = planned("x=8,y=3", (64, 32, 48), '[{}, {}, {"x":(4)2, "y"}]', '[{"x"}, {}, {"y"}]', "ethernet")
    assert [step.op for step in found.steps if step.bytes_received] == ["all_to_all", "permute"]
    assert round(found.time_s * 1e6, 2) == 35.0
    semantics.check(found.tile_program, found.shape, found.source, found.target)


def test_blocks_are_gathered_along_one_dimension_after_the_other_where_that_saves_copies():
    mesh = '<["x"=6, "y"=2], device_ids=[8, 3, 7, 2, 1, 0, 10, 9, 6, 11, 5, 4]>'
    found = planned(mesh, (64, 384, 192), '[{"y"}, {"x"}, {}]', '[{}, {"y"}, {}]', "v6e")
    assert found.chain_text.count("all_gather replica") == 2
    semantics.check(found.tile_program, found.shape, found.source, found.target)


def test_who_has_its_tile_may_send_it_on():
    mesh, layout = Mesh.parse("x=2,y=2"), layout_of(Mesh.parse("x=2,y=2"), (4,), Sharding.parse('[{"x"}]'))
    there = layout_of(mesh, (4,), Sharding.parse('[{"y"}]'))
    assert reorder_pairs(mesh, mesh, layout, there) == ((0, 0), (1, 2), (2, 1), (3, 3))
    assert reorder_pairs(mesh, mesh, layout, there, keeps=False) == ((0, 0), (1, 2), (2, 1), (3, 3))
    other = Mesh.parse('<["x"=2, "y"=2], device_ids=[1, 0, 2, 3]>')
    assert dict(reorder_pairs(mesh, other, layout, there, keeps=False)) == {0: 1, 1: 2, 2: 0, 3: 3}
