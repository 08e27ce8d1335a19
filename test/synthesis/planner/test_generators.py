# SPDX-License-Identifier: Apache-2.0
"""Generators: a context keeps the cheapest plan that fits, and drops the candidates that are not cheaper."""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.planner.generators import GENERATORS, Context, Searched
from reshard.synthesis.planner.planner import planned
from reshard.synthesis.plans.request import OBJECTIVES, Request
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.search.find_chain import find_chain


def requests(objective: str, **options):
    for pair in random_pairs(96, 40, (8, 12, 16, 24)):
        yield Request.of(
            pair.mesh, pair.shape, 32, pair.source, pair.target, objective=objective, with_exchange=True, **options
        )


def searched(asked: Request, every: bool = False) -> Searched:
    context = Context(asked)
    return Searched(context, find_chain(asked, context.pricing), every)


def candidates(start: Searched):
    for generate in GENERATORS[start.context.request.objective]:
        yield from generate(start)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_candidate_is_cheaper_than_the_plan(objective):
    tried = 0
    for asked in requests(objective):
        start, plan = searched(asked, every=True), planned(asked)
        for candidate in candidates(start):
            found = start.priced(candidate)
            assert start.costing.key(found) >= start.costing.key(plan), str(asked)
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_candidate_that_is_no_cheaper_than_the_best_plan_has_no_plan(objective):
    for asked in requests(objective):
        start = searched(asked)
        assert start.priced(start.found.chain) is None


def test_a_plan_above_the_memory_limit_is_never_the_best_one():
    for asked in requests("time", memory_limit=0):
        start = searched(asked)
        assert start.best is None
        start.take(start.plan)
        assert start.best is None and start.priced(Chain(start.found.chain.source, start.found.chain.steps))
