# SPDX-License-Identifier: Apache-2.0
"""Programs of small collectives, apart and as one: what is asked, and what counts as right."""

import pytest

from benchmarks.networks.joined import KINDS, STOCK, TOGETHER, Job, Measured, job_of
from reshard.dialect_utils.xla.child import shared_child
from reshard.synthesis.network.topology import Topology


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_have_the_same_values_and_small_collectives_are_taken(kind):
    job = job_of(kind, 3, 512, Topology.parse("ethernet:2x4"))
    ran = [shared_child().run(job.texts[form], None, 8) for form in (STOCK, TOGETHER)]
    assert [each.status for each in ran] == ["ok", "ok"]
    assert all((ours == theirs).all() for ours, theirs in zip(ran[1].outputs, ran[0].outputs, strict=True))
    assert job.is_taken and job.modelled > 2
    assert [job.texts[form].count('"stablehlo.all_') for form in (STOCK, TOGETHER)] == [3, 1]


def test_what_does_not_fit_into_one_buffer_is_left_apart():
    job = job_of("sums", 2, 1 << 19, Topology.parse("ethernet:2x4"))
    assert not job.is_taken and job.texts[STOCK].count("all_reduce") == job.texts[TOGETHER].count("all_reduce")


@pytest.mark.parametrize(
    ("is_taken", "together_s", "is_equal", "is_right"),
    [(True, 0.9, True, True), (True, 1.1, True, False), (False, 1.1, True, True), (False, 0.9, False, False)],
)
def test_right_is_what_has_equal_values_and_is_not_slower_if_it_is_taken(is_taken, together_s, is_equal, is_right):
    job = Job("sums", 2, 8, {}, is_taken, 1.0)
    assert Measured(job, {STOCK: 1.0, TOGETHER: together_s}, is_equal).is_right == is_right
