# SPDX-License-Identifier: Apache-2.0
"""Plans between placements of every kind, run by XLA on CPU devices: uneven tiles, two meshes, single devices."""

import random

import pytest

import reshard
from reshard.dialect_utils.emission.mini_modules import is_on_stacks
from reshard.dialect_utils.xla.child import XlaChild
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.planner.entry import Plan
from reshard.tools.commands.plan_verify import verify

TYPES = {"f32": "f32", "i1": "i1", "bf16": "bf16", "i4": "i4", "c64": "complex<f32>", "f8e5m2": "f8E5M2"}


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=8) as child:
        yield child


def assert_verified(found: Plan, child) -> None:
    tensor = f"tensor<{''.join(f'{size}x' for size in found.shape)}{TYPES[found.dtype]}>"
    verdict = verify(found, tensor, child)
    assert verdict.is_verified, (
        f"{found.mesh} {found.source} -> {found.goal_mesh} {found.target}, {found.chain_text}: {verdict.text}"
    )


MESHES = {4: ("x=4", "x=2,y=2"), 6: ("x=2,y=3", "x=6"), 8: ("x=4,y=2", "x=2,y=2,z=2")}


def random_problem(rng: random.Random) -> Plan:
    devices = rng.choice(sorted(MESHES))
    meshes = [Mesh.parse(rng.choice(MESHES[devices])) for _ in range(2)]
    meshes = [
        Mesh(mesh.axes, tuple(rng.sample(range(devices), devices)) if rng.random() < 0.3 else None) for mesh in meshes
    ]
    kind = rng.random()
    if kind < 0.4:
        meshes[1] = meshes[0]
    elif kind > 0.8:
        meshes[rng.randrange(2)] = Mesh((), (rng.randrange(devices),))
    shape = tuple(rng.randint(1, 11) for _ in range(rng.randint(1, 3)))
    sides = [random_sharding(rng, mesh, len(shape)) for mesh in meshes]
    options = {"dtype": rng.choice(sorted(TYPES)), "objective": rng.choice(("time", "bytes"))}
    return reshard.plan(*sides, mesh=meshes[0], target_mesh=meshes[1], shape=shape, **options)


def random_sharding(rng: random.Random, mesh: Mesh, rank: int) -> str:
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in rng.sample(mesh.axis_names, len(mesh.axes)):
        if rng.random() < 0.8:
            rng.choice(dims).append(f'"{name}"')
    return "[" + ", ".join("{" + ", ".join(axes) + "}" for axes in dims) + "]"


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(20))
def test_random_placements(seed, child):
    assert_verified(random_problem(random.Random(seed)), child)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_hundreds_of_random_placements(seed, child):
    rng = random.Random(1000 + seed)
    for _ in range(25):
        assert_verified(random_problem(rng), child)


def test_padded_chains_are_run(child):
    found = reshard.plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=8", shape=(1001, 27))
    assert [step.op for step in found.steps].count("all_to_all") == 1
    assert_verified(found, child)


@pytest.mark.parametrize(
    ("target_mesh", "target"), [("x=4", '[{}, {"x"}]'), ("x=8", '[{}, {"x"}]'), ("<[], device_ids=[2]>", "[]")]
)
def test_arrays_without_elements_are_run(target_mesh, target, child):
    assert_verified(reshard.plan("[{}, {}]", target, mesh="x=4", target_mesh=target_mesh, shape=(0, 3)), child)


def test_replicas_of_one_device_are_scattered_and_gathered(child):
    found = reshard.plan("[]", "[{}, {}]", mesh="<[], device_ids=[3]>", target_mesh="x=4,y=2", shape=(999, 99))
    assert is_on_stacks(found) and "all_gather" in found.chain_text
    assert_verified(found, child)


def test_whole_tiles_go_to_another_order_of_devices(child):
    shuffled = '<["a"=4, "b"=2], device_ids=[7,2,4,6,1,3,5,0]>'
    found = reshard.plan('[{"x"}, {"y"}]', '[{"b"}, {"a"}]', mesh="x=4,y=2", target_mesh=shuffled, shape=(400, 600))
    assert_verified(found, child)
