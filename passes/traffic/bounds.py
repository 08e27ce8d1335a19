# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of what collectives are for: of the conversion at a site, and of sums over devices (rule R3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reshard.dialect_utils.ir.ops import bits_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr
from reshard.passes.sites.findings import Finding
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.costing import least_costs
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import submesh
from reshard.synthesis.programs.traffic import Collective


@dataclass(frozen=True, slots=True)
class Bound:
    """What no method goes below, all runs together.

    Attributes:
      bytes_received: by the busiest device. seconds: modelled on the network; None where only bytes are known.
    """

    bytes_received: int
    seconds: float | None = None

    def times(self, runs: int) -> Bound:
        return Bound(self.bytes_received * runs, None if self.seconds is None else self.seconds * runs)

    def of_share(self, share: float) -> Bound:
        """Returns the bound where only a share of each value is moved, since nobody reads the other bits."""
        return Bound(math.ceil(self.bytes_received * share), None if self.seconds is None else self.seconds * share)


def bounds_of_sites(module: ir.Module, edges: Iterable[Finding], topology: Topology) -> dict[int, Bound]:
    """Returns the bounds of one run of the conversion at each site; sites without a static conversion are left out.

    Args:
      module: has the meshes of the edges. topology: the network, fitted to the devices.
    """
    meshes, known, found = module_meshes(module), {}, {}
    for edge in edges:
        if edge.site in found:
            continue
        key = edge.value.type, edge.source, edge.target, edge.manual_axes
        if key not in known:
            known[key] = _conversion_bound(edge, meshes, topology)
        if known[key] is not None:
            found[edge.site] = known[key]
    return found


def bounds_of_rows(rows: Iterable[Mapping[str, Any]], known: Mapping[int, Bound]) -> dict[int, Bound]:
    """Returns the bounds of one run of the conversions that report rows are of.

    The changes of layout of a module that is written per device have numbers of their own, and so have collectives that
    the program has itself.

    Args:
      known: the bounds of the sites that were found in the original.
    """
    own = {row["site"]: Bound(row["bound_bytes"]) for row in rows if row["kind"] in ("local", "collective")}
    is_whole = any(row["kind"] == "local" for row in rows)
    return own if is_whole else {**known, **own}


def _conversion_bound(edge: Finding, meshes: dict[str, Mesh], topology: Topology) -> Bound | None:
    mesh, goal = mesh_of(edge.source, meshes), mesh_of(edge.target, meshes)
    if mesh is None or goal is None or not ir.ShapedType(edge.value.type).has_static_shape:
        return None
    if edge.manual_axes and mesh != goal:
        return None
    if edge.manual_axes:
        mesh = goal = submesh.without(mesh, edge.manual_axes)
    source, target = sharding_from_attr(edge.source), sharding_from_attr(edge.target)
    shape = tuple(ir.RankedTensorType(edge.value.type).shape)
    try:
        network = None if edge.manual_axes else topology  # which of its devices these are is not known
        asked = Request.of(mesh, shape, bits_of(edge.value.type), source, target, target_mesh=goal, topology=network)
        received, seconds = least_costs(asked)
        return Bound(received, None if edge.manual_axes else seconds)
    except ValueError:  # NoPlanError, ShardingError and the like: there is no plan, and no bound either
        return None


def bytes_of(value: ir.Value) -> int | None:
    """Returns the bytes of a whole value; None if its type does not tell."""
    if not isinstance(value.type, ir.RankedTensorType) or not ir.ShapedType(value.type).has_static_shape:
        return None
    try:
        return -(-math.prod(ir.RankedTensorType(value.type).shape) * bits_of(value.type) // 8)
    except ValueError:
        return None


def sums_bound(collective: Collective, kept_bytes: int) -> Bound:
    """Returns the bound of sums over groups of devices, of which each device goes on with a part.

    Each element that anyone in the group of n devices goes on with needs n - 1 transfers until its parts are added up
    somewhere, and one more for each further device that wants the sum. The devices share this evenly at best, and each
    receives at least what it goes on with.

    Args:
      kept_bytes: of the sums, that one device goes on with, from 0 to the whole tile.

    Example: with all sums, the all_reduce is at the bound; with a quarter of them, a reduce_scatter would be.
      >>> summed = Collective("all_reduce", 400, 400, groups=((0, 1, 2, 3),))
      >>> sums_bound(summed, 400).bytes_received, sums_bound(summed, 100).bytes_received
      (600, 300)
    """
    members = max((len(group) for group in collective.groups), default=1)
    if members < 2:
        return Bound(0)
    whole = collective.bytes_before
    wanted = min(whole, members * kept_bytes)
    transfers = wanted * (members - 1) + members * kept_bytes - wanted
    return Bound(max(kept_bytes, transfers // members)).times(collective.trip_count)
