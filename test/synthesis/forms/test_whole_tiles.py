# SPDX-License-Identifier: Apache-2.0
"""Reduce_scatters that compilers for TPUs keep, and the form in which they keep others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conversions.scattered_sums import KEPT, OTHERWISE, WHOLE
from reshard.synthesis.forms.in_place import for_platform, in_place
from reshard.synthesis.forms.platforms import PLATFORMS, TPU
from reshard.synthesis.forms.whole_tiles import as_run, in_whole_tiles, is_kept
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import interpreter
from reshard.synthesis.programs.tile_program import ReduceOwn, Reshape, TileProgram, collectives


@pytest.mark.parametrize(
    ("shape", "dim", "kept"), [*((*each, True) for each in KEPT + OTHERWISE), *((*each, False) for each in WHOLE)]
)
def test_which_reduce_scatters_the_compiler_keeps(shape, dim, kept):
    assert is_kept(shape, dim, 8, 32) == kept


def summed(shape, axes: str, dim: int, mesh: str = "x=8", bits: int = 32) -> TileProgram:
    """Returns the program of one reduce_scatter, as plans have it."""
    target = ", ".join("{" + axes + "}" if each == dim else "{}" for each in range(len(shape)))
    source = ", ".join("{}" for _ in shape)
    asked = Sharding.parse(f"[{source}], unreduced={{{axes}}}"), Sharding.parse(f"[{target}]")
    return plan(Mesh.parse(mesh), shape, bits, *asked).tile_program


def written(shape, dim: int) -> TileProgram:
    return for_platform(summed(shape, '"x"', dim), TPU, 32)


def test_a_line_of_elements_is_scattered_in_rows_of_tiles():
    reshape, scatter, back = written((262144,), 0).operations
    assert (reshape, back) == (Reshape((8, 256, 128)), Reshape((32768,)))
    assert isinstance(scatter, ReduceOwn) and scatter.axis == 0


@pytest.mark.parametrize(
    ("shape", "dim", "bits"),
    [
        ((64, 256), 0, 32),
        ((8192,), 0, 32),
        ((16384,), 0, 16),
        ((262136,), 0, 32),
        ((8, 1, 2176), 0, 32),
        ((64, 512), 1, 32),
    ],
)
def test_what_is_kept_or_small_or_no_number_of_tiles_or_apart_stays(shape, dim, bits):
    program = in_place(summed(shape, '"x"', dim, bits=bits))
    assert in_whole_tiles(program, bits) == program


def test_chains_count_as_the_compiler_runs_them():
    as_it_is = in_place(summed((262144,), '"x"', 0))
    assert [each.kind for each in as_run(as_it_is, 32)] == ["all_reduce"]
    assert [each.kind for each in as_run(written((262144,), 0), 32)] == ["reduce_scatter"]
    assert [each.bytes_after for each in as_run(written((262136,), 0), 32)] == [4 * 262136]
    kept = written((64, 256), 0)
    assert tuple(as_run(kept, 32)) == collectives(kept, 32)


@given(st.data())
def test_the_form_computes_the_same(data):
    mesh, axes = data.draw(st.sampled_from([("x=4", '"x"'), ("x=2,y=2", '"y", "x"'), ("y=3,x=4", '"x"')]))
    shape = list(data.draw(st.sampled_from([(16384,), (4, 4096), (4, 4, 1024), (1, 16384), (64, 256), (4, 2, 4096)])))
    dim = shape.index(next(size for size in shape if size > 1))
    program = summed(tuple(shape), axes, dim, mesh)
    form = for_platform(program, TPU, 32)
    tiles = dict(enumerate(np.arange(Mesh.parse(mesh).size * np.prod(shape)).reshape(-1, *shape) % 1009))
    expected, made = interpreter.run(program, tiles), interpreter.run(form, tiles)
    assert all(np.array_equal(expected[device], made[device]) for device in tiles)
    assert {each.kind for each in as_run(form, 32)} == {"reduce_scatter"}


def test_only_tpus_have_the_form():
    program = summed((262144,), '"x"', 0)
    assert [each for each in PLATFORMS if for_platform(program, each, 32) != for_platform(program, each, 1)] == [TPU]
