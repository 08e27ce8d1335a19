# SPDX-License-Identifier: Apache-2.0
"""What is held in memory while a loop runs, so that it is converted or summed once: the values of one device, once."""

import functools
import itertools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.passes.driver import registry
from test.end_to_end.local import test_partial_sums
from test.end_to_end.local.drawn import mesh
from test.end_to_end.local.test_partial_sums import BATCH, LOOP, TURNS, WIDTH

__all__ = ["mesh"]  # a fixture

ALL = 10**12
MOVES = ("all_gather", "all_to_all", "all_reduce", "reduce_scatter")
EVERY = ("x", "y", "z")


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def _both(mesh, program, args, specs, out, hold: int = ALL):
    """Returns the outputs of one device, and those and the text of the program written per device."""
    jax.clear_caches()
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    lowered = jax.jit(program, out_shardings=NamedSharding(mesh, out)).lower(*placed)
    pipeline = f"import-gspmd,convert-to-local{{hold={hold}}}"
    with mock.patch.dict(registry.EMISSIONS, {"local": pipeline}):
        result = reshard.optimize(lowered, emit="local")
    return jax.tree.leaves(program(*args)), jax.tree.leaves(result.compile()(*placed)), str(result.module)


def _without_places(text: str) -> str:
    return re.sub(r" ?loc\(.*?\)|^#loc.*$", "", text, flags=re.MULTILINE)


def _in_loops(text: str) -> str:
    return "".join(LOOP.findall(text))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("out", [P(("x", "y")), P(None, ("y", "x")), P("x", "z")])
@pytest.mark.parametrize("program", (*test_partial_sums.ONCE, *test_partial_sums.OTHERS))
def test_sums_of_a_split_result_are_those_of_one_device(mesh, program, out):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, BATCH, WIDTH)
    if program is test_partial_sums._stacked:
        out = P(None, *out)
    if program is test_partial_sums._is_an_output:
        out = P()
    wanted, got, _ = _both(mesh, program, args, (P("x", "z"), P(None, ("x", "y"))), out)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("program", [each for each in test_partial_sums.ONCE if "stacked" not in each.__name__])
def test_parts_are_reduced_and_scattered_behind_the_loop(mesh, program):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, BATCH, WIDTH)
    *_, text = _both(mesh, program, args, (P("x", "z"), P(None, ("x", "y"))), P(("x", "y")))
    assert "reduce_scatter" in text and "all_reduce" not in text
    assert "reduce" not in _in_loops(text).replace("stablehlo.reduce(", "")


def test_less_memory_than_a_sum_holds_none_of_it(mesh):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, BATCH, WIDTH)
    specs, out, kept = (P("x"), P(None, ("x", "y"))), P(("x", "y")), WIDTH * WIDTH * 4 * 3 // 4
    texts = [_both(mesh, test_partial_sums._added, args, specs, out, hold)[2] for hold in (kept - 1, kept)]
    in_turn, behind = (any(each in _in_loops(text) for each in MOVES) for text in texts)
    assert in_turn and not behind


def _two_sums(start, xs):
    def turn(totals, x):
        small, large = totals
        return (small + x.T @ x, large + jnp.concatenate([x, x], 1).T @ x), None

    return lax.scan(turn, (start, jnp.concatenate([start, start])), xs)[0]


def test_of_two_sums_the_larger_is_held_if_there_is_memory_for_one(mesh):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, BATCH, WIDTH)
    specs, large = (P("x"), P(None, EVERY)), 2 * WIDTH * WIDTH * 4 * 7 // 8
    wanted, got, text = _both(mesh, _two_sums, args, specs, P(EVERY), hold=large)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert f"tensor<{2 * WIDTH}x{WIDTH}xf32>" in text.split("stablehlo.while")[1].split("cond {")[0]
    assert any(each in _in_loops(text) for each in MOVES)


def _weights_in_turn(w, xs):
    return lax.scan(lambda total, x: (total + jnp.sum(jnp.abs(x @ w), 0), None), jnp.zeros(WIDTH), xs)[0]


def _layers(w, xs):
    """A scan over layers in a scan over parts of a batch, and the gradient of it."""

    def loss(w, x):
        return jnp.sum(lax.scan(lambda x, each: (x @ each, None), x, w)[0] ** 2)

    gradient = jax.grad(loss)
    return lax.scan(lambda total, x: (total + gradient(w, x), None), jnp.zeros_like(w), xs)[0]


