# SPDX-License-Identifier: Apache-2.0
"""Claims and verdicts as bytes, and the text that says how two claims differ."""

from reshard.jobs.claims import AGREED, Claim, Verdict, differences, first_difference


def test_a_verdict_is_the_same_after_its_bytes():
    verdict = Verdict(AGREED, b"{}", lead=2, problem="", warnings=("look",), payload=b"\x00module")
    assert Verdict.from_bytes(verdict.to_bytes()) == verdict


def test_equal_claims_do_not_differ():
    claim = Claim("f", "module {}", (("jax", "1"),)).to_json()
    assert differences({0: claim, 1: claim}) == ""


def test_settings_and_modules_that_differ_are_named_with_both_values():
    ours, theirs = Claim("f", "module {}", (("jax", "1"),)), Claim("f", "module @g {}", (("jax", "2"),))
    text = differences({0: ours.to_json(), 3: theirs.to_json()})
    assert "jax=2 in process 3, jax=1 in process 0" in text
    assert f"process 3 has another module ({theirs.digest}) than process 0 ({ours.digest})" in text


def test_the_first_line_that_differs_is_shown():
    verdict = Verdict(AGREED, b"{}", lead=0, payload=b"a\nb")
    assert first_difference(verdict, Claim("f", "a\nc")) == "; line 2 here: c; in process 0: b"
    assert first_difference(verdict, Claim("f", "a\nb")) == ""
