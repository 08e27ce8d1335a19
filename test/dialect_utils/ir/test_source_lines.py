# SPDX-License-Identifier: Apache-2.0
"""The line of the user's program that an op comes from."""

import pytest

from reshard.dialect_utils.ir.diagnostics import place_of
from reshard.dialect_utils.ir.source_lines import SourceLines, frames_of
from reshard.dialect_utils.platform.bindings import ir, make_context

LIBRARY = '"constrain"("/env/lib/python3.11/site-packages/flax/linen/spmd.py":5:1)'
WSC = '"wsc"("model.py":8:1 to :81)'


def parsed(text: str) -> ir.Location:
    return ir.Module.parse(f"module {{}} loc({text})").operation.location


def chain(*frames: str):
    """Returns the frames that are read from a location as jax writes it; the innermost frame comes first."""
    text = frames[-1]
    for frame in reversed(frames[:-1]):
        text = f"callsite({frame} at {text})"
    with make_context():
        return frames_of(parsed(f'"jit(step)/op"({text})'))


def line(path, *others) -> str:
    return str(SourceLines([path, *others]).place(path))


def layer(at: int) -> str:
    return f'"layer"("model.py":{at}:8)'


def test_a_helper_that_is_called_from_several_places_gives_way_to_its_caller():
    first, second = chain(WSC, layer(20)), chain(WSC, layer(30))
    assert [line(first, second), line(second, first)] == ["model.py:20:8", "model.py:30:8"]


def test_a_function_that_is_called_once_is_no_helper():
    assert line(chain(WSC, layer(20))) == "model.py:8:1"


def test_a_function_with_sites_in_several_lines_is_no_helper_though_it_is_called_twice():
    calls = ['"step"("train.py":1:1)', '"step"("train.py":2:1)']
    paths = [chain(WSC, layer(at), call) for at in (20, 30) for call in calls]
    assert [line(path, *paths) for path in paths] == [
        "model.py:20:8",
        "model.py:20:8",
        "model.py:30:8",
        "model.py:30:8",
    ]


def test_helpers_of_helpers_give_way_too():
    inner = '"_wsc"("sharding.py":3:1)'
    first, second = chain(inner, WSC, layer(20)), chain(inner, WSC, layer(30))
    assert line(first, second) == "model.py:20:8"


def test_frames_in_libraries_are_not_the_users():
    assert line(chain(LIBRARY, layer(20))) == "model.py:20:8"
    assert line(chain(LIBRARY)).endswith("spmd.py:5:1")


def test_a_helper_that_no_user_frame_calls_is_told_of():
    first, second = (chain(WSC, f'"apply"("/env/lib/python3.11/site-packages/flax/core.py":{at}:1)') for at in (1, 2))
    assert line(first, second) == "model.py:8:1"


@pytest.mark.parametrize(
    "text, places",
    [
        ('"a.mlir":3:4', ["a.mlir:3:4"]),
        ('fused["a.mlir":3:4, "b.mlir":5:6]', ["a.mlir:3:4"]),
        ('"x"', []),
        ("unknown", []),
        ('"who at"(callsite("f at"("a at b":1:2) at "c":3:4))', ["a at b:1:2 in f at", "c:3:4"]),
    ],
)
def test_frames_of_other_locations(text, places):
    with make_context():
        assert [str(each) for each in frames_of(parsed(text))] == places


def test_places_in_remarks_skip_libraries():
    with make_context():
        location = parsed(f"callsite({LIBRARY} at {layer(20)})")
        assert str(place_of(location)) == "model.py:20:8"
        assert str(place_of(parsed(LIBRARY))).endswith("spmd.py:5:1")


MODEL = "/env/lib/python3.12/site-packages/shared_models/layers.py"


def of_model(function: str, at: int, file: str = MODEL) -> str:
    return f'"{function}"("{file}":{at}:4)'


def test_lines_of_an_installed_model_are_told_where_one_line_enters_it():
    entry, lowering = '"loss"("train.py":5:1)', '"<module>"("train.py":9:1)'
    inner = [of_model(f"layer{number}", number) for number in range(1, 5)]
    paths = [chain(LIBRARY, of_model("project", at), each, entry, lowering) for each in inner for at in (90, 95)]
    lines = [line(path, *paths) for path in paths[::2]]
    assert lines == [f"shared_models/layers.py:{at}:4" for at in range(1, 5)], "`project` is a helper there"
    assert line(paths[0], *paths[:2]) == "train.py:5:1", "few functions are one op of the user's"
    advised = SourceLines(paths, shows_packages=False)
    assert str(advised.place(paths[0])) == "train.py:5:1", "no edit is proposed in a package"


def test_lines_of_an_installed_trainer_are_told_without_a_line_of_the_users():
    path = chain(LIBRARY, of_model("layer", 3))
    assert line(path) == "shared_models/layers.py:3:4"


@pytest.mark.parametrize("package", ("flax/nnx", "reshard/compiling"))
def test_lines_of_frameworks_are_not_told_however_many(package):
    attention = f"/env/lib/python3.12/site-packages/{package}/attention.py"
    paths = [chain(of_model(f"f{at}", at + 1, attention), '"layer"("train.py":5:1)') for at in range(9)]
    assert line(paths[0], *paths) == "train.py:5:1"
