# SPDX-License-Identifier: Apache-2.0
"""The steps of programs that XLA compiles: their times add up to the modelled time of the program."""

from pathlib import Path

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.traffic.ledger import Ledger, ledger_of
from reshard.passes.traffic.steps import LoopStep, MoveStep, WorkStep
from reshard.synthesis.network.topology import Topology

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def ledger(name: str, topology: str, **how) -> Ledger:
    text = (EXAMPLES / f"{name}.mlir").read_text()
    with make_context() as context, ir.Location.unknown(context):
        return ledger_of(ir.Module.parse(text), shared_child(), Topology.parse(topology), **how)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("network", ["h100:2x4", "v5e:2x4", "a2mega:2x4"])
@pytest.mark.parametrize("name", ["fft_pencil", "issue_21562", "llama_train_step", "moe_layer"])
def test_the_times_of_all_steps_are_the_modelled_time_of_the_program(name, network):
    found = ledger(name, network, keeps_steps=True)
    assert sum(each.seconds for each in found.steps) == pytest.approx(found.time.seconds, rel=1e-12)
    assert found.time.collectives_s == pytest.approx(found.seconds, rel=1e-12)
    assert found.time.local_s > 0


def test_a_loop_has_its_trips_and_a_collective_its_entry():
    found = ledger("llama_train_step", "h100:2x4", keeps_steps=True)
    loops = [each for each in found.steps if isinstance(each, LoopStep)]
    assert {(each.trip_count, each.body_runs, each.condition_runs) for each in loops} == {(4, 4, 5)}
    inside = [each for loop in loops for each in loop.body if isinstance(each, MoveStep)]
    assert inside and all(each.seconds * 4 == pytest.approx(each.entry.seconds) for each in inside)
    outside = [each for each in found.steps if isinstance(each, MoveStep)]
    assert {id(each.entry) for each in inside + outside} == {id(each) for each in found.entries}


def test_work_names_its_op_and_its_line():
    found = ledger("moe_layer", "h100:2x4", keeps_steps=True)
    products = [each for each in found.steps if isinstance(each, WorkStep) and each.op == "dot_general"]
    assert products and all(each.place.startswith("examples/programs.py:") and each.work.flops for each in products)


def test_steps_are_kept_only_if_asked_for():
    assert ledger("issue_21562", "h100:2x4").steps == ()
