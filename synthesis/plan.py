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

from . import planner
from .budget import TooLittleMemory
from .canonical import canonical, with_names_of
from .mesh import Mesh
from .plan_cache import planned_or_read
from .planned import Plan, PlannedStep
from .problem import NoPlanError
from .request import OBJECTIVES, Request
from .sharding import Sharding
from .tile_program import REDUCTIONS
from .topology import DEFAULT, Topology

__all__ = ["NoPlanError", "Plan", "PlannedStep", "forget", "pareto", "plan"]


def plan(
    mesh: Mesh,
    shape: tuple[int, ...],
    bits: int,
    source: Sharding,
    target: Sharding,
    *,
    objective: str = "bytes",
    topology: Topology | None = None,
    with_exchange: bool = False,
    reduction: str = "sum",
    effort: int = 1,
    memory_limit: int | None = None,
    target_mesh: Mesh | None = None,
    tile_limit: int | None = None,
) -> Plan:
    """Returns the cheapest way from `source` to `target`.

    Args:
      shape: the global shape, in elements. bits: of one element, e.g. 32 for f32.
      source, target: shardings of one array, on `mesh` and on `target_mesh`; open dimensions and priorities are ignored.
        Along unreduced axes the tiles are partial sums; in the target, any that add up to the array. On a mesh without
        axes, a single device, `[]` serves every rank.
      objective: "bytes", the fewest received bytes, then the fewest collectives; "time", modelled on the topology.
      topology: of the network; None is `uniform`.
      with_exchange: consider exchanges too, in place of a chain, and behind its slices or before its gathers; and padded
        tiles, where dimensions do not divide. Then every pair has a plan, but for those that the errors below name.
      reduction: what makes an array of partial sums: sum, prod, min, max, and, or.
      target_mesh: over the same devices, some of them, or more; None is `mesh`.
      effort: how many times as many steps to consider before a search for a cheaper chain, or for the proof that there is
        none, is given up: `Plan.is_optimal`, `Plan.proved_gap`. 1 is milliseconds, 1000 seconds to minutes.
      memory_limit: the most that `Plan.peak_bytes` may be, in bytes per device; where no plan fits in one piece it works
        on slices of the array, one after the other (`chunks.py`).
      tile_limit: the most that a tile on the way may have, in bytes per device, though those of source and target have less;
        None is R2: what the larger one of these has. Gathering more than the target needs and slicing then takes fewer collectives.
    Raises:
      ShardingError, MeshError: a sharding that does not fit the mesh or the rank.
      TopologyError: a topology that does not fit the mesh.
      NoPlanError: without exchange, dimensions that do not divide, axes in two radices, two meshes that share no digits.
        With it, an exchange of all with all over thousands of devices where nothing else serves, and partial sums on a
        mesh with fewer devices than the other one. A memory limit below what any plan needs, with the least one that would do.
    Same problem, same plan, in every process (R5), whatever its axes are called. Plans are memoised; those that took a search of
    any length are kept on disk, see `plan_cache`.
    """
    if memory_limit is not None and memory_limit < 0:
        raise NoPlanError(f"memory limit {memory_limit} is negative; it is in bytes per device")
    if tile_limit is not None and tile_limit < 0:
        raise NoPlanError(f"tile limit {tile_limit} is negative; it is in bytes per device")
    options = {"effort": effort, "memory_limit": memory_limit, "tile_limit": tile_limit}
    return _planned(_request(mesh, shape, bits, source, target, target_mesh, objective, topology, with_exchange, reduction, **options))


def pareto(
    mesh: Mesh,
    shape: tuple[int, ...],
    bits: int,
    source: Sharding,
    target: Sharding,
    *,
    topology: Topology | None = None,
    with_exchange: bool = False,
    reduction: str = "sum",
    target_mesh: Mesh | None = None,
) -> tuple[Plan, ...]:
    """Returns the plans that no other one beats both in modelled time and in peak, the fastest first.

    The arguments are those of `plan`.
    """
    return _pareto(_request(mesh, shape, bits, source, target, target_mesh, "time", topology, with_exchange, reduction))


def _request(
    mesh, shape, bits, source, target, target_mesh, objective, topology, with_exchange, reduction, *, effort=1, **limits
) -> Request:
    if objective not in OBJECTIVES:
        raise ValueError(f'unknown objective "{objective}"; choose from {", ".join(OBJECTIVES)}')
    if reduction not in REDUCTIONS:
        raise ValueError(f'unknown reduction "{reduction}"; choose from {", ".join(REDUCTIONS)}')
    if effort < 1:
        raise ValueError(f"effort is {effort}; the least is 1")
    source, target = _for_rank(mesh, source, len(shape)), _for_rank(target_mesh or mesh, target, len(shape))
    for on, sharding in ((mesh, source), (target_mesh or mesh, target)):
        sharding.check(on, len(shape))
    if min(shape, default=0) < 0:
        raise NoPlanError(f"shape {list(shape)} has a negative size")
    on = topology or Topology.parse(DEFAULT)
    ends = source.closed(), target.closed()
    goal = None if target_mesh == mesh else target_mesh
    return Request(mesh, tuple(shape), bits, *ends, objective, on, with_exchange, reduction, effort, target_mesh=goal, **limits)


def _for_rank(mesh: Mesh, sharding: Sharding, rank: int) -> Sharding:
    """Returns the sharding; on a single device, where Shardy writes no dimensions, that of `rank`."""
    return Sharding(((),) * rank) if not mesh.axes and sharding == Sharding(()) else sharding


@functools.lru_cache(maxsize=65536)
def _planned(request: Request) -> Plan:
    try:
        return with_names_of(request, _planned_canonically(canonical(request)))
    except TooLittleMemory:
        raise  # which names nothing
    except NoPlanError:
        return planner.planned(request)  # says why in the caller's own names


_planned_canonically = functools.lru_cache(maxsize=16384)(planned_or_read)
_pareto = functools.lru_cache(maxsize=4096)(planner.pareto)


def forget() -> None:
    """Empties the memory of plans, so that the next ones are made anew, or read from disk; what is on disk stays."""
    for memory in (_planned, _planned_canonically, _pareto):
        memory.cache_clear()
