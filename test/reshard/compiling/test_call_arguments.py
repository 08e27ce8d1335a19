# SPDX-License-Identifier: Apache-2.0
"""Calls as `reshard.auto` sees them: what has a place is by position, static arguments are apart, options name them."""

import functools

import jax
import pytest

from reshard.compiling.call_arguments import Parameters


def function(x, y=2, *rest, scale, **others):
    return x, y, rest, scale, others


def texts(call):
    return [str(each) for each in call.arguments]


@pytest.mark.parametrize(
    ("args", "kwargs", "names", "values"),
    [
        ((1, 2), {"scale": 3}, ["x", "y", "scale"], (1, 2, 3)),
        ((1,), {"scale": 3, "y": 2}, ["x", "y", "scale"], (1, 2, 3)),
        ((), {"scale": 3, "x": 1}, ["x", "scale"], (1, 3)),
        ((1, 2, 4, 5), {"scale": 3, "a": 6}, ["x", "y", "rest[0]", "rest[1]", "a", "scale"], (1, 2, 4, 5, 6, 3)),
    ],
)
def test_arguments_with_a_place_come_first_and_then_names_in_order(args, kwargs, names, values):
    call = Parameters.of(function, {}).call(args, kwargs)
    assert (texts(call), call.values) == (names, values)
    assert call.function()(*call.values) == function(*args, **kwargs)
    assert call.key == Parameters.of(function, {}).call(args, dict(reversed(kwargs.items()))).key


def test_a_default_that_is_left_out_in_between_leaves_the_rest_by_name():
    def of(x, y=2, z=3):
        return x, y, z

    call = Parameters.of(of, {"static_argnums": 2}).call((1,), {"z": 5})
    assert texts(call) == ["x", "z = 5"] and call.values == (
        1,
    )  # z is static by its number, although it has a name here
    assert call.function()(7) == (7, 2, 5)


@pytest.mark.parametrize(
    ("options", "static", "donated"),
    [
        ({"static_argnums": -1, "donate_argnums": (0,)}, ["y"], ["x"]),
        ({"static_argnames": ("scale", "y"), "donate_argnames": "x"}, ["y", "scale"], ["x"]),
        ({"static_argnums": (), "donate_argnums": 2}, [], ["rest[0]"]),
    ],
)
def test_options_name_arguments_by_number_or_name(options, static, donated):
    parameters = Parameters.of(function, options)
    call = parameters.call((1, 2, 4), {"scale": 3})
    assert [each.name for each in call.arguments if each.is_static] == static
    assert [each.name for each in call.arguments if parameters.donated.has(each)] == donated
    assert call.function()(*call.values) == function(1, 2, 4, scale=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"static_argnums": 2}, "static_argnums has 2, and the function has 2 positional parameters"),
        ({"donate_argnames": "z"}, "donate_argnames has 'z', and the function has x, y"),
        ({"static_argnums": 0, "donate_argnames": "x"}, "is static and donated"),
    ],
)
def test_options_that_name_no_argument_are_errors(options, said):
    with pytest.raises(ValueError, match=said):
        Parameters.of(lambda x, y: x, options)


def test_of_any_number_of_arguments_none_is_counted_from_the_end():
    with pytest.raises(ValueError, match="static_argnums has -1, and the function has 0 positional parameters"):
        Parameters.of(lambda *xs: xs, {"static_argnums": -1})
    assert Parameters.of(lambda *xs: xs, {"static_argnums": 3}).static.numbers == {3}


def test_equal_static_values_of_other_types_are_told_apart():
    parameters = Parameters.of(lambda x, n: x, {"static_argnums": 1})
    keys = {parameters.call((0, n), {}).key for n in (1, 1.0, True, 1)}
    assert len(keys) == 3


def test_names_of_arguments_reach_the_module():
    call = Parameters.of(functools.partial(function, y=5), {}).call((1.0,), {"scale": {"up": 3.0}})
    text = jax.jit(call.function()).lower(*call.values).as_text(debug_info=True)
    assert '"x"' in text and "scale['up']" in text and "@jit_function" in text


def test_a_function_without_a_signature_has_numbers_alone():
    parameters = Parameters.of(max, {"static_argnums": 1})
    call = parameters.call((1, 2), {})
    assert parameters.signature is None and parameters.names == ()
    assert texts(call) == ["args[0]", "args[1] = 2"] and call.function()(1) == 2