def _narrow_layers(w, xs):
    """The same, as trainers have it: the layers are the second dimension of the weights, and each is narrowed in its
    turn, and computed anew on the way back."""

    def loss(w, x):
        def layer(x, each):
            half = lax.dot(x.astype(jnp.bfloat16), each.astype(jnp.bfloat16).T, preferred_element_type=jnp.float32)
            return jnp.clip(half, -3, 3), None

        return jnp.sum(lax.scan(jax.checkpoint(layer), x, jnp.transpose(w, (1, 0, 2)))[0] ** 2)

    gradient = jax.grad(loss)
    return lax.scan(lambda total, x: (total + jnp.clip(gradient(w, x), -3, 3), None), jnp.zeros_like(w), xs)[0]


def _branch(w, xs):
    def turn(total, x):
        return total + lax.cond(x[0, 0] > 0, lambda: jnp.sum(x @ w, 0), lambda: jnp.sum(x @ w.T, 0)), None

    return lax.scan(turn, jnp.zeros(WIDTH), xs)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "shape", "out"),
    [
        (_weights_in_turn, (WIDTH, WIDTH), P()),
        (_layers, (2, WIDTH, WIDTH), P(None, EVERY)),
        (_narrow_layers, (WIDTH, 2, WIDTH), P(EVERY)),
    ],
)
def test_weights_are_gathered_once_before_the_loop(mesh, program, shape, out):
    batch = 1024  # more than weights have, so that these are gathered
    args = _numbers(0, *shape), _numbers(1, TURNS, batch, WIDTH)
    specs = (P(None, EVERY) if shape[0] == 2 else P(EVERY)), P(None, EVERY)
    wanted, got, text = _both(mesh, program, args, specs, out)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert "all_gather" in text.split("stablehlo.while")[0]
    assert "all_gather" not in _in_loops(text)
    assert "all_gather" in _in_loops(_both(mesh, program, args, specs, out, hold=0)[2])


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "weights",
    [P("x", None, ("y", "z")), P(None, None, EVERY), P(("x", "y"), None, "z"), P(("z", "x")), P(None, "y", "x")],
)
def test_layers_that_are_split_in_other_ways_have_the_values_of_one_device(mesh, weights):
    args = _numbers(2, WIDTH, 2, WIDTH), _numbers(3, TURNS, 64, WIDTH)
    wanted, got, _ = _both(mesh, _narrow_layers, args, (weights, P(None, ("x", "y"))), weights)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _quantized_layers(w, xs):
    """Weights that each turn rounds to integers of a type and takes as floats again, in two scans."""

    def layer(x, each):
        return jnp.clip(x @ each.astype(jnp.int8).astype(jnp.float32), -3, 3), None

    def turn(total, x):
        there = lax.scan(layer, x, w)[0]
        return total + jnp.sum(lax.scan(layer, there, w, reverse=True)[0], 0), None

    return lax.scan(turn, jnp.zeros(WIDTH), xs)[0]


@pytest.mark.parametrize("out", [P(), P("x")])
def test_layers_travel_as_the_integers_that_they_are_rounded_to(mesh, out):
    args = _numbers(4, 2, WIDTH, WIDTH), _numbers(5, TURNS, 1024, WIDTH)
    wanted, got, text = _both(mesh, _quantized_layers, args, (P(None, EVERY), P(None, EVERY)), out)
    np.testing.assert_array_equal(got[0], wanted[0])
    assert re.search(r'"stablehlo.all_gather".*xi8>', text.split("stablehlo.while")[0])
    assert "all_gather" not in _in_loops(text)


def test_what_a_branch_takes_is_not_gathered_before_the_loop(mesh):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, 1024, WIDTH)
    wanted, got, text = _both(mesh, _branch, args, (P(EVERY), P(None, EVERY)), P())
    np.testing.assert_array_equal(got[0], wanted[0])
    assert "all_gather" not in text.split("stablehlo.while")[0]


def _of_a_few_rows(w, xs):
    """The gradient of some rows of a table: a part of it in each turn, and zeros."""

    def turn(total, x):
        return total + jnp.pad(x.T @ x, ((0, 256 - WIDTH), (0, 0))), None

    return lax.scan(turn, w, xs)[0]


def test_a_sum_that_padding_makes_larger_than_all_turns_together_is_reduced_in_each_turn(mesh):
    args = np.zeros((256, WIDTH), np.float32), _numbers(1, TURNS, BATCH, WIDTH)
    wanted, got, text = _both(mesh, _of_a_few_rows, args, (P(), P(None, EVERY)), P(), hold=0)
    np.testing.assert_array_equal(got[0], wanted[0])
    assert re.findall(r"\}\) : \((tensor<.*?>)\) ->", text) == [f"tensor<{WIDTH}x{WIDTH}xf32>"]  # of an all_reduce


