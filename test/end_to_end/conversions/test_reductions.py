# SPDX-License-Identifier: Apache-2.0
"""Plans with partial sums, compiled and run by XLA on CPU devices, give exact integer sums on every device.

One island holds the whole tile program; tiles enter and leave it as stacks, see `tile_modules`.
"""

import numpy as np
import pytest

import reshard
from benchmarks.conversions.pairs import Pair, random_reductions
from reshard.dialect_utils.emission.tile_modules import leading_sizes, tile_module
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.synthesis.forms.platforms import CPU, GLOO
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan, pareto, plan
from reshard.synthesis.programs.interpreter import UFUNCS


def check(
    pair: Pair,
    element: str = "i32",
    bits: int = 32,
    reduction: str = "sum",
    found: Plan | None = None,
    platform: str = CPU,
) -> Plan:
    """Runs the pair's plan, or `found`, on partial sums of random integers, and asserts that the target is right."""
    found = found or plan(pair.mesh, pair.shape, bits, pair.source, pair.target, reduction=reduction)
    dtype, reduce = numpy_dtype(element), UFUNCS[reduction].reduce
    sizes = leading_sizes(pair.mesh, pair.source)
    sums = (
        np.random.default_rng(0).integers(0, 2 if element == "i1" else 8, (*sizes[:-1], 1, *pair.shape)).astype(dtype)
    )
    given = np.ascontiguousarray(np.broadcast_to(sums, (*sizes, *pair.shape)))
    array = reduce(sums.reshape(-1, *pair.shape), axis=0)
    tensor = f"tensor<{'x'.join(map(str, (*pair.shape, element)))}>"
    ran = shared_child().run(tile_module(tensor, found, platform), [given], pair.mesh.size)
    assert ran.status == "ok", ran.message
    tiles = ran.outputs[0].astype(dtype).reshape(-1, leading_sizes(pair.mesh, pair.target)[-1], *pair.shape)
    assert (tiles == tiles[:, :1]).all(), "replicas differ"
    assert (reduce(tiles[:, 0], axis=0) == array).all()
    return found


def has_thin_tiles(pair: Pair) -> bool:
    """Returns whether a source or target tile has a dimension of size 1.

    XLA copies such tiles when they are reshaped to stacks of tiles around an island.
    """
    return any(1 in side.tile_shape(pair.mesh, pair.shape) for side in (pair.source, pair.target))


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "pair",
    [each for each in random_reductions(33, 16, (4, 6, 8), least_elements=1 << 12) if not has_thin_tiles(each)],
    ids=str,
)
def test_the_modelled_peak_is_above_that_of_xla(pair):
    for found in pareto(pair.mesh, pair.shape, 32, pair.source, pair.target)[:2]:
        compiled = shared_child().compile(
            tile_module(f"tensor<{'x'.join(map(str, (*pair.shape, 'i32')))}>", found), pair.mesh.size
        )
        assert compiled.status == "ok", compiled.message
        assert compiled.peak_bytes <= found.peak_bytes + 512, found.chain_text


def pair_of(mesh: str, shape, source: str, target: str) -> Pair:
    return Pair(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target))


MESH = '<["x"=2, "y"=2], device_ids=[2, 0, 3, 1]>'
STEPS = {
    "reduce_scatter": ('[{}, {"y"}], unreduced={"x"}', '[{"x"}, {"y"}]'),
    "all_reduce": ('[{"y"}, {}], unreduced={"x"}', '[{"y"}, {}]'),
    "to_unreduced": ('[{"x"}, {}]', '[{}, {}], unreduced={"x", "y"}'),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("element", "bits", "reduction"),
    [
        ("i32", 32, "sum"),
        ("f32", 32, "sum"),
        ("bf16", 16, "sum"),
        ("i32", 32, "prod"),
        ("i32", 32, "min"),
        ("f32", 32, "max"),
        ("ui8", 8, "max"),
        ("i16", 16, "min"),
        ("i1", 8, "or"),
        ("i1", 8, "and"),
    ],
)
@pytest.mark.parametrize("platform", (CPU, GLOO))
def test_each_step_and_reduction(step, element, bits, reduction, platform):
    found = check(pair_of(MESH, (4, 8), *STEPS[step]), element, bits, reduction, platform=platform)
    assert step in [planned.op for planned in found.steps]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("pair", random_reductions(31, 12, (4, 6, 8)), ids=str)
@pytest.mark.parametrize("platform", (CPU, GLOO))
def test_random_pair(pair, platform):
    check(pair, platform=platform)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('[{}, {"y"}], unreduced={"x"}', '[{"y"}, {}]'),  # all_to_all, all_reduce
        ('[{"y"}, {}], unreduced={"x"}', '[{}, {"x"}], unreduced={"y"}'),  # reduce_scatter, to_unreduced
    ],
)
def test_steps_in_chunks(source, target):
    pair = pair_of(MESH, (16, 32), source, target)
    whole, *chunked = pareto(pair.mesh, pair.shape, 32, pair.source, pair.target)
    assert chunked
    for found in chunked[:2]:
        assert found.steps[0].op == "chunks"
        check(pair, found=found)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("pair", random_reductions(32, 150, (4, 6, 8, 12, 16)), ids=str)
def test_random_pair_of_many(pair):
    check(pair)


def test_unreduced_axes_of_jax_partition_specs_count():
    jax_sharding = pytest.importorskip("jax.sharding")
    source = jax_sharding.PartitionSpec("x", unreduced={"y"})
    found = reshard.plan(source, jax_sharding.PartitionSpec("x", "y"), mesh={"x": 2, "y": 2}, shape=(8, 8))
    assert found.chain_text == "reduce_scatter y: dim 1"
