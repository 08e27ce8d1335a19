# SPDX-License-Identifier: Apache-2.0
"""What is said to be proved about a plan holds for every other way that is priced, within the scope that is named."""

import dataclasses
import random

import pytest

import reshard
from benchmarks.conversions.pairs import random_pair, random_reductions
from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.explain.proofs import CHAINS, EVERY_METHOD, Proof, proof_of
from reshard.synthesis.plans.plan_json import bound_tile_bytes

LESS = 1 - 1e-6  # a way costs less only below this share: sums are rounded
NETWORKS = ((8, "uniform"), (8, "h100"), (32, "h100:4"), (16, "v5e:4x4"))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("devices, topology", NETWORKS)
@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_no_priced_way_contradicts_the_proof(devices, topology, objective):
    rng = random.Random(5)
    pairs = [random_pair(rng, devices, least_elements=rng.choice([1, 1 << 20])) for _ in range(12)]
    for pair in [*pairs, *random_reductions(5, 4, (devices,))]:
        ends = str(pair.source), str(pair.target)
        plan = reshard.plan(
            *ends, mesh=str(pair.mesh), shape=pair.shape, dtype="f32", topology=topology, objective=objective
        )
        proof = proof_of(plan)
        rows = [each.plan for each in rejected(plan)]
        is_cheaper = any(cost_of(each) < cost_of(plan) * LESS for each in rows)
        assert proof is None or not (is_cheaper and proof.text.startswith("proved optimal")), str(pair)
        if proof is None:
            continue
        covered = rows if proof.scope == EVERY_METHOD else [each for each in rows if is_chain_within_r2(each, plan)]
        for other in covered:
            assert cost_of(other) * proof.gap >= cost_of(plan) * LESS, (str(pair), proof)


def cost_of(plan) -> float:
    return plan.time_s if plan.objective == "time" else plan.bytes_received


def is_chain_within_r2(other, plan) -> bool:
    has_rounds = any(step.op == "exchange" for step in other.steps)
    return not has_rounds and other.largest_tile_bytes <= max(plan.largest_tile_bytes, bound_tile_bytes(plan))


def plan_of(source: str, target: str, **options):
    return reshard.plan(source, target, mesh="x=2,y=4", shape=(48, 16), dtype="f32", **options)


def test_a_plan_at_the_bound_is_optimal_among_all_methods():
    found = proof_of(plan_of("P('x')", "P(None, 'x')", objective="bytes"))
    assert found == Proof("bytes", EVERY_METHOD, 1.0) and found.text == "proved optimal by bytes"


def test_a_plan_above_the_bound_in_time_is_optimal_among_chains_at_most():
    found = proof_of(plan_of("P('x')", "P(None, 'x')", objective="time"))
    assert found.scope == CHAINS and not found.text.startswith("proved optimal")


def test_a_plan_that_moves_nothing_is_optimal():
    assert proof_of(plan_of("P('x')", "P('x')")).text == "proved optimal by time"


def test_a_plan_that_only_copies_is_not_called_optimal_by_time():
    plan = plan_of("P()", "P(None, 'x')", objective="time")
    copying = dataclasses.replace(plan, steps=tuple(dataclasses.replace(each, time_s=1e-3) for each in plan.steps))
    assert not plan.collectives and plan.steps
    assert proof_of(copying) is None


def test_a_gap_is_rounded_up_and_says_among_what():
    assert Proof("time", EVERY_METHOD, 1.901).text == "within 1.91x of the least time"
    assert Proof("bytes", CHAINS, 1.5).text == (
        "within 1.50x of the fewest bytes of chains within R2, without exchanges"
    )


def test_nothing_is_said_where_nothing_is_proved():
    plan = plan_of("P('x')", "P(None, 'x')", objective="bytes")
    assert proof_of(dataclasses.replace(plan, is_optimal=False, proved_gap=None, bound_bytes=0)) is None
