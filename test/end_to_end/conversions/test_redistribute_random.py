# SPDX-License-Identifier: Apache-2.0
"""Random trees move between random shardings of random meshes on eight devices and stay equal bit for bit."""

import itertools
import math

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard

AXES = "abc"
DTYPES = (np.float32, np.int8, ml_dtypes.bfloat16, np.bool_, np.complex64)
FACTORS = {8: ((8,), (4, 2), (2, 4), (2, 2, 2)), 6: ((6,), (2, 3), (3, 2)), 4: ((4,), (2, 2)), 1: ((1,),)}


@st.composite
def meshes(draw) -> Mesh:
    number = draw(st.sampled_from((8, 8, 8, 6, 4, 1)))
    sizes = draw(st.sampled_from(FACTORS[number]))
    devices = draw(st.permutations(jax.devices())) if draw(st.booleans()) else jax.devices()
    return Mesh(np.array(devices[:number]).reshape(sizes), tuple(AXES[: len(sizes)]))


@st.composite
def shardings(draw, shape: tuple[int, ...]) -> NamedSharding:
    """Draws a sharding that divides the shape: each axis splits one dimension or is unused."""
    mesh = draw(meshes())
    spec: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for axis in draw(st.permutations(mesh.axis_names)):
        dims = [dim for dim, size in enumerate(left) if size % mesh.shape[axis] == 0]
        dim = draw(st.sampled_from([None, *dims]))
        if dim is not None:
            spec[dim].append(axis)
            left[dim] //= mesh.shape[axis]
    return NamedSharding(mesh, PartitionSpec(*map(tuple, spec)))


@st.composite
def leaves(draw) -> tuple[np.ndarray, NamedSharding, NamedSharding]:
    shape = tuple(draw(st.lists(st.sampled_from((1, 6, 8, 12, 24)), min_size=0, max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    value = (np.arange(math.prod(shape)) % (2 if dtype == np.bool_ else 97)).reshape(shape).astype(dtype)
    return value, draw(shardings(shape)), draw(shardings(shape))


def check(tree: list, donate: bool, tight: bool) -> None:
    values, sources, targets = zip(*tree)
    arrays = list(map(jax.device_put, values, sources))
    limit = least_limit(arrays, list(targets), donate) if tight else None
    schedule = reshard.plan_tree(arrays, list(targets), donate=donate, memory_limit=limit)
    for each in schedule.transfers:
        assert each.way is None or each.way.bytes_received >= each.way.bound_bytes
    found = reshard.redistribute(arrays, list(targets), donate=donate, memory_limit=limit)
    for array, value, target in zip(found, values, targets, strict=True):
        assert array.sharding == target
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(value[shard.index]).tobytes()
    if not donate:
        assert all(
            np.asarray(array).tobytes() == value.tobytes() for array, value in itertools.zip_longest(arrays, values)
        )


def least_limit(arrays: list, targets: list, donate: bool) -> int:
    """Returns the least memory limit, which the refusal of the limit 0 names."""
    try:
        return reshard.plan_tree(arrays, targets, donate=donate, memory_limit=0).peak_bytes
    except reshard.RedistributeError as refused:
        return int(str(refused).split()[-1])


options = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
trees = st.lists(leaves(), min_size=1, max_size=3)


@pytest.mark.slow
@given(trees, st.booleans(), st.booleans())
@settings(max_examples=8, **options)
def test_random_trees_arrive(tree, donate, tight):
    check(tree, donate, tight)


@pytest.mark.slow
@given(trees, st.booleans(), st.booleans())
@settings(max_examples=150, **options)
def test_many_random_trees_arrive(tree, donate, tight):
    check(tree, donate, tight)
