# SPDX-License-Identifier: Apache-2.0
"""The layouts of finished plans."""

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.plan_layouts import layouts

MESH = Mesh.parse("x=6")
TWO_RADICES = Sharding.parse('[{"x":(1)2}, {}]'), Sharding.parse('[{"x":(1)3}, {}]')


def test_no_layouts_where_an_exchange_leads_between_two_radices():
    found = plan(MESH, (12, 64), 32, *TWO_RADICES, with_exchange=True)
    assert found.chain_text.startswith("exchange") and layouts(found) is None


def test_no_layouts_where_such_an_exchange_runs_in_chunks():
    whole = plan(MESH, (12, 64), 32, *TWO_RADICES, with_exchange=True)
    found = plan(MESH, (12, 64), 32, *TWO_RADICES, with_exchange=True, memory_limit=whole.peak_bytes - 1)
    assert found.chain_text.startswith("4 chunks") and layouts(found) is None


def test_a_layout_before_and_after_each_step_of_a_chain():
    ends = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')
    found = plan(MESH, (12, 66), 32, *ends)
    texts = [layout.text(MESH) for layout in layouts(found)]
    assert len(texts) == 1 + len(found.steps)
    assert (texts[0], texts[-1]) == ("[x*2, 66]", "[12, x*11]")
