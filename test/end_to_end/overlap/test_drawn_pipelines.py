# SPDX-License-Identifier: Apache-2.0
"""Random products and lookups next to collectives: as a pipeline they give what XLA computes of the program as it came,
bit for bit on whole numbers."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
from reshard.synthesis.network.topology import Level, Topology
from test.end_to_end.overlap.drawn import Drawn, drawn
from test.end_to_end.overlap.drawn_lookups import drawn_lookup

PASS = "overlap-collectives"


def a_network(case: Drawn, seed: int) -> str:
    """Returns a network on which blocks go around one way, or both."""
    rng, size = random.Random(seed), case.mesh.size
    if rng.random() < 0.5:
        return option_text(Topology("switch", (Level("chip", size, "switch", 1e9),), 1e12))
    dims = rng.choice([(rows, size // rows) for rows in range(1, size + 1) if size % rows == 0])
    return option_text(Topology("torus", (Level("chip", size, "torus", 1e9, dims=dims),), 1e12))


def overlapped(case: Drawn, seed: int) -> tuple[str, int]:
    """Returns the module after the pass, and how many pipelines it has written."""
    session = Session()
    with make_context():
        module = ir.Module.parse(case.module)
        options = {"policy": "always", "topology": a_network(case, seed)}
        Pipeline.parse(PASS).with_options(options).run(module, session)
        assert module.operation.verify()
        return str(module), session.results.statistics[PASS, "overlapped"]


def checked(seed: int, case_of: Callable[[int], Drawn] = drawn) -> int:
    """Runs both forms of the module of a seed, and returns the number of its pipelines."""
    case = case_of(seed)
    module, written = overlapped(case, seed)
    if not written:
        assert '"stablehlo.collective_permute"' not in module
        return 0
    is_summed_whole = '"stablehlo.all_reduce"' in case.module  # the pipeline ends in a gather
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "all_reduce")[is_summed_whole:]:
        assert f'"stablehlo.{kind}"' not in module, f"seed {seed}: {case.words}"
    rng = np.random.default_rng(seed)
    arguments = [
        rng.integers(-case.most, case.most + 1, shape).astype(numpy_dtype(case.element)) for shape in case.shapes
    ]
    stock, ours = (shared_child().run(text, arguments, case.mesh.size) for text in (case.module, module))
    assert stock.status == ours.status == "ok", f"seed {seed}: {case.words}: {stock.message} {ours.message}"
    for mine, theirs in zip(ours.outputs, stock.outputs, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, err_msg=f"seed {seed}: {case.words}")
    return written


@pytest.mark.slow
def test_random_products_are_the_same():
    assert sum(map(checked, range(16))) >= 10


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1600, 50))
def test_many_random_products_are_the_same(start):
    assert sum(map(checked, range(start, start + 50))) >= 30


@pytest.mark.slow
def test_random_lookups_are_the_same():
    assert sum(checked(seed, drawn_lookup) for seed in range(16)) >= 6


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(2000, 2600, 25))
def test_many_random_lookups_are_the_same(start):
    assert sum(checked(seed, drawn_lookup) for seed in range(start, start + 25)) >= 10
