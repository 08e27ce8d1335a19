# SPDX-License-Identifier: Apache-2.0
"""The interpreter refuses wrong programs, so that other tests may rely on it."""

from dataclasses import replace

import numpy as np
import pytest

from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs.tile_program import (
    Gather,
    KeepFirst,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
)

MESH = Mesh.parse("x=2,y=2,z=2")


def plan_of(source: str, target: str, shape=(8, 8, 8), mesh=MESH):
    return plan(mesh, shape, 32, Sharding.parse(source), Sharding.parse(target))


def with_operation(program: TileProgram, kind, change) -> TileProgram:
    """Returns the program with its first operation of a kind replaced."""
    steps, is_changed = [], False
    for step, operations in program.steps:
        changed = []
        for operation in operations:
            if isinstance(operation, kind) and not is_changed:
                operation, is_changed = change(operation), True
            changed.append(operation)
        steps.append((step, tuple(changed)))
    assert is_changed, f"no {kind.__name__} in {program.operations}"
    return replace(program, steps=tuple(steps))


def reversed_factors(operation):
    return replace(operation, factors=operation.factors[::-1])


SWAPS = plan_of('[{"x"}, {"y"}, {}]', '[{}, {}, {"y", "x"}]')
GATHERS = plan_of('[{"x", "y"}, {}, {}]', "[{}, {}, {}]")
PERMUTES = plan_of('[{"x", "y"}, {}, {}]', '[{"y", "x"}, {}, {}]')
SLICES = plan_of("[{}, {}, {}]", '[{"x", "y"}, {}, {}]')


@pytest.mark.parametrize("found", [SWAPS, GATHERS, PERMUTES, SLICES])
def test_right_programs_pass(found):
    semantics.check(found.tile_program, found.shape, found.source, found.target)


@pytest.mark.parametrize(
    ("found", "kind", "change"),
    [
        (SWAPS, Swap, reversed_factors),
        (SWAPS, Swap, lambda swap: replace(swap, factors=(swap.factors[0], swap.factors[0]))),
        (SWAPS, Transpose, lambda transpose: Transpose(tuple(range(len(transpose.axes))))),
        (SWAPS, Reshape, lambda reshape: Reshape(reshape.shape[::-1])),
        (GATHERS, Gather, reversed_factors),
        (PERMUTES, Send, lambda send: Send(tuple((b, a) for a, b in send.pairs[:2]) + send.pairs[:1] + send.pairs[3:])),
        (PERMUTES, Send, lambda send: Send(tuple((i, i) for i in range(8)))),
        (
            SLICES,
            TakeOwn,
            lambda take: TakeOwn(((take.picks[0][0], take.picks[1][1]), (take.picks[1][0], take.picks[0][1]))),
        ),
    ],
)
def test_wrong_programs_are_refused(found, kind, change):
    wrong = with_operation(found.tile_program, kind, change)
    with pytest.raises((AssertionError, ValueError)):
        semantics.check(wrong, found.shape, found.source, found.target)


def test_a_program_for_another_target_is_refused():
    with pytest.raises(AssertionError):
        semantics.check(SWAPS.tile_program, SWAPS.shape, SWAPS.source, Sharding.parse('[{}, {}, {"x", "y"}]'))


def test_a_program_for_another_device_order_is_refused():
    shuffled = Mesh(MESH.axes, (2, 1, 0, 3, 4, 5, 6, 7))
    found = plan_of('[{"x", "y"}, {}, {}]', "[{}, {}, {}]", mesh=shuffled)
    wrong = replace(found.tile_program, mesh=MESH)
    tiles = semantics.scatter(np.arange(512).reshape(8, 8, 8), shuffled, found.source)
    assert not np.array_equal(semantics.run(wrong, tiles)[0], np.arange(512).reshape(8, 8, 8))


def test_scatter_of_a_small_array_by_hand():
    mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>')
    tiles = semantics.scatter(np.arange(8).reshape(2, 4), mesh, Sharding.parse('[{"y"}, {"x"}]'))
    assert {device: tile.tolist() for device, tile in tiles.items()} == {
        3: [[0, 1]],  # x=0, y=0
        2: [[4, 5]],  # x=0, y=1
        1: [[2, 3]],
        0: [[6, 7]],
    }


# -- partial sums --

ALL_REDUCES = plan_of('[{}, {}, {}], unreduced={"x", "y", "z"}', "[{}, {}, {}]")
REDUCE_SCATTERS = plan_of('[{"z"}, {}, {}], unreduced={"x", "y"}', '[{"z"}, {}, {"x", "y"}]')
PADS = plan_of('[{"x"}, {}, {}]', '[{}, {}, {}], unreduced={"x", "y"}')


@pytest.mark.parametrize("found", [ALL_REDUCES, REDUCE_SCATTERS, PADS])
@pytest.mark.parametrize("reduction", ["sum", "prod", "min", "max", "and", "or"])
def test_right_programs_with_partial_sums_pass(found, reduction):
    semantics.check(replace(found.tile_program, reduction=reduction), found.shape, found.source, found.target)


@pytest.mark.parametrize(
    ("found", "kind", "change"),
    [
        (ALL_REDUCES, Reduce, lambda reduce: Reduce(reduce.factors[1:])),
        (REDUCE_SCATTERS, ReduceOwn, reversed_factors),
        (REDUCE_SCATTERS, ReduceOwn, lambda reduce: ReduceOwn((reduce.factors[0], reduce.factors[0]))),
        (PADS, KeepFirst, lambda _: KeepFirst(())),
        (PADS, PutOwn, lambda put: PutOwn((Factor("z", 1, 2),))),
    ],
)
def test_wrong_programs_with_partial_sums_are_refused(found, kind, change):
    wrong = with_operation(found.tile_program, kind, change)
    with pytest.raises((AssertionError, ValueError)):
        semantics.check(wrong, found.shape, found.source, found.target)


def test_replicas_that_hold_other_partial_sums_are_refused():
    """The sum over the first replicas is right, but the replicas with z = 1 hold only neutral elements."""
    found = plan_of("[{}, {}, {}]", '[{}, {}, {}], unreduced={"x"}')
    wrong = with_operation(found.tile_program, KeepFirst, lambda keep: KeepFirst((*keep.factors, Factor("z", 1, 2))))
    with pytest.raises(AssertionError, match="another partial sum than device 0"):
        semantics.check(wrong, found.shape, found.source, found.target)


def test_partial_sums_of_a_small_array_by_hand():
    mesh, side = Mesh.parse("x=2,y=2"), Sharding.parse('[{"y"}], unreduced={"x"}')
    tiles = semantics.scatter_sums(np.array([[1, 2], [30, 40]]), mesh, side)
    assert {device: tile.tolist() for device, tile in tiles.items()} == {0: [1], 1: [2], 2: [30], 3: [40]}
