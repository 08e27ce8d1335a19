# SPDX-License-Identifier: Apache-2.0
"""Bounds of rows: no collective that does the same receives less, and the planner's plan is no faster."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import read_findings
from reshard.passes.traffic.bounds import bounds_of_sites, bytes_of, sums_bound
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

SITE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<64x64x{0}> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<64x64x{0}> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
  return %a : tensor<64x64x{0}>
}}
"""
SUMS = st.builds(
    lambda members, part, runs: Collective("all_reduce", 4 * members * part, 4 * members * part,
                                           (tuple(range(members)),), trip_count=runs),
    st.integers(2, 16), st.integers(1, 1000), st.integers(1, 9),
)  # fmt: skip


@given(SUMS)
def test_an_all_reduce_is_at_the_bound_of_all_sums_and_a_reduce_scatter_at_that_of_its_parts(summed):
    members = len(summed.groups[0])
    received = traffic.bytes_received([summed], members)
    assert sums_bound(summed, summed.bytes_before).bytes_received == received
    part = summed.bytes_before // members
    scattered = Collective("reduce_scatter", summed.bytes_before, part, summed.groups, trip_count=summed.trip_count)
    assert sums_bound(summed, part).bytes_received == traffic.bytes_received([scattered], members)


@given(SUMS, st.data())
def test_the_bound_of_sums_grows_with_what_is_kept_and_is_at_least_that(summed, data):
    kept = sorted(data.draw(st.lists(st.integers(0, summed.bytes_before), min_size=2, max_size=2)))
    less, more = (sums_bound(summed, each).bytes_received for each in kept)
    assert less <= more <= traffic.bytes_received([summed], len(summed.groups[0]))
    assert less >= kept[0] * summed.trip_count


def test_devices_that_are_alone_in_their_groups_need_nothing():
    assert sums_bound(Collective("all_reduce", 64, 64, ((0,), (1,))), 64).bytes_received == 0


@pytest.mark.parametrize("topology", ["uniform", "h100:2x4", "v5e:4x2"])
def test_the_bound_of_a_site_is_that_of_the_planner(topology):
    network = Topology.parse(topology).fitted(8)
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(SITE.format("f32"))
        Pipeline.parse("find-mismatches").run(module, Session())
        (bound,) = bounds_of_sites(module, read_findings(module).edges, network).values()
    ends = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')
    planned = plan(Mesh.parse("x=4,y=2"), (64, 64), 32, *ends, objective="time", topology=network)
    assert (bound.bytes_received, bound.seconds) == (planned.bound_bytes, planned.bound_time_s)
    assert bound.bytes_received == 64 * 64 * 4 // 4 * 3 // 4 and 0 < bound.seconds <= sum(
        s.time_s for s in planned.steps
    )
    assert bound.times(3).bytes_received == 3 * bound.bytes_received


@pytest.mark.parametrize("element, expected", [("f32", 16384), ("i1", 4096), ("complex<f32>", 32768)])
def test_the_bytes_of_a_value_are_those_of_its_type(element, expected):
    with make_context() as context:
        module = ir.Module.parse(SITE.format(element), context)
        main = module.body.operations[1]
        assert bytes_of(main.regions[0].blocks[0].arguments[0]) == expected
