# SPDX-License-Identifier: Apache-2.0
"""The most that rewritten sites can gain in a module: a bound for which XLA is asked about none of them.

An island changes how XLA converts a value, and what it makes of the ops on both sides of the conversion. So sites gain
no more than the collectives at these ops take, with a copy before and behind each; a sum of parts has to be computed in
any case, but may be scattered for half of the time. What moves at other ops stays. And the conversion itself remains
to be done at least once, in the least time of any method.

The bound is of the model, as all times here are. It decides whether anything has to be known about single sites at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshard.dialect_utils.analysis.op_numbers import NumberedOps, numbers_in
from reshard.dialect_utils.ir.loop_trips import Runs
from reshard.dialect_utils.ir.ops import ops_in, producer_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.xla.hlo_collectives import CollectiveOp, HloCollectives
from reshard.passes.sites.findings import Finding
from reshard.passes.traffic.bounds import bounds_of_sites
from reshard.passes.traffic.causes import SUMS
from reshard.synthesis.network import cost
from reshard.synthesis.network.topology import Topology

_OF_SUMS = 0.5  # what a reduce_scatter saves of an all_reduce
_COPIES = 4  # passes over the larger tile of a collective: a copy before it and one behind, each read and written


def most_gain_s(
    found: ir.Module,
    edges: Sequence[Finding],
    numbered: NumberedOps,
    collectives: HloCollectives,
    topology: Topology,
) -> float | None:
    """Returns the most modelled seconds that rewriting sites gains; None if that is not known.

    Args:
      found: a module with findings, whose `edges` are at its ops; `numbered` has the numbers of the same ops.
      collectives: of stock XLA's program right after partitioning.
      topology: the network, fitted to the devices.
    """
    numbers = numbered.numbers_of(ops_in(found.operation))
    if numbers is None:
        return None
    least_at, summed = _at_sites(found, edges, numbers, topology)
    taken_at: dict[int, float] = {}
    unknown_s = 0.0
    for each in collectives.ops:
        is_sum = each.collective.kind in SUMS
        seconds = _improvable_s(each, collectives.num_devices, topology)
        at = [number for number in numbers_in(each.op_name) if number in (summed if is_sum else least_at)]
        if is_sum and at or each.result is not None or not each.op_name:  # or of who knows what
            unknown_s += seconds
        elif at:
            taken_at[at[-1]] = taken_at.get(at[-1], 0.0) + seconds
    return unknown_s + sum(max(0.0, seconds - least_at[number]) for number, seconds in taken_at.items())


def _at_sites(
    found: ir.Module, edges: Sequence[Finding], numbers: Mapping[ir.Operation, int], topology: Topology
) -> tuple[dict[int, float], set[int]]:
    """Returns the ops around conversions, with the least seconds that one of those at the op takes, and the ops whose
    results are converted."""
    bounds, runs = bounds_of_sites(found, edges, topology), Runs(found)
    least_at: dict[int, float] = {}
    converted: set[int] = set()
    for edge in edges:
        bound = bounds.get(edge.site)
        made_by = producer_of(edge.value)
        seconds = (bound.seconds or 0.0) if bound is not None else 0.0
        # What a loop is given may be converted before it, once; what is made in it is converted in every turn.
        least_s = seconds * (1 if made_by is None else runs.of(made_by) or 1)
        own, producer = numbers.get(edge.op), numbers.get(made_by)
        if own is not None:
            least_at[own] = max(least_at.get(own, 0.0), least_s)
        if producer is not None:
            converted.add(producer)
            least_at.setdefault(producer, 0.0)
    return least_at, converted


def _improvable_s(op: CollectiveOp, devices: int, topology: Topology) -> float:
    """Returns the most seconds that may be saved at a collective, with the copies around it."""
    moved = op.collective
    seconds = cost.collective_time_s(topology, devices, moved)
    if moved.kind in SUMS:
        return _OF_SUMS * seconds
    copied = _COPIES * moved.largest_tile_bytes * moved.trip_count
    return seconds + copied / topology.memory_bandwidth_bytes_per_s
