# SPDX-License-Identifier: Apache-2.0
"""Blocked chains end at the target, use only Shardy's moves, keep R2, and include the chains known to be cheap."""

import math
import random

import pytest

from reshard.synthesis.layouts.layout import whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.programs.blocked_chains import blocked_chain

MESHES = [Mesh.parse(text) for text in ("x=2,y=2,z=2", "x=4,y=2", "x=8,y=4", "x=2,y=3,z=4")]
SHAPE = (96, 96)


def chain(mesh: str, shape, source: str, target: str):
    return blocked_chain(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target))


def random_pairs(count: int):
    rng = random.Random(7)
    for _ in range(count):
        mesh = rng.choice(MESHES)
        yield mesh, *(random_sharding(rng, mesh) for _ in range(2))


def random_sharding(rng: random.Random, mesh: Mesh) -> Sharding:
    axes = [AxisRef(name) if rng.random() < 0.7 or size % 4 else AxisRef(name, 1, 2) for name, size in mesh.axes]
    rng.shuffle(axes)
    dims = [[], []]
    for axis in axes:
        if rng.random() < 0.8:
            rng.choice(dims).append(axis)
    return Sharding(tuple(map(tuple, dims)))


def tile(mesh: Mesh, sharding: Sharding) -> int:
    return math.prod(SHAPE) // math.prod(sharding.shards(mesh))


@pytest.mark.slow
def test_chains_end_at_the_target_and_no_tile_is_larger_than_both_ends():
    for mesh, source, target in random_pairs(60):
        found = blocked_chain(mesh, SHAPE, source, target)
        assert found is not None, (mesh, source, target)
        layouts = [source, *(step.after for step in found.steps)]
        assert whole_factors(mesh, layouts[-1]) == whole_factors(mesh, target)
        assert max(tile(mesh, each) for each in layouts) <= max(tile(mesh, source), tile(mesh, target))


@pytest.mark.slow
def test_axes_enter_and_leave_at_the_minor_end():
    for mesh, source, target in random_pairs(60):
        before = source
        for step in blocked_chain(mesh, SHAPE, source, target).steps:
            if step.kind != "collective_permute":
                for d in range(2):
                    was, now = (_primes(mesh, side.dims[d]) for side in (before, step.after))
                    assert was[: len(now)] == now or now[: len(was)] == was
            else:
                assert before.shards(mesh) == step.after.shards(mesh)
            before = step.after


def _primes(mesh: Mesh, axes):
    return [prime for factor in whole_factors(mesh, Sharding((axes,)))[0] for prime in factor.primes()]


@pytest.mark.parametrize(
    ("mesh", "source", "target", "kinds"),
    [
        ("x=4,y=2", '[{"x"}, {}]', '[{"x"}, {}]', []),
        ("x=4,y=2", "[{}, {}]", '[{"x"}, {"y"}]', ["all_slice"]),
        ("x=4,y=2", '[{"x"}, {"y"}]', "[{}, {}]", ["all_gather"]),
        ("x=4,y=2", '[{"x"}, {}]', '[{}, {"x"}]', ["all_to_all"]),
        ("x=2,y=2", '[{"x"}, {}]', '[{"y"}, {}]', ["collective_permute"]),
        ("x=2,y=2,z=2", '[{}, {"x"}]', '[{"x", "y", "z"}, {}]', ["all_slice", "all_to_all"]),
        ("x=4,y=2", '[{"y"}, {}]', '[{"x"}, {"y"}]', ["all_slice", "collective_permute"]),
    ],
)
def test_kinds(mesh, source, target, kinds):
    assert [step.kind for step in chain(mesh, SHAPE, source, target).steps] == kinds


def test_neighbouring_pieces_of_an_axis_are_one():
    (step,) = chain("x=8,y=2", SHAPE, '[{"x"}, {}]', '[{}, {"x"}]').steps
    assert [str(axis) for axis, *_ in step.moved] == ['"x"'] and str(step.after) == '[{}, {"x"}]'


def test_none_where_dimensions_do_not_divide():
    assert chain("x=4,y=2", (6, 8), '[{"x"}, {}]', '[{}, {"x"}]') is None


def test_none_for_partial_sums():
    assert chain("x=4,y=2", SHAPE, '[{}, {}], unreduced={"x"}', "[{}, {}]") is None


def test_none_where_pieces_do_not_nest():
    assert chain("x=12", SHAPE, '[{"x":(1)2}, {}]', '[{"x":(1)3}, {}]') is None


@pytest.mark.slow
def test_same_chain_again():
    pairs = list(random_pairs(10))
    first = [blocked_chain(mesh, SHAPE, *ends) for mesh, *ends in pairs]
    blocked_chain.cache_clear()
    assert [blocked_chain(mesh, SHAPE, *ends) for mesh, *ends in pairs] == first
