# SPDX-License-Identifier: Apache-2.0
"""GSPMD strings are read and printed, with the same meaning as in XLA.

On synthesized meshes each device holds the same block as before.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.dialect_utils.gspmd.gspmd_shardings import GspmdError, InexpressibleError, parse

TEXTS = [
    "{replicated}",
    "{manual}",
    "{unreduced}",
    "{unknown}",
    "{maximal device=3}",
    "{devices=[2,4]0,1,2,3,4,5,6,7}",
    "{devices=[2,2]0,3,2,1}",
    "{devices=[2,4]<=[8]}",
    "{devices=[4,2]<=[2,4]T(1,0)}",
    "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
    "{devices=[2,2,2]<=[8] last_tile_dims={manual, unreduced}}",
    "{devices=[2,4]<=[8] last_tile_dims={manual, replicated}}",
    "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}",
    "{mesh['x'=2,'y'=4], device_ids=(0,2,1,3,4,5,6,7), [{'x', ?}, {'y':(1)2}], replicated={'y':(2)2}}",
    "{mesh['x'=2,'y'=4], [{'y'}], unreduced={'x'}}",
    "{mesh['x'=2,'y'=4], [{'y'}], manual={'x'}}",
    "{mesh['x'=2,'y'=4], replicated}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_sharding_is_printed_as_it_was_read(text):
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_xla_reads_what_is_printed(text):
    xla_client = pytest.importorskip("jaxlib.xla_client")
    assert str(xla_client.HloSharding.from_string(text)) == text


def test_a_tuple_has_a_sharding_for_each_element():
    assert [str(each) for each in parse("{{replicated}, {devices=[2]<=[2]}, {maximal device=1}}")] == [
        "{replicated}",
        "{devices=[2]<=[2]}",
        "{maximal device=1}",
    ]
    assert parse("{}") == ()


@pytest.mark.parametrize(
    "text, same",
    [
        ('{devices=[2,2]<=[2,2]T(1,0) metadata={op_name="a}" source_line=3}}', "{devices=[2,2]<=[2,2]T(1,0)}"),
        ("{ devices=[2,1]<=[2] }", "{devices=[2,1]<=[2]}"),
        ("{devices=[2,4]<=[2,4]}", "{devices=[2,4]<=[8]}"),
        ("{maximal_mesh[device_id=3]}", "{maximal device=3}"),
        ("{single_device[device_id=3]}", "{maximal device=3}"),
        (
            "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'}]}",
            "{mesh['x'=2,'y'=2], device_ids=(0,2,1,3), [{'x'}]}",
        ),
        ("{devices=[1,2]<=[2] last_tile_dims={replicated}}", "{devices=[1,2]<=[2] last_tile_dim_replicate}"),
    ],
)
def test_other_spellings(text, same):
    assert str(parse(text)) == same


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "expected '{'"),
        ("replicated", "expected '{'"),
        ("{replicated", "expected '}'"),
        ("{replicated} {", "expected the end"),
        ("{maximal}", "expected device"),
        ("{devices=[2,2]<=[8]}", "8 devices for 4 tiles"),
        ("{devices=[2,2]0,1,2}", "3 devices for 4 tiles"),
        ("{devices=[2]0,0}", "no permutation of 0..1"),
        ("{devices=[2]<=[2]T(1)}", "T(1) is no permutation of the 1 dimensions"),
        ("{devices=[0]<=[0]}", "has no tile"),
        ("{devices=[99999999]<=[99999999]}", "at most 1048576"),
        ("{devices=[99999999999999999999]<=[2]}", "too large a number"),
        ("{devices=[2]<=[2] last_tile_dims={replicated, manual}}", "no tile for each array dimension"),
        ("{nonsense}", "unknown word 'nonsense'"),
        ("{mesh['x'=2], [{'y'}]}", 'unknown axis "y"'),
        ("{mesh['x'=2], [{'x'}, {'x'}]}", "used twice"),
        ("{mesh['x'=2], [{'x'}], manual={'x'}}", "used twice"),
        ("{mesh['x'=0], [{}]}", "sizes are at least 1"),
    ],
)
def test_what_is_no_sharding(text, complaint):
    with pytest.raises(GspmdError) as error:
        parse(text)
    assert complaint in str(error.value)


@given(st.sampled_from(TEXTS), st.data())
def test_damaged_text_is_a_sharding_or_an_error_of_ours(text, data):
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 4)) :]
    try:
        parse(damaged)
    except (GspmdError, InexpressibleError):
        pass


@pytest.mark.parametrize("text", ["{unknown shard_as 3}", "{devices=[2,2]<=[4] shard_like 1}"])
def test_shard_groups_have_no_counterpart(text):
    with pytest.raises(InexpressibleError, match="a shard group"):
        parse(text)
