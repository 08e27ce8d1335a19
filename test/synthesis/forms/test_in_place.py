# SPDX-License-Identifier: Apache-2.0
"""The form in place: equal programs, with the same collectives, that leave digits where they lie."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conversions.pairs import random_pairs, random_reductions
from reshard.synthesis.forms.in_place import for_platform, in_place
from reshard.synthesis.forms.platforms import CPU, FORMS, PLATFORMS
from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.programs import interpreter
from reshard.synthesis.programs.steps import AllToAll, Relayout
from reshard.synthesis.programs.tile_program import (
    Gather,
    KeepOwn,
    Loop,
    ReduceOwn,
    Reshape,
    Swap,
    TileProgram,
    Transpose,
    collectives,
    copied_elements,
    shape_after,
)

MESH = Mesh.parse("x=4,y=2")
X, Y = Factor("x", 1, 4), Factor("y", 1, 2)


def operations(shape, source: str, target: str, mesh: Mesh = MESH, **options):
    found = plan(mesh, shape, 32, Sharding.parse(source), Sharding.parse(target), **options)
    return in_place(found.tile_program).operations


def test_gather_is_along_its_dimension():
    assert operations((8, 16, 32), '[{}, {"x"}, {}]', "[{}, {}, {}]") == (Gather((X,), 1),)
    assert operations((8, 16, 32), '[{}, {}, {"x"}]', "[{}, {}, {}]") == (Gather((X,), 2),)


def test_gather_of_a_dimension_of_which_each_device_has_one_entry_keeps_the_dimension():
    assert operations((8, 4, 32), '[{}, {"x"}, {}]', "[{}, {}, {}]") == (Gather((X,), 1),)


def test_all_to_all_keeps_dimensions_apart():
    assert operations((8, 16, 32, 64), '[{}, {"x"}, {}, {}]', '[{}, {}, {"x"}, {}]') == (
        Reshape((8, 4, 4, 8, 64)),
        Swap((X,), 2),
        Transpose((0, 2, 1, 3, 4)),
        Reshape((8, 16, 8, 64)),
    )


def test_two_dimensions_of_an_all_to_all_are_not_joined():
    """Worked example (i): the digits that arrive go to dimensions 0 and 2."""
    assert operations((16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]') == (
        Reshape((8, 8, 2, 4)),
        Swap((X, Y), 1),
        Reshape((8, 4, 2, 2, 4)),
        Transpose((2, 0, 3, 1, 4)),
        Reshape((16, 2, 16)),
    )


def test_reduce_scatter_and_slice_are_of_whole_dimensions():
    line = Mesh.parse("x=4")
    assert operations((8, 16), '[{}, {}], unreduced={"x"}', '[{}, {"x"}]', line) == (ReduceOwn((X,), 1),)
    assert operations((8, 16), "[{}, {}]", '[{}, {"x"}]') == (KeepOwn(((1, X),)),)


def test_a_slice_of_a_middle_digit_cuts_the_dimension():
    found = operations((64,), '[{"y"}]', '[{"y", "x"}]')
    assert found == (KeepOwn(((0, X),)),)
    leading = operations((64, 2), '[{}, {"y"}]', '[{"x", "y"}, {}]')
    assert [each for each in leading if isinstance(each, KeepOwn)]


def test_other_platforms_keep_the_program():
    program = plan(MESH, (8, 16), 32, Sharding.parse('[{}, {"x"}]'), Sharding.parse("[{}, {}]")).tile_program
    assert for_platform(program, CPU, 32) is program
    assert [for_platform(program, each, 32) == in_place(program) for each in PLATFORMS] == [
        FORMS[each].is_in_place for each in PLATFORMS
    ]


def test_arrays_without_elements_are_left_alone():
    program = plan(MESH, (0, 4), 32, Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"y"}]')).tile_program
    assert in_place(program) is program


def test_relayouts_without_copies_vanish():
    found = plan(MESH, (8, 16), 32, Sharding.parse('[{}, {"x"}]'), Sharding.parse("[{}, {}]")).tile_program
    assert any(isinstance(step, Relayout) for step, _ in found.steps)
    assert not any(isinstance(step, Relayout) for step, _ in in_place(found).steps)


def test_radices_that_do_not_divide_each_other_end_a_segment():
    """[4, 6] read as [6, 4]: no digits of one are digits of the other."""
    there_and_back = Transpose((1, 0)), Reshape((4, 6)), Transpose((1, 0))
    joined = Reshape((8, 3)), Transpose((1, 0)), Reshape((24,))
    for out_shape, written in (((6, 4), there_and_back), ((24,), joined)):
        assert_equal(TileProgram(MESH, (4, 6), out_shape, ((Relayout(""), written),)))


def assert_equal(program: TileProgram) -> None:
    tile = np.arange(math.prod(program.in_shape)).reshape(program.in_shape)
    tiles = {device: tile + 1000 * device for device in range(program.mesh.size)}
    before, after = (interpreter.run(each, tiles) for each in (program, in_place(program)))
    assert all((before[device] == after[device]).all() for device in tiles)
    assert all(before[device].shape == after[device].shape for device in tiles)


# Random programs


@st.composite
def programs(draw) -> TileProgram:
    """Draws a program on tiles of 48 or 64 elements, of any operations that fit the shapes."""
    shape = in_shape = draw(st.sampled_from([(4, 4, 4), (8, 8), (64,), (4, 12), (1, 6, 8)]))
    written = []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["reshape", "transpose", "swap", "gather", "keep", "reduce"]))
        size = math.prod(shape)
        if kind == "reshape":
            first = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
            second = draw(st.sampled_from([d for d in range(1, size // first + 1) if size // first % d == 0]))
            written.append(Reshape((first, second, size // first // second)))
        elif kind == "transpose":
            written.append(Transpose(tuple(draw(st.permutations(range(len(shape)))))))
        elif kind == "gather" and size <= 128:
            written.append(Gather((draw(st.sampled_from([X, Y])),)))
        elif kind in ("swap", "reduce"):
            factors = [each for each in ((X,), (Y,), (X, Y), (Y, X)) if math.prod(f.size for f in each) == shape[0]]
            if factors:
                chosen = draw(st.sampled_from(factors))
                written.append(Swap(chosen) if kind == "swap" else ReduceOwn(chosen))
        shape = in_shape
        for operation in written:
            shape = shape_after(operation, shape)
    return TileProgram(MESH, in_shape, shape, ((AllToAll(()), tuple(written)),))


@given(programs())
def test_any_program_is_equal_in_place(program):
    assert_equal(program)
    assert collectives(in_place(program), 32) == collectives(program, 32)


def checked(pair, **options) -> tuple[TileProgram, TileProgram]:
    """Returns the program of a pair's plan, and the one in place, which the interpreter has checked."""
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, **options)
    program, rewritten = found.tile_program, in_place(found.tile_program)
    interpreter.check(rewritten, pair.shape, pair.source, pair.target)
    assert collectives(rewritten, 32) == collectives(program, 32)
    return program, rewritten


PAIRS = random_pairs(81, 120, (4, 6, 8, 12, 16))


def test_random_plans_in_place_make_the_target_with_fewer_copies():
    copies = [0, 0]
    for pair in [*PAIRS, *random_reductions(82, 40, (4, 8, 12))]:
        for number, program in enumerate(checked(pair)):
            copies[number] += sum(copied_elements(program))
    assert copies[1] < 0.8 * copies[0]


def test_chunked_plans_in_place_make_the_target():
    chunked = 0
    for pair in PAIRS[:60]:
        least = plan(pair.mesh, pair.shape, 32, pair.source, pair.target).peak_bytes
        try:
            program, _ = checked(pair, memory_limit=least * 7 // 10)
        except NoPlanError:
            continue
        chunked += any(isinstance(each, Loop) for each in program.operations)
    assert chunked
