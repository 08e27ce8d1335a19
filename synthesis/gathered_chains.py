# SPDX-License-Identifier: Apache-2.0
"""Chains that gather more than the target needs, and slice then: one collective where others take two, for a large tile.

R2 forbids them as a rule; a tile limit may allow them. Small arrays, whose time is that of starting collectives, are faster so,
and so are those on networks on which large groups talk faster than many small ones beside each other.
"""

from __future__ import annotations

from .problem import Problem
from .steps import AllGather, Slice, Step, apply


def gathered_chains(problem: Problem) -> list[list[Step]]:
    """Returns the chains that gather what is not in its place, or all there is, at once, and slice what the target wants.

    Args:
      problem: without partial sums.

    Example:
      >>> from .mesh import Mesh
      >>> from .problem import refine
      >>> from .sharding import Sharding
      >>> from .steps import name
      >>> ends = Sharding.parse('[{"x","y"}, {}]'), Sharding.parse('[{"y"}, {}]')
      >>> problem = refine(Mesh.parse("x=2,y=2"), (8, 8), *ends, tile_limit=64)
      >>> [[name(step) for step in chain] for chain in gathered_chains(problem)]
      [['all_gather', 'slice']]
    """
    goals = dict(problem.target.owners)
    every = tuple([factor for factor, _ in problem.source.owners])
    away = tuple([factor for factor, slot in problem.source.owners if goals.get(factor) != slot])
    found: list[list[Step]] = []
    for gathered in (away, every):
        layout = apply(problem.source, AllGather(gathered)) if gathered else problem.source
        if not gathered or layout.tile_elements > problem.largest_tile:
            continue
        lacking = tuple([(factor, slot) for factor, slot in problem.target.owners if layout.slot_of(factor) != slot])
        chain = [AllGather(gathered), *([Slice(lacking)] if lacking else [])]
        if chain not in found:
            found.append(chain)
    return found
