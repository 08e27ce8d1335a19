# SPDX-License-Identifier: Apache-2.0
"""Parts of the last dimension that compilers for TPUs get in one piece."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.forms.in_place import for_platform
from reshard.synthesis.forms.platforms import PLATFORMS, TPU
from reshard.synthesis.forms.side_by_side import MOST_PARTS, side_by_side
from reshard.synthesis.forms.whole_tiles import COLUMNS
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import interpreter
from reshard.synthesis.programs.tile_program import Join, Loop, Reshape, TileProgram, Transpose, shape_after


def converted(mesh: str, shape, source: str, target: str) -> TileProgram:
    return plan(Mesh.parse(mesh), shape, 32, Sharding.parse(source), Sharding.parse(target)).tile_program


def one_step(shape, *operations) -> TileProgram:
    program = converted("x=2", (4, 4), '[{"x"}, {}]', '[{}, {"x"}]')
    after = shape
    for each in operations:
        after = shape_after(each, after)
    return TileProgram(program.mesh, shape, after, ((program.steps[0][0], operations),))


def joins(program: TileProgram) -> list[Join]:
    return [each for each in program.operations if isinstance(each, Join)]


def test_columns_that_arrive_in_parts_are_joined():
    program = converted("x=2", (32, 512), '[{}, {"x"}]', '[{"x"}, {}]')
    form = for_platform(program, TPU, 32)
    assert joins(form) == [Join(0)]
    assert not any(isinstance(each, Transpose) for each in form.operations)
    assert [each for each in PLATFORMS if joins(for_platform(program, each, 32))] == [TPU]


@pytest.mark.parametrize(
    ("shape", "axes", "joined"),
    [
        pytest.param((2, 16, 64), (1, 0, 2), (16, 128), id="columns of half a tile"),
        pytest.param((2, 128, 128), (1, 0, 2), (256, 128), id="rows"),
        pytest.param((2, 3, 16, 128), (2, 0, 1, 3), (16, 2, 384), id="another axis moves"),
        pytest.param((2, 16, 128), (1, 2, 0), (16, 256), id="the last axis is another one"),
        pytest.param((2 * MOST_PARTS, 4, 128), (1, 0, 2), (4, 2 * MOST_PARTS * 128), id="many parts"),
    ],
)
def test_what_is_no_row_of_whole_columns_stays(shape, axes, joined):
    program = one_step(shape, Transpose(axes), Reshape(joined))
    assert side_by_side(program) == program


def test_the_body_of_a_loop_has_the_form():
    body = one_step((2, 16, 128), Transpose((1, 0, 2)), Reshape((16, 256)))
    loop = Loop(3, 0, 0, body, (48, 256))
    assert joins(side_by_side(one_step((6, 16, 128), loop)).operations[0].body) == [Join(0)]


@given(st.data())
def test_the_form_computes_the_same(data):
    mesh, source, target = data.draw(
        st.sampled_from(
            [
                ("x=4", '[{}, {}, {"x"}]', '[{}, {"x"}, {}]'),
                ("x=2,y=2", '[{"y"}, {}, {"x"}]', '[{"y", "x"}, {}, {}]'),
                ("x=2,y=3", '[{}, {}, {"x", "y"}]', '[{"x"}, {"y"}, {}]'),
            ]
        )
    )
    shape = tuple(data.draw(st.sampled_from(sizes)) for sizes in ((12, 24), (12, 24), (12 * COLUMNS, 96)))
    program = converted(mesh, shape, source, target)
    form = for_platform(program, TPU, 32)
    tiles = {
        device: np.random.default_rng(device).integers(0, 1000, program.in_shape)
        for device in range(Mesh.parse(mesh).size)
    }
    expected, made = interpreter.run(program, tiles), interpreter.run(form, tiles)
    assert all(np.array_equal(expected[device], made[device]) for device in tiles)
    assert bool(joins(form)) == (shape[-1] > 96)
