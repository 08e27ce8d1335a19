# SPDX-License-Identifier: Apache-2.0
"""The example programs have equal outputs and equal plans with every JAX entry."""

import json

import jax
import numpy as np
import pytest

import reshard
from examples.programs import PROGRAMS

pytestmark = pytest.mark.slow


class JaxWith:
    """The module jax with another `jit`."""

    def __init__(self, jit):
        self.jit = jit

    def __getattr__(self, name):
        return getattr(jax, name)


def plans(report: dict) -> list[tuple]:
    """Returns every site with its chain and verdict."""
    names = ("type", "source", "target", "chain", "verdict", "is_rewritten")
    return sorted(tuple(str(row[name]) for name in names) for row in report["sites"])


def copied(args):
    """Returns copies of the arrays, since a training step donates its state."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), leaf.sharding), args)


def through_jit(_, args, entry, patch, folder):
    """Builds and runs the program with `reshard.jit` in the place of `jax.jit`."""
    options = {"dump_to": str(folder)}
    ours = JaxWith(lambda *args, **kwargs: reshard.jit(*args, reshard_options=options, **kwargs))
    patch.setattr("examples.programs.jax", ours)
    if entry.name.startswith("llama"):
        patch.setattr("examples.llama.jax", ours)
    function, _ = entry.build(entry.mesh(), size="small")
    out = function(*args)
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return out, [found for report in reports if (found := plans(report))]


def through_enabled(function, args, *_):
    with reshard.enabled() as programs:
        out = function(*args)
    return out, [found for each in programs if (found := plans(each.report.to_dict()))]


def through_lowered(function, args, *_):
    result = reshard.optimize(function.lower(*args))
    return result.compile()(*args), [plans(result.report.to_dict())]


def through_exported(function, args, *_):
    """Runs the program through an export of a function on leaves.

    The state of a training step is a pytree of flax's own types, which an export can hold but not serialize.
    """
    leaves, tree = jax.tree.flatten(args)
    result = reshard.optimize(
        jax.export.export(jax.jit(lambda leaves: function(*jax.tree.unflatten(tree, leaves))))(leaves)
    )
    return jax.jit(result.exported.call)(leaves), [plans(result.report.to_dict())]


@pytest.mark.parametrize("emit", ["manual", pytest.param("auto", marks=(pytest.mark.slow, pytest.mark.draws))])
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda entry: entry.name)
def test_outputs_and_plans_are_equal(entry, emit, monkeypatch, tmp_path):
    """With `auto` only the outputs are: an exported program donates nothing, so another form may be the fastest."""
    pytest.importorskip("optax")
    jax.clear_caches()
    monkeypatch.setenv("RESHARD_EMIT", emit)
    monkeypatch.setenv("RESHARD_TOPOLOGY", "cpu")  # an export does not say which devices run it
    function, args = entry.build(entry.mesh(), size="small")
    stock = jax.tree.leaves(function(*copied(args)))
    expected = None
    for through in (through_lowered, through_jit, through_enabled, through_exported):
        with monkeypatch.context() as patch:
            out, found = through(function, copied(args), entry, patch, tmp_path)
        leaves = jax.tree.leaves(out)
        assert len(leaves) == len(stock)
        for mine, theirs in zip(leaves, stock):
            assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim), through.__name__
            np.testing.assert_allclose(
                np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-5, err_msg=through.__name__
            )
        expected = expected or found
        assert expected[0], "there is no site"
        assert emit == "auto" or found == expected, through.__name__
