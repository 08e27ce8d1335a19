# SPDX-License-Identifier: Apache-2.0
"""Plans: the cheapest chain for a redistribution, with its costs, its bound and its tile program.

>>> mesh = Mesh.parse("x=4,y=2")
>>> source, target = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
>>> found = plan(mesh, (16, 16, 16), 32, source, target)
>>> print(found.chain_text)
all_to_all x: dim 2 -> 1, y: dim 0 -> 1
>>> found.bytes_received, found.bound_bytes
(1792, 1792)
"""

from __future__ import annotations

import functools

from ..layouts.mesh import Mesh
from ..layouts.refinement import NoPlanError
from ..layouts.sharding import Sharding
from ..plans.memory_budget import TooLittleMemory
from ..plans.plan import Plan, PlannedStep
from ..plans.request import Request
from . import planner
from .canonical import canonical, with_names_of
from .plan_cache import planned_or_read

__all__ = ["NoPlanError", "Plan", "PlannedStep", "forget", "pareto", "plan", "planned"]


def plan(mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, target: Sharding, **options) -> Plan:
    """Returns the cheapest plan that leads from `source` to `target`.

    Args:
      shape: the global shape, in elements. bits: the size of an element, e.g. 32 for f32.
      source, target: shardings of one array, on `mesh` and on `target_mesh`; open dimensions and priorities are
        ignored. Along unreduced axes the tiles are partial sums; those of the target may be any that add up to the
        array. On a mesh without axes, which is a single device, `[]` stands for a sharding of any rank.
      options: the arguments that follow, by name.
      objective: "bytes" asks for the fewest received bytes, then the fewest collectives; "time" for the shortest
        modelled time.
      topology: the network; None is `uniform`.
      with_exchange: also consider exchanges, alone or in the middle of a chain, and padded tiles if dimensions do not
        divide. Then every pair has a plan, except in the cases that `Raises` names.
      reduction: the operation that turns partial sums into the array: sum, prod, min, max, and, or.
      target_mesh: a mesh over the same devices, some of them, or more; None is `mesh`.
      effort: the limits of the search for a cheaper chain, or for a proof that none exists, are multiplied by it; see
        `Plan.is_optimal`, `Plan.proved_gap`. With 1 a search takes milliseconds, with 1000 seconds to minutes.
      memory_limit: the largest value of `Plan.peak_bytes`, in bytes per device. If no plan fits in one piece, the plan
        works on slices of the array, one after the other (`chunks.py`).
      tile_limit: the size that a tile between the steps may have, in bytes per device, even if the tiles of source and
        target are smaller. None allows no more than the larger of these two (R2). With larger tiles a plan may need
        fewer collectives: it gathers more than the target needs, then slices.
    Raises:
      ShardingError, MeshError: a sharding does not fit the mesh or the rank.
      TopologyError: the topology does not fit the mesh.
      NoPlanError: without exchange, if dimensions do not divide, axes are cut in two radices, or two meshes share no
        digits. With exchange, if only an exchange of all devices with all others, over thousands of devices, would do,
        or if partial sums are on a mesh with fewer devices than the other mesh. In both cases, if every plan needs more
        than the memory limit; the message has the smallest limit that would be enough.
    Equal problems have equal plans in every process (R5); the names of the axes do not matter. Plans are memoised, and
    plans that took a long search are kept on disk; see `plan_cache`.
    """
    return planned(Request.of(mesh, shape, bits, source, target, **options))


def pareto(
    mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, target: Sharding, **options
) -> tuple[Plan, ...]:
    """Returns the plans that no other plan beats in both modelled time and peak, the fastest first.

    The arguments are those of `plan`, except objective, effort and limits.
    """
    return _pareto(Request.of(mesh, shape, bits, source, target, objective="time", **options))


@functools.lru_cache(maxsize=65536)
def planned(request: Request) -> Plan:
    """Returns the plan of a request; see `plan`."""
    try:
        return with_names_of(request, _planned_canonically(canonical(request)))
    except TooLittleMemory:
        raise  # the message has no names
    except NoPlanError:
        return planner.planned(request)  # says why in the caller's own names


_planned_canonically = functools.lru_cache(maxsize=16384)(planned_or_read)
_pareto = functools.lru_cache(maxsize=4096)(planner.pareto)


def forget() -> None:
    """Empties the memory of plans. The next plans are made again or read from disk; the files on disk stay."""
    for memory in (planned, _planned_canonically, _pareto):
        memory.cache_clear()
