# SPDX-License-Identifier: Apache-2.0
"""Edits of source lines: what is plain enough is edited, and what is not is left alone."""

import pytest

from reshard.dialect_utils.ir.diagnostics import Place
from reshard.passes.advice.source_edits import added_to, diff_of, says_out_sharding
from reshard.synthesis.layouts.sharding import Sharding

ROWS = Sharding.parse('[{"x", "y"}, {}]')


X = Sharding.parse('[{"x"}, {}]')
CALL = "jax.lax.with_sharding_constraint"


def edit(source: str, sharding: Sharding | None, line: int = 1, before: Sharding = X):
    column = source.split("\n")[line - 1].encode().index(CALL.encode())
    return diff_of(source, Place("f.py", line, column), before, sharding)


@pytest.mark.parametrize(
    ("source", "sharding", "lines"),
    [
        ("x = jax.lax.with_sharding_constraint(x, s)\ny = x", None, ("- x = jax.lax.with_sharding_constraint(x, s)",)),
        (
            "-jax.lax.with_sharding_constraint(a - b, s)",
            None,
            ("- -jax.lax.with_sharding_constraint(a - b, s)", "+ -(a - b)"),
        ),
        (
            "jax.lax.with_sharding_constraint(a + b, s).T",
            None,
            ("- jax.lax.with_sharding_constraint(a + b, s).T", "+ (a + b).T"),
        ),
        (
            "if c: x = jax.lax.with_sharding_constraint(x, s)",
            None,
            ("- if c: x = jax.lax.with_sharding_constraint(x, s)", "+ if c: x = x"),
        ),
        (
            "y = jax.lax.with_sharding_constraint(f(x), s) + 1",
            None,
            ("- y = jax.lax.with_sharding_constraint(f(x), s) + 1", "+ y = f(x) + 1"),
        ),
        (
            'y = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x", None)))',
            ROWS,
            (
                '- y = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x", None)))',
                "+ y = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(('x', 'y'), None)))",
            ),
        ),
        (
            'é = jax.lax.with_sharding_constraint(é, shardings=jax.P("x"))',
            ROWS,
            (
                '- é = jax.lax.with_sharding_constraint(é, shardings=jax.P("x"))',
                "+ é = jax.lax.with_sharding_constraint(é, shardings=jax.P(('x', 'y'), None))",
            ),
        ),
    ],
)
def test_plain_lines_are_edited(source, sharding, lines):
    assert edit(source, sharding) == lines


EINSUM = 'h = jnp.einsum("be,ef->bf", x, w, out_sharding=P("x", None))'


@pytest.mark.parametrize(
    ("source", "column", "sharding", "lines"),
    [
        (EINSUM, 4, ROWS, (f"- {EINSUM}", f"+ {EINSUM}".replace('P("x", None)', "P(('x', 'y'), None)"))),
        (EINSUM, 4, None, ()),  # it has to say something
        ('h = reshard(h, P("x"))', 4, None, ('- h = reshard(h, P("x"))',)),
        ('reshard(h, out_shardings=P("x"))', 0, ROWS, (
            '- reshard(h, out_shardings=P("x"))', "+ reshard(h, out_shardings=P(('x', 'y'), None))"
        )),
        ('h = f(h, P("x"))', 4, ROWS, ()),
    ],
)  # fmt: skip
def test_lines_of_explicit_mode_are_edited(source, column, sharding, lines):
    assert diff_of(f"{source}\nz = h", Place("f.py", 1, column), X, sharding) == lines


def test_whether_a_call_is_told_its_type():
    assert says_out_sharding(EINSUM, Place("f.py", 1, 4)) and not says_out_sharding(EINSUM, Place("f.py", 1, 0))
    assert not says_out_sharding("f(x)", Place("f.py", 1, 0)) and not says_out_sharding("f(", Place("f.py", 1, 0))


def test_a_call_over_several_lines_is_edited_as_a_whole():
    source = "def f(x):\n    y = jax.lax.with_sharding_constraint(\n        g(x),\n        s,\n    )\n    return y\n"
    assert [each for each in edit(source, None, line=2) if each[:1] == "+"] == ["+ y = g(x)"]


@pytest.mark.parametrize(
    "source",
    [
        "y = jax.lax.with_sharding_constraint(x, rows)",  # a sharding with a name
        "y = jax.lax.with_sharding_constraint(x, P(*axes))",
        "y = jax.lax.with_sharding_constraint(x, P(axis))",
        "y = jax.lax.with_sharding_constraint(x, a(P('x'), P('y')))",
        "y = jax.lax.with_sharding_constraint(x, P('y'))",  # another sharding than that of the annotation
        "y = jax.lax.with_sharding_constraint(x, P('x', unreduced={'y'}))",
    ],
)
def test_other_lines_are_left_alone(source):
    assert edit(source, ROWS) == ()


@pytest.mark.parametrize(
    "source",
    [
        "y = jax.lax.with_sharding_constraint(*args)",
        "y = jax.lax.with_sharding_constraint(z := f(x), s)",
        "y = jax.lax.with_sharding_constraint(x)",
    ],
)
def test_a_call_whose_value_is_not_plain_stays(source):
    assert edit(source, None) == ()


def test_what_is_no_such_call_is_left_alone():
    assert diff_of("y = at(x, 'data')", Place("f.py", 1, 4), X, None) == ()
    assert diff_of("y = (", Place("f.py", 1, 4), X, None) == ()
    assert diff_of("", Place("f.py", 7, 4), X, None) == ()


def test_a_form_feed_ends_no_line():
    source = "a = 1\n\x0cb = 2\ny = jax.lax.with_sharding_constraint(f(x), s)\nz = y\n"
    assert edit(source, None, line=3) == ("- y = jax.lax.with_sharding_constraint(f(x), s)", "+ y = f(x)")


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("h = lambda x: f(x)", 4),
        ("h = [f(x), 1.0]", 5),
        ("h, g = f(x)", 7),
        ("h = f(g(x))", 6),
        ("h += f(x)", 5),
        ("return f(x)", 7),
    ],
)
def test_a_line_that_does_not_give_its_value_to_a_name_gets_no_constraint(line, column):
    source = f"def k(w):\n    v = with_sharding_constraint(w, P())\n    {line}\n"
    assert added_to(source, Place("f.py", 3, 4 + column), Sharding.parse('[{"a"}]')) == ()
    plain = source.replace(line, "h = f(x)")
    assert added_to(plain, Place("f.py", 3, 8), Sharding.parse('[{"a"}]')) == (
        '+ h = with_sharding_constraint(h, P("a"))',
    )
