# SPDX-License-Identifier: Apache-2.0
"""Chains that gather more than the target needs, then slice: one collective in place of two, but a large tile.

R2 forbids them as a rule; a tile limit may allow them. They are faster for small arrays, whose time is that of starting
collectives, and on networks where one large group is faster than many small groups side by side.
"""

from __future__ import annotations

from ..layouts.refinement import Problem
from ..programs.chain import Chain
from ..programs.steps import AllGather, Slice


def gathered_chains(problem: Problem) -> list[Chain]:
    """Returns the chains that gather the misplaced factors, or all, at once, and then slice to the target.

    Args:
      problem: without partial sums.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.refinement import refine
      >>> from ..layouts.sharding import Sharding
      >>> from ..programs.steps import name
      >>> ends = Sharding.parse('[{"x","y"}, {}]'), Sharding.parse('[{"y"}, {}]')
      >>> problem = refine(Mesh.parse("x=2,y=2"), (8, 8), *ends, tile_limit=64)
      >>> [[name(step) for step in chain] for chain in gathered_chains(problem)]
      [['all_gather', 'slice']]
    """
    goals = dict(problem.target.owners)
    every = tuple([factor for factor, _ in problem.source.owners])
    away = tuple([factor for factor, slot in problem.source.owners if goals.get(factor) != slot])
    found: list[Chain] = []
    for gathered in (away, every):
        chain = Chain(problem.source).then(AllGather(gathered))
        if not gathered or chain.largest_tile > problem.largest_tile:
            continue
        held = dict(chain.target.owners)
        lacking = tuple([(factor, slot) for factor, slot in problem.target.owners if held.get(factor) != slot])
        chain = chain.then(*([Slice(lacking)] if lacking else []))
        if chain not in found:
            found.append(chain)
    return found
