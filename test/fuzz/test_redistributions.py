# SPDX-License-Identifier: Apache-2.0
"""Random redistributions with all combinations of the planner's options; a sample runs in XLA on CPU devices."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from redistributions import Case, check, check_costs, check_words, draw

from reshard.dialect_utils.emission.mini_modules import rewritten_pair
from reshard.dialect_utils.emission.tile_modules import tile_module
from reshard.dialect_utils.xla.child import XlaChild
from reshard.planning.element_types import element_type, mlir_type
from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.network.topology import TopologyError
from reshard.synthesis.planner.entry import NoPlanError, Plan, pareto
from reshard.tools.commands.explain import as_text as explanation
from reshard.tools.commands.plan import Answered
from reshard.tools.commands.plan_text import as_text
from reshard.tools.commands.plan_verify import refusal, verify

ELEMENTS = {
    1: ("bool",),
    4: ("i4", "u4"),
    8: ("i8", "f8E5M2"),
    16: ("bf16", "i16"),
    32: ("f32", "u32"),
    64: ("f64", "c64"),
    128: ("c128",),
}
SUMS = {"and": "bool", "or": "bool", "min": "f32", "max": "bf16", "sum": "i32", "prod": "f64"}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_redistributions(start):
    for seed in range(start, start + 20):
        check(draw(seed))


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 13_000, 250))
def test_thousands_of_random_redistributions(start):
    outcomes = [check(draw(seed)) for seed in range(start, start + 250)]
    assert outcomes.count("refused") < len(outcomes) // 2


def test_a_seed_is_one_case_and_all_options_are_drawn():
    cases = [draw(seed) for seed in range(300)]
    assert cases == [draw(seed) for seed in range(300)]
    for name in ("bits", "objective", "network", "with_exchange", "reduction", "limit"):
        assert len({getattr(case, name) for case in cases}) > 1, name
    assert {len(case.shape) for case in cases} == {0, 1, 2, 3, 4}
    assert any(0 in case.shape for case in cases) and any(case.target_mesh for case in cases)


# ---- alternatives to a plan


def planned_or_none(case: Case, **options) -> Plan | None:
    try:
        return case.planned(**options)
    except (NoPlanError, TopologyError):
        return None


def check_against_others(case: Case) -> None:
    """Asserts that plans with more effort, with exchanges, and on the Pareto list agree with a plan's claims."""
    found = planned_or_none(case, with_exchange=True)
    if found is None:
        return
    more = case.planned(with_exchange=True, effort=20)
    assert cost_of(more, case.objective) <= cost_of(found, case.objective) * (1 + 1e-9), "more effort, a dearer plan"
    if (chain := planned_or_none(case, with_exchange=False)) is not None:
        assert cost_of(found, case.objective) <= cost_of(chain, case.objective) * (1 + 1e-9), (
            "with exchanges it is dearer"
        )
    ends = case.mesh, case.shape, case.bits, case.source, case.target
    options = {
        "topology": case.topology,
        "reduction": case.reduction,
        "target_mesh": case.target_mesh,
        "with_exchange": True,
    }
    plans = pareto(*ends, **options)
    for plan in plans:
        check_costs(plan, case.topology, None)
    for one, other in zip(plans, plans[1:]):
        assert one.time_s <= other.time_s and one.peak_bytes > other.peak_bytes
    assert plans[0].time_s <= case.planned(with_exchange=True, objective="time").time_s
    smallest = case.planned(with_exchange=True, objective="time", memory_limit=plans[-1].peak_bytes)
    assert smallest.time_s <= plans[-1].time_s * (1 + 1e-9), "slower than one on the Pareto list that keeps the limit"


def cost_of(found: Plan, objective: str) -> float:
    return found.time_s if objective == "time" else found.bytes_received


@pytest.mark.mostly_slow
@pytest.mark.parametrize("start", range(500, 560, 20))
def test_no_other_way_shows_a_plan_wrong(start):
    for seed in range(start, start + 20):
        check_against_others(draw(seed))


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(50_000, 51_000, 250))
def test_of_a_thousand_no_other_way_shows_a_plan_wrong(start):
    for seed in range(start, start + 250):
        check_against_others(draw(seed))


# ---- processes

DIGESTS = """
import hashlib, sys
sys.path.insert(0, {here!r})
from redistributions import draw
from reshard.synthesis.planner.entry import NoPlanError
from reshard.synthesis.network.topology import TopologyError
for seed in range(600, 700):
    try:
        found = draw(seed).planned()
        words = repr((found.steps, found.tile_program, found.is_optimal, found.proved_gap, found.to_dict()["totals"]))
    except (NoPlanError, TopologyError) as error:
        words = str(error)
    print(seed, hashlib.sha256(words.encode()).hexdigest())
"""


def digests(**environment: str) -> str:
    program = DIGESTS.format(here=os.path.dirname(__file__))
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return ran.stdout


@pytest.mark.slow
def test_every_process_plans_alike(tmp_path):
    without = digests(RESHARD_CACHE="off", PYTHONHASHSEED="1")
    for seed in ("2", "3"):  # the second reads what the first wrote
        assert digests(RESHARD_CACHE="", RESHARD_CACHE_DIR=str(tmp_path), PYTHONHASHSEED=seed) == without


# ---- XLA


@pytest.fixture(scope="module")
def child():
    with XlaChild() as child:
        yield child


def check_in_xla(seed: int, child: XlaChild) -> None:
    """Asserts that XLA ends with the target's elements and receives the plan's bytes, and that texts can be written."""
    case, name = with_element(draw(seed, most_devices=8))
    found = planned_or_none(case, with_exchange=True)
    if found is None:
        return
    least = planned_or_none(case, with_exchange=True, memory_limit=found.peak_bytes * 3 // 4)
    for plan in filter(None, (found, least)):
        check_words(case, plan, None)
        tensor = mlir_type(element_type(name), case.shape)
        told = Answered(
            replace(plan, dtype=name),
            tensor,
            case.topology.fitted(plan.devices),
            rejected(plan),
            (plan,),
        )
        assert as_text(told) and explanation(told)
        if not plan.steps or refusal(plan):
            continue
        verdict = verify(plan, tensor, child)
        assert verdict.is_verified, f"seed {seed}: {verdict.text}"
        has_sums = plan.source.unreduced or plan.target.unreduced
        compiled = child.compile((tile_module if has_sums else rewritten_pair)(tensor, plan), plan.devices)
        assert compiled.bytes_received == plan.bytes_received, f"seed {seed}: {plan.chain_text}"


def with_element(case: Case) -> tuple[Case, str]:
    """Returns the case with an element type that XLA runs on CPU devices; of two bits XLA writes beyond its buffers."""
    has_sums = case.source.unreduced or case.target.unreduced
    name = (
        SUMS[case.reduction]
        if has_sums
        else random.Random(case.seed).choice(ELEMENTS[4 if case.bits == 2 else case.bits])
    )
    return replace(case, bits=element_type(name).bits), name


@pytest.mark.slow
def test_xla_ends_with_the_same_elements(child):
    for seed in range(800, 812):
        check_in_xla(seed, child)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(2_000, 2_300, 100))
def test_xla_ends_with_the_same_elements_of_hundreds(child, start):
    for seed in range(start, start + 100):
        check_in_xla(seed, child)
