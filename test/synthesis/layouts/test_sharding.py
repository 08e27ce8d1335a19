# SPDX-License-Identifier: Apache-2.0
"""Shardings: text round trips, sub-axes, tiles, and errors that name the value and the rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import AxisRef, Sharding, ShardingError

MESH = Mesh.parse("x=4,y=2,z=6")

_names = st.sampled_from(["x", "y", "axis_0", "a.b", "data-parallel"])
_axes = st.one_of(st.builds(AxisRef, _names), st.builds(AxisRef, _names, st.integers(1, 16), st.integers(2, 16)))
_axis_lists = st.lists(_axes, max_size=3).map(tuple)


@st.composite
def shardings(draw) -> Sharding:
    dims = tuple(draw(st.lists(_axis_lists, max_size=4)))
    some = lambda: [d for d in range(len(dims)) if draw(st.booleans())]  # noqa: E731
    return Sharding(
        dims,
        frozenset(some()),
        draw(_axis_lists),
        draw(_axis_lists),
        tuple((d, draw(st.integers(0, 3))) for d in some()),
    )


@given(shardings())
def test_text_round_trips(sharding):
    assert Sharding.parse(str(sharding)) == sharding


@given(st.text(alphabet='[]{}",:()xp?0123 replicatedun=', max_size=24))
def test_any_text_is_a_sharding_or_a_sharding_error(text):
    try:
        Sharding.parse(text)
    except ShardingError as error:
        assert "expected" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'column 1 has "the end", expected "\\["'),
        ("[{x}]", 'column 3 has "x", expected an axis such as "x"'),
        ('[{"x"}', 'column 7 has "the end", expected ","'),
        ('[{"x" "y"}]', 'column 7 has ""y"", expected ","'),
        ('[{"x"}] twice', "expected the end"),
        ('[{"x":(2)}]', "expected a number"),
        ('<@mesh, [{"x"]>', 'column 6 has "]", expected ","'),
        ("{devices=[2,1,4]<=[4,2]T(1,0)}", "it is GSPMD's, which names no axes; .* fix-warnings"),
        ("{replicated}", "it is GSPMD's"),
    ],
)
def test_syntax_errors_name_the_column(text, message):
    with pytest.raises(ShardingError, match=message):
        Sharding.parse(text)


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ('[{"x"}, {"x"}]', 2, 'axis "x" is used twice in'),
        ('[{"x"}], replicated={"x"}', 1, 'axis "x" is used twice in'),
        ('[{"x"}], unreduced={"x":(2)2}', 1, r'axis "x":\(2\)2 is used twice in'),
        ('[{"x":(1)2, "x"}]', 1, 'axis "x" is used twice in'),
        ('[{"x":(3)2}]', 1, r'sub-axis "x":\(3\)2 does not divide axis "x" of size 4'),
        ('[{"x":(1)0}]', 1, r'sub-axis "x":\(1\)0 does not divide axis "x" of size 4'),
        ('[{"x":(0)2}]', 1, r'sub-axis "x":\(0\)2 does not divide axis "x" of size 4'),
        ('[{"x"}]', 2, "has rank 1, the array has rank 2"),
    ],
)
def test_nonsense_is_named(text, rank, message):
    with pytest.raises(ShardingError, match=message):
        Sharding.parse(text).check(MESH, rank)


@pytest.mark.parametrize(
    "text", ['<@mesh, [{"x"}, {?}]>', '#sdy.sharding<@mesh, [{"x"}, {?}]>', ' < @"a mesh" ,[{"x"}, {?}]>\n']
)
def test_a_sharding_is_read_as_it_stands_in_a_module(text):
    assert Sharding.parse(text) == Sharding.parse('[{"x"}, {?}]')


def test_unknown_axis_is_named():
    with pytest.raises(MeshError, match='unknown axis "q"'):
        Sharding.parse('[{"q"}]').check(MESH, 1)


def test_disjoint_sub_axes_are_no_double_use():
    Sharding.parse('[{"x":(2)2}, {"x":(1)2}, {"z":(2)3}], replicated={"z":(1)2}').check(MESH, 3)


def test_tiles_round_up():
    assert Sharding.parse('[{"x"}, {}, {"y", "z":(1)2}]').tile_shape(MESH, (9, 5, 8)) == (3, 5, 2)


def test_closed_keeps_placement_alone():
    sharding = Sharding.parse('[{"x", ?}p1, {}], replicated={"y"}, unreduced={"z"}')
    assert str(sharding.closed()) == '[{"x"}, {}], unreduced={"z"}'
