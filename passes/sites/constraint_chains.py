# SPDX-License-Identifier: Apache-2.0
"""Chains of constraints, which one conversion can replace: each but the last has the next as its only user."""

from __future__ import annotations

from reshard.dialect_utils.ir.ops import producer_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.conversions import Conversions
from reshard.passes.sites.findings import Finding, Findings


def constraint_chains(found: Findings, conversions: Conversions) -> dict[int, list[Finding]]:
    """Returns the edges of each chain in order, by the number of the chain's last site; a chain has two edges or more.

    All constraints of a chain are on one mesh and in one block, because the body of a loop runs several times. Only the
    last site of a chain may have other edges. Another edge of an earlier site would use a value between the
    constraints.
    """
    by_op = {edge.op: edge for edge in found.edges if edge.kind == kinds.CONSTRAINT and edge.number == 0}
    followed = _followed(by_op, found.by_site(), conversions)
    chains: dict[int, list[Finding]] = {}
    for op, edge in by_op.items():
        if op in followed:
            continue
        chain = [edge]
        while (before := producer_of(chain[0].op.operands[0])) is not None and before in followed:
            chain.insert(0, by_op[before])
        if len(chain) > 1:
            chains[edge.site] = chain
    return chains


def _followed(
    by_op: dict[ir.Operation, Finding], edges_of: dict[int, list[Finding]], conversions: Conversions
) -> set[ir.Operation]:
    """Returns the constraints whose only user is another constraint, which continues the chain."""
    followed = set()
    for op, edge in by_op.items():
        uses = list(op.results[0].uses)
        if len(edges_of[edge.site]) > 1 or len(uses) != 1 or uses[0].owner not in by_op:
            continue
        shardings = edge.source, edge.target, by_op[uses[0].owner].target
        if uses[0].owner.operation.block == op.block and len({conversions.mesh(each) for each in shardings}) == 1:
            followed.add(op)
    return followed
