# SPDX-License-Identifier: Apache-2.0
"""The plan of a site: a chain of typed steps if one leads to the target, else with exchanges and padded tiles."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.dialect_utils.ir.ops import bits_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.sites.network import ANYWHERE, SiteNetwork
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan
from reshard.synthesis.programs import submesh


def site_plan(
    value_type: ir.Type,
    mesh: Mesh,
    source: Sharding,
    target: Sharding,
    manual_axes: Sequence[str] = (),
    target_mesh: Mesh | None = None,
    network: SiteNetwork = ANYWHERE,
) -> Plan:
    """Returns the plan that turns a value of one type from `source` into `target`.

    Args:
      manual_axes: the axes of the manual computation around the value, if any. The plan is on the mesh of the other
        axes.
      target_mesh: the mesh of `target` if it is not `mesh`. It has the same devices. Not inside manual computations.
      network: the plan is the fastest one on its topology. If the network is unknown, and inside manual computations,
        where devices along some axes work without the others, the plan is the one that receives the fewest bytes.

    Plans with exchanges and padded tiles are tried second, with the objective `time`: with the objective `bytes`, many
    small moves would beat one collective.

    Raises: NoPlanError or ValueError if there is none; the message says why.
    """
    if not ir.ShapedType(value_type).has_static_shape:
        raise NoPlanError(f"{value_type} has dynamic dimensions")
    if source.unreduced or target.unreduced:
        raise NoPlanError("islands take and give no unreduced values")
    free = submesh.without(mesh, manual_axes) if manual_axes else mesh
    problem = free, tuple(ir.RankedTensorType(value_type).shape), bits_of(value_type), source, target
    options: dict = {"target_mesh": target_mesh, "memory_limit": network.memory_limit}
    is_by_time = network.is_known and not manual_axes
    if is_by_time:
        options["topology"] = network.topology
    try:
        return plan(*problem, objective="time" if is_by_time else "bytes", **options)
    except NoPlanError as problem_of_steps:
        if manual_axes:
            raise NoPlanError(
                f"{problem_of_steps}, and an exchange inside a manual computation is not supported"
            ) from None
        return plan(*problem, objective="time", with_exchange=True, **options)
