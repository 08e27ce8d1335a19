# SPDX-License-Identifier: Apache-2.0
"""Chains that gather more than the target needs, then slice."""

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs import steps
from reshard.synthesis.search.gathered_chains import gathered_chains


def test_chains_gather_what_moves_or_all_there_is():
    ends = Sharding.parse('[{"x"}, {"y"}, {}]'), Sharding.parse('[{"x"}, {}, {"y"}]')
    problem = refine(Mesh.parse("x=2,y=2"), (8, 8, 8), *ends, into_primes=True, tile_limit=512)
    gathers = [[factor.axis for factor in chain[0].factors] for chain in gathered_chains(problem)]
    assert gathers == [["y"], ["x", "y"]]
    assert all(
        steps.apply(steps.apply(problem.source, chain[0]), chain[1]) == problem.target
        for chain in gathered_chains(problem)
    )
