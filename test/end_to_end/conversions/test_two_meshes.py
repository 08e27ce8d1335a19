# SPDX-License-Identifier: Apache-2.0
"""Random modules that move values between two meshes over the same devices give the same values as unsharded."""

import random

import pytest

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import module_verification

AXES = ({"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})
SHAPES = ((16, 8), (8, 24), (16, 8, 8), (64,), (10, 14), (6, 16), (3, 5, 8))


def a_mesh(rng: random.Random, names: str) -> tuple[str, list[str]]:
    """Returns a mesh over 8 devices, sometimes with a random device order, and the names of its axes."""
    axes = {names["xyz".index(name)]: size for name, size in rng.choice(AXES).items()}
    order = f", device_ids={rng.sample(range(8), 8)}" if rng.random() < 0.5 else ""
    sizes = ", ".join(f'"{name}"={size}' for name, size in axes.items())
    return f"<[{sizes}]{order}>", list(axes)


def a_sharding(rng: random.Random, axes: list[str], rank: int) -> str:
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in rng.sample(axes, len(axes)):
        place = rng.randrange(rank + 1)
        if place < rank:
            dims[place].append(axis)
    names = (", ".join(f'"{axis}"' for axis in dim) for dim in dims)
    return f"[{', '.join(f'{{{each}}}' for each in names)}]"


def a_module(seed: int) -> str:
    """Returns a module whose values move to another mesh, and sometimes back, by one to three constraints."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    meshes = {"one": a_mesh(rng, "xyz"), "two": a_mesh(rng, "abc")}
    kind = f"tensor<{'x'.join(map(str, shape))}x{rng.choice(('f32', 'i32', 'bf16'))}>"
    lines, value = [], "%held"
    for number, mesh in enumerate(rng.choice((("two",), ("two", "one"), ("two", "two", "one")))):
        sharding = a_sharding(rng, meshes[mesh][1], len(shape))
        lines += [f"%c{number} = sdy.sharding_constraint {value} <@{mesh}, {sharding}> : {kind}"]
        value = f"%c{number}"
        if rng.random() < 0.5:
            lines += [f"%n{number} = stablehlo.negate {value} : {kind}"]
            value = f"%n{number}"
    before = a_sharding(rng, meshes["one"][1], len(shape))
    declared = "\n".join(f"sdy.mesh @{name} = {text}" for name, (text, _) in meshes.items())
    body = "\n    ".join(lines)
    return f"""module @m attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
{declared}
  func.func public @main(%arg0: {kind}) -> {kind} {{
    %start = sdy.sharding_constraint %arg0 <@one, {before}> : {kind}
    %held = stablehlo.optimization_barrier %start : {kind}
    {body}
    %end = stablehlo.optimization_barrier {value} : {kind}
    return %end : {kind}
  }}
}}
"""


def check(seed: int) -> int:
    """Returns the number of sites that are rewritten."""
    with make_context() as context, ir.Location.unknown(context):
        original = ir.Module.parse(a_module(seed))
        watched_modules.number_ops(original)
        module = ir.Module.parse(original.operation.get_asm(enable_debug_info=True))
        session = Session()
        Pipeline.default().with_options({"policy": "always"}).run(module, session)
        found = module_verification.verify(original, module, devices_of(original), shared_child())
    if found.stock.is_right:
        assert found.ours.is_right, (seed, found.ours, a_module(seed))
    return sum(row["verdict"] == "rewrite" for row in session.results.report_rows)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 20, 60])
def test_random_conversions_between_two_meshes(first):
    assert sum(map(check, range(first, first + (20 if first == 0 else 40)))) > 10


def test_the_first_random_conversions_between_two_meshes():
    assert sum(map(check, range(5))) > 1