def test_what_is_added_up_without_partial_sums_is_not_held(mesh):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, WIDTH, WIDTH)

    def added(start, xs):
        return lax.scan(lambda total, x: (total + jnp.round(jnp.tanh(x) * 4), None), start, xs)[0]

    def rounded(start, xs):  # not linear in the partial sums
        return lax.scan(lambda total, x: (total + jnp.round(x.T @ x / 4), None), start, xs)[0]

    for program, batch in ((added, None), (rounded, EVERY)):
        specs = P(EVERY), P(None, batch)
        wanted, got, held = _both(mesh, program, args, specs, P(EVERY))
        np.testing.assert_array_equal(got[0], wanted[0])
        assert _without_places(held) == _without_places(_both(mesh, program, args, specs, P(EVERY), hold=0)[2])


def _twice(w, xs):
    first = lax.scan(lambda total, x: (total + jnp.sum(jnp.abs(x @ w), 0), None), jnp.zeros(WIDTH), xs)[0]
    return lax.scan(lambda total, x: (total + jnp.sum(jnp.square(x @ w), 0), None), first, xs)[0]


def test_a_tile_that_is_held_serves_the_next_loop_as_well(mesh):
    args = _numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, 1024, WIDTH)
    wanted, got, text = _both(mesh, _twice, args, (P(EVERY), P(None, EVERY)), P(), hold=WIDTH * WIDTH * 4)
    np.testing.assert_array_equal(got[0], wanted[0])
    assert text.count('"stablehlo.all_gather"') == 1 and "all_gather" not in _in_loops(text)


# Caches that loops write parts of: what is written moves, and not the caches.

LAYERS, SEQUENCES, LENGTH, FEATURES = 4, 16, 512, 32
SPLIT = P(("x", "y", "z"))


def _read(x, cache):
    return x + jnp.max(cache, axis=1)


def _stacked_caches(split, cache, prompt, x, at):
    """Returns the cache as a scan returns it, that of the prompt, which it only reads, and what it computes."""

    def layer(x, own):
        cache, prompt = own
        new = split(x[:, None] - 1)
        cache = lax.dynamic_update_slice(cache, new, (0, at, 0))
        return split(_read(_read(x, cache), prompt)), (cache, prompt)

    x, (cache, prompt) = lax.scan(layer, x, (cache, prompt))
    return cache, prompt, x


def _caches_in_place(split, cache, prompt, x, at):
    """Returns the same of a loop that carries the cache."""

    def layer(number, carried):
        cache, x = carried
        new = split(x[:, None] - 1)
        cache = lax.dynamic_update_slice(cache, new[None], (number, 0, at, 0))
        x = _read(_read(x, lax.dynamic_index_in_dim(cache, number, keepdims=False)), prompt[0])
        return cache, split(x)

    cache, x = lax.fori_loop(0, LAYERS, layer, (cache, x))
    return cache, prompt, x


def _at_own_places(split, cache, prompt, x, at):
    """Returns the same where each sequence writes its token at a place of its own."""
    places = at + jnp.arange(SEQUENCES, dtype=np.int32)

    def layer(number, carried):
        cache, x = carried
        own = lax.dynamic_index_in_dim(cache, number, keepdims=False)
        own = jax.vmap(lambda rows, new, place: lax.dynamic_update_slice(rows, new[None], (place, 0)))(
            own, x - 1, places
        )
        x = split(_read(_read(x, own), prompt[0]))
        return lax.dynamic_update_index_in_dim(cache, own, number, 0), x

    cache, x = lax.fori_loop(0, LAYERS, layer, (cache, x))
    return cache, prompt, x


@pytest.mark.parametrize(
    ("program", "around"),
    [
        *itertools.product([_stacked_caches, _caches_in_place], [P(), P(None, None, None, "z")]),
        (_at_own_places, P()),
    ],
)
def test_only_what_is_written_to_a_cache_moves(mesh, program, around):
    jax.clear_caches()
    caches = [_numbers(seed, LAYERS, SEQUENCES, LENGTH, FEATURES) for seed in (0, 1)]
    args, specs = (*caches, _numbers(2, SEQUENCES, FEATURES), np.int32(7)), (around, around, SPLIT, P())
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    results = tuple(NamedSharding(mesh, spec) for spec in (around, around, SPLIT))
    split = functools.partial(lax.with_sharding_constraint, shardings=NamedSharding(mesh, SPLIT))
    lowered = jax.jit(functools.partial(program, split), out_shardings=results).lower(*placed)
    result = reshard.optimize(lowered, emit="local", topology="v5e:2x4")
    for wanted, got in zip(program(lambda x: x, *args), result.compile()(*placed), strict=True):
        np.testing.assert_array_equal(got, wanted)
    text = str(result.module)
    moved = re.findall(r'"stablehlo\.(?:all_|collective_)\w+".*?-> tensor<(\S+?)xf32>', text)
    sizes = [np.prod([int(each) for each in shape.split("x")]) for shape in moved]
    assert sizes and max(sizes) <= SEQUENCES * FEATURES, "more than a token moves"
    assert LOOP.search(text)
