# SPDX-License-Identifier: Apache-2.0
"""The most that rewritten sites can gain in a module: a bound for which XLA is asked about none of them.

An island changes how XLA converts a value, and what it makes of the ops on both sides of the conversion. So sites gain
no more than the collectives at these ops take, with a copy before and behind each. Among these are sums of parts: an op
whose operands are gathered sums nothing. But what is split after the conversion along the dimension of a sum is summed
in any case, and a sum that is only converted behind its op may at most be scattered, for half of the time. What moves
at other ops stays. And the conversion itself remains to be done at least once, in the least time of any method, unless
constraints in a row become one. What sites save of the work on one device is not among this.

The bound is of the model, as all times here are. It decides whether anything has to be known about single sites at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.dialect_utils.analysis.op_numbers import NumberedOps, numbers_in
from reshard.dialect_utils.hlo.collectives import CollectiveOp, HloCollectives
from reshard.dialect_utils.ir.loop_trips import Runs
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_in, producer_of
from reshard.dialect_utils.ir.reductions import summed_dims
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.passes.sites.findings import RESULT, Finding
from reshard.passes.traffic.bounds import bounds_of_sites
from reshard.passes.traffic.causes import SUMS
from reshard.synthesis.network import cost
from reshard.synthesis.network.topology import Topology

_SCATTERED = 0.5  # what a reduce_scatter saves of an all_reduce
_COPIES = 4  # passes over the larger tile of a collective: a copy before it and one behind, each read and written


class MostOfSites:
    """The most that rewriting sites of one module gains.

    Args:
      found: the module with findings, whose `edges` are at its ops; `numbered` has the numbers of the same ops.
      collectives: of stock XLA's program right after partitioning.
      topology: the network, fitted to the devices.
    Raises: ValueError if `found` has other ops than those that have numbers.
    """

    def __init__(
        self,
        found: ir.Module,
        edges: Sequence[Finding],
        numbered: NumberedOps,
        collectives: HloCollectives,
        topology: Topology,
    ):
        numbers = numbered.numbers_of(ops_in(found.operation))
        if numbers is None:
            raise ValueError("the module has other ops than those that have numbers")
        self.edges, self._numbers = edges, numbers
        self._bounds, self._runs = bounds_of_sites(found, edges, topology), Runs(found)
        devices = collectives.num_devices
        self._collectives = [
            (_improvable_s(each, devices, topology), each, numbers_in(each.op_name)) for each in collectives.ops
        ]

    def gain_s(self, edges: Sequence[Finding] | None = None) -> float:
        """Returns the most modelled seconds that rewriting the sites of some edges gains; of all if there are none."""
        least_at, shares_of_sums = self._at_sites(self.edges if edges is None else edges)
        taken_at: dict[int, float] = {}
        other_s = 0.0
        for seconds, each, named in self._collectives:
            if each.result is not None or not named:  # of the program's results, or of who knows what
                other_s += seconds
            elif each.collective.kind in SUMS:
                other_s += seconds * max(shares_of_sums.get(number, 0.0) for number in named)
            elif at := [number for number in named if number in least_at]:
                taken_at[at[-1]] = taken_at.get(at[-1], 0.0) + seconds
        return other_s + sum(max(0.0, seconds - least_at[number]) for number, seconds in taken_at.items())

    def _at_sites(self, edges: Sequence[Finding]) -> tuple[dict[int, float], dict[int, float]]:
        """Returns the ops around conversions, with the least seconds that one of those at the op takes, and the share
        of the time of its sums that may be saved."""
        least_at: dict[int, float] = {}
        converted: set[int] = set()
        summed_split: set[int] = set()
        for edge in edges:
            made_by = producer_of(edge.value)
            if (own := self._numbers.get(edge.op)) is not None:
                least_at[own] = max(least_at.get(own, 0.0), self._least_s(edge, made_by))
                summed_split.update([own] if _is_summed_split(edge) else [])
            if made_by is not None and (producer := self._numbers.get(made_by)) is not None:
                converted.add(producer)
        shares = {number: 0.0 if number in summed_split else 1.0 for number in least_at}
        shares |= {number: max(_SCATTERED, shares.get(number, 0.0)) for number in converted}
        return {number: least_at.get(number, 0.0) for number in shares}, shares

    def _least_s(self, edge: Finding, made_by: ir.Operation | None) -> float:
        """Returns the least time of a conversion in a step. What a loop is given may be converted before it, once; what
        is made in it is converted in every turn. One of several constraints in a row may not be done at all."""
        bound = self._bounds.get(edge.site)
        if bound is None or bound.seconds is None:
            return 0.0
        if edge.op.name in CONSTRAINTS or made_by is not None and made_by.name in CONSTRAINTS:
            return 0.0
        return bound.seconds * (1 if made_by is None else self._runs.of(made_by) or 1)


def _is_summed_split(edge: Finding) -> bool:
    """Returns whether the op takes a value split along a dimension over which it sums."""
    dims = sharding_from_attr(edge.target).dims
    return edge.kind != RESULT and any(dims[dim] for dim in summed_dims(edge.op.operation, edge.number))


def _improvable_s(op: CollectiveOp, devices: int, topology: Topology) -> float:
    """Returns the most seconds that may be saved at a collective, with the copies around it."""
    moved = op.collective
    copied = _COPIES * moved.largest_tile_bytes * moved.trip_count
    return cost.collective_time_s(topology, devices, moved) + copied / topology.memory_bandwidth_bytes_per_s
