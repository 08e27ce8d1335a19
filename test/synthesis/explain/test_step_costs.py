# SPDX-License-Identifier: Apache-2.0
"""The parts of a step's time add up, and the levels are those at which devices meet."""

import pytest

from benchmarks.conversions.pairs import random_pairs, random_reductions
from reshard.synthesis.explain.step_costs import step_costs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.cost import crossed_level
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs.traffic import Collective


@pytest.mark.draws
@pytest.mark.parametrize("topology", ["uniform", "h100:2x4", "v5e:2x4"])
@pytest.mark.parametrize("pair", random_pairs(61, 20, (8,)) + random_reductions(62, 8, (8,)), ids=str)
def test_parts_add_up(pair, topology):
    on = Topology.parse(topology)
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, objective="time", topology=on, with_exchange=True)
    for step, parts in zip(found.steps, step_costs(found, on), strict=True):
        assert parts.op == step.op and (parts.level is None) == (parts.collectives == 0)
        assert parts.latency_s + parts.transfer_s + parts.copies_s == pytest.approx(step.time_s, abs=1e-11)
        assert parts.copies_s == 0 or step.op in ("relayout", "exchange") or parts.copies_s < step.time_s


def test_levels_by_axis():
    on = Topology.parse("h100:2x4")
    ends = (Sharding.parse(text) for text in ('[{"node", "gpu"}]', "[{}]"))
    found = plan(Mesh.parse("node=2,gpu=4"), (8,), 32, *ends, objective="time", topology=on)
    assert [parts.level.name for parts in step_costs(found, on) if parts.level] == ["node"]
    inside = plan(
        Mesh.parse("node=2,gpu=4"), (8,), 32, Sharding.parse('[{"gpu"}]'), Sharding.parse("[{}]"), topology=on
    )
    assert [parts.level.name for parts in step_costs(inside, on) if parts.level] == ["gpu"]


def test_pairs_that_stay_cross_nothing():
    stay = Collective("collective_permute", 4, 4, pairs=((0, 0), (1, 1)))
    assert crossed_level(Topology.parse("h100:2x4"), 8, stay) is None


def test_a_step_to_devices_that_only_the_target_has_is_priced_on_all_devices():
    on = Topology.parse("uniform")
    ends = Sharding.parse('[{"x"}]'), Sharding.parse('[{"z"}]')
    found = plan(Mesh.parse("x=2"), (4,), 32, *ends, topology=on, with_exchange=True, target_mesh=Mesh.parse("z=4"))
    assert sum(parts.collectives for parts in step_costs(found, on)) == found.collectives > 0
