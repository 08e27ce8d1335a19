# SPDX-License-Identifier: Apache-2.0
"""Interrupts at some random moments; `test/fuzz/interrupts.py` has more of them."""

import interrupts
import pytest


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("of", ["optimize", "opt"])
def test_what_is_answered_after_an_interrupt_is_what_a_clean_process_answers(of):
    found = interrupts.run(range(1000, 1002), of, lambda text: None)
    assert not found.faults, "\n".join(found.faults)
    assert sum(found.outcomes.values()) == 2


def test_each_site_of_its_modules_is_another_question():
    text = interrupts.module_text(0, sites=4) + interrupts.module_text(1, sites=4)
    kinds = [line.partition(" : ")[2] for line in text.splitlines() if "stablehlo.tanh" in line]
    assert len(set(kinds)) == len(kinds) == 8
