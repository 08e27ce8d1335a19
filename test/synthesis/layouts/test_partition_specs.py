# SPDX-License-Identifier: Apache-2.0
"""Shardings in JAX's spelling are read; a wrong text is refused with the column of the error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from reshard.synthesis.layouts.partition_specs import is_spec, sharding_of, text_of
from reshard.synthesis.layouts.sharding import AxisRef, Sharding, ShardingError


@pytest.mark.parametrize(
    "text, rank, expected",
    [
        ("P()", 0, "[]"),
        ("P()", 2, "[{}, {}]"),
        ("P('x')", 2, '[{"x"}, {}]'),
        ('P("x", None,)', 2, '[{"x"}, {}]'),
        (" jax.P( ('x','y') , None )\n", 2, '[{"x", "y"}, {}]'),
        ("PartitionSpec((), ('x',))", 2, '[{}, {"x"}]'),
        ("jax.sharding.PartitionSpec('data-parallel')", 1, '[{"data-parallel"}]'),
        ("P(None, unreduced={'x', 'y'})", 1, '[{}], unreduced={"x", "y"}'),
    ],
)
def test_a_spec_is_a_sharding(text, rank, expected):
    assert is_spec(text) and str(sharding_of(text, rank)) == expected


def test_parse_takes_both_spellings():
    assert Sharding.parse("P(None, ('a', 'b'))") == Sharding.parse('[{}, {"a", "b"}]')
    assert str(Sharding.parse("jax.sharding.PartitionSpec('x')", rank=2)) == '[{"x"}, {}]'
    with pytest.raises(ShardingError, match="has 2 entries, the array has rank 1"):
        Sharding.parse("P('x', None)", rank=1)


@pytest.mark.parametrize("text", ['[{"x"}]', "('x',)", "Q('x')", "P", "('P(')"])
def test_other_text_is_no_spec(text):
    assert not is_spec(text)


@pytest.mark.parametrize(
    "text, message",
    [
        ("P('x'", 'column 6 has the end, expected ","'),
        ("P('x' 'y')", 'column 7 has "\'y\'", expected ","'),
        ("P(x)", "column 3 has \"x\", expected None, an axis in quotes such as 'x', or axes such as ('x', 'y')"),
        ("P(('x', None))", 'column 9 has "None", expected an axis in quotes'),
        ("P(('x', ('y',)))", 'column 9 has "(", expected an axis in quotes'),
        ("P('')", "expected None"),
        ("P('x', 4)", 'column 8 has "4", expected None'),
        ("P(P.UNCONSTRAINED)", 'column 3 has "P.UNCONSTRAINED", expected None'),
        ("P('x'))", 'column 7 has ")", expected the end'),
        ("P(unreduced={'x'}, unreduced={'y'})", "expected unreduced once"),
        ("P(unreduced={'x'}, 'y')", 'expected ")"'),
        ("P(__import__('os'))", 'has "__import__"'),
        ("P('x', None, 'y')", "has 3 entries, the array has rank 2"),
    ],
)
def test_what_is_no_spec_is_refused_at_its_column(text, message):
    with pytest.raises(ShardingError) as refusal:
        sharding_of(text, 2)
    assert message in str(refusal.value)


@given(st.text(alphabet="(){}'\",None xy=unredc\n", max_size=24))
def test_any_text_is_a_sharding_or_a_sharding_error(text):
    try:
        sharding_of(f"P({text}", 3)
    except ShardingError as error:
        assert "expected" in str(error) or "entries" in str(error)


NAMES = st.lists(st.sampled_from(["x", "y", "z", "data-parallel", "e\N{LATIN SMALL LETTER E WITH ACUTE}"]), unique=True)


@given(st.lists(NAMES, max_size=4), NAMES)
def test_a_sharding_of_whole_axes_is_read_back_from_its_text(dims, unreduced):
    refs = [tuple(map(AxisRef, names)) for names in (*dims, unreduced)]
    sharding = Sharding(tuple(refs[:-1]), unreduced=refs[-1])
    assert sharding_of(text_of(sharding), sharding.rank) == sharding


@given(st.lists(NAMES, max_size=4))
def test_the_text_is_that_of_jax(dims):
    spec = PartitionSpec(*(tuple(names) if len(names) > 1 else names[0] if names else None for names in dims))
    sharding = Sharding(tuple(tuple(map(AxisRef, names)) for names in dims))
    assert text_of(sharding).replace(",)", ")") == f"P{str(tuple(spec)).replace(',)', ')')}"


@pytest.mark.parametrize("text", ['[{"x":(1)2}]', '[{}], unreduced={"x":(2)2}', '[{"o\'clock"}]', '[{"a\\\\b"}]'])
def test_what_no_spec_says_has_no_text(text):
    assert text_of(Sharding.parse(text)) is None


def test_advice_to_propagation_is_left_out():
    assert text_of(Sharding.parse('[{"x", ?}p1, {}], replicated={"y"}')) == "P('x', None)"
