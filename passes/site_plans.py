# SPDX-License-Identifier: Apache-2.0
"""The plan of a site: by typed steps where these lead to the target, else with exchanges and padded tiles."""

from __future__ import annotations

from reshard.dialect_utils.bindings import ir
from reshard.dialect_utils.mini_modules import bits_of
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.plan import NoPlanError, Plan, plan
from reshard.synthesis.sharding import Sharding


def site_plan(value_type: ir.Type, mesh: Mesh, source: Sharding, target: Sharding) -> Plan:
    """Returns the plan that turns a value of one type from `source` into `target`.

    Exchanges and padded tiles come second, and the fastest of these: by bytes many small moves would beat one collective.

    Raises: NoPlanError or ValueError if there is none; the message says why.
    """
    if not ir.ShapedType(value_type).has_static_shape:
        raise NoPlanError(f"{value_type} has dynamic dimensions")
    if source.unreduced or target.unreduced:
        raise NoPlanError("islands take and give no unreduced values")
    problem = mesh, tuple(ir.RankedTensorType(value_type).shape), bits_of(value_type), source, target
    try:
        return plan(*problem)
    except NoPlanError:
        return plan(*problem, objective="time", with_exchange=True)
