# SPDX-License-Identifier: Apache-2.0
"""The pass decompose-collectives: collectives that a program has already, level by level of the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.ir.ops import short_name
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites.findings import Findings, hand_on_findings, read_findings
from reshard.passes.sites.network import (
    NetworkOptions,
    memory_limit_option,
    platform_option,
    refuse_unfit,
    topology_option,
)
from reshard.passes.sites.oracle import BETTER, POLICIES, STRICT, micros
from reshard.passes.sites.site_numbers import SiteNumbers, leave_option, only_option
from reshard.passes.sites.site_rows import row_of_collective
from reshard.synthesis.common.numbers import counted

if TYPE_CHECKING:  # loading it loads numpy
    from reshard.dialect_utils.hierarchy.faster_chains import InPlace


@dataclasses.dataclass(frozen=True)
class DecomposeCollectivesPass(SiteNumbers, NetworkOptions, Pass):
    """Replaces the collectives in manual computations by the programs that the planner finds for the network."""

    name = "decompose-collectives"
    summary = "replace collectives of the program by cheaper ones, level by level of the network"
    description = """
    Looks at each all_reduce, reduce_scatter, all_gather and all_to_all in the body of a manual computation, such as
    those that `jax.shard_map` makes. Each is a redistribution of an array; where the planner's chain for it is faster
    on the network than one collective over all levels, the chain takes its place: a sum inside the nodes, across them
    on the part that each device has, and a gather inside; values that are the same on several devices of a node, a
    part of them through each; an all_to_all in two hops. A chain sums in another order, so it may round otherwise.

    Compilers for TPUs make an all_reduce of a reduce_scatter that leaves no device whole tiles of memory, such as one
    of a single buffer for all gradients. It is written on `[devices, rows, 128]`, on which it stays one.

    What a program declares to be the same on several devices is taken to be so, also where nothing checks it, as in a
    `jax.shard_map` with `check_vma=False`. Where devices may disagree whether they run a collective, it stays.

    Without a known network nothing changes. When the pass runs again, it leaves the collectives of a chain as they are,
    unless the planner had missed a faster chain, or the program sums or gathers what is the same on several devices.
    Runs alone, or before synthesize-collectives.

    Before ==> after, on two nodes of four devices:
    ```mlir
    %1 = "stablehlo.all_reduce"(%0) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>, ...}> ({...})
        : (tensor<1024xf32>) -> tensor<1024xf32>
    ```
    ```mlir
    %1 = "stablehlo.reduce_scatter"(%0) <{replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>, ...}> ({...})
        : (tensor<1024xf32>) -> tensor<256xf32>
    %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]>, ...}> ({...})
        : (tensor<256xf32>) -> tensor<256xf32>
    %3 = "stablehlo.all_gather"(%2) <{replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>, ...}>
        : (tensor<256xf32>) -> tensor<1024xf32>
    ```
    """
    guarantees = (
        "no tile is larger than the one that a collective took or gave",
        "the types, functions and arguments of the module are what they were",
    )
    takes_findings = True
    statistics = {
        "decomposed": "collectives replaced by a chain",
        "kept": "collectives that no chain is faster than",
        "left": "collectives that no chain can take the place of, or that options leave as they are",
    }

    platform: str = platform_option()
    topology: str = topology_option()
    memory_limit: int = memory_limit_option()
    policy: str = option(
        BETTER,
        "; ".join(f"{name}: {meaning}" for name, meaning in POLICIES.items()),
        choices=tuple(POLICIES),
    )
    keep_sums: bool = option(False, "leave sums of floating-point numbers in the order that XLA gives them")
    only: str = only_option()
    leave: str = leave_option()

    def run(self, module: ir.Module, session: Session) -> None:
        refuse_unfit(module, self.network, session.options.compile_for)
        found = session.handed_on.findings or read_findings(module)
        written = self._decompose(module, found, session) if self.network.is_known else 0
        if found is not None:
            hand_on_findings(module, dataclasses.replace(found), session)
        session.running.is_module_valid = not written
        session.running.is_module_unchanged &= not written

    def _decompose(self, module: ir.Module, found: Findings | None, session: Session) -> int:
        """Writes the chains, counts and reports; returns the number of collectives that are replaced."""
        from reshard.dialect_utils.emission.slice_starts import put_starts_in_range
        from reshard.dialect_utils.emission.tile_emission import Mark, unused_channels  # loads the writers
        from reshard.dialect_utils.hierarchy.faster_chains import LEAST_GAIN

        first = 1 + max((edge.site for edge in found.edges), default=-1) if found is not None else 0
        channels = unused_channels(module)
        written = 0
        planned = list(self._planned(module, session))
        faster = [each for each in planned if each.is_faster]
        if kept := len(planned) - len(faster):
            session.count("kept", kept)
            stay = "stays as it is" if kept == 1 else "stay as they are"
            said = f"no chain is faster by {LEAST_GAIN:.0%} on {self.network.topology.name}"
            session.remark(module.operation, f"{counted(kept, 'collective')} {stay}: {said}")
        for number, each in enumerate(faster, first):
            is_written = self._is_chosen(number, each)
            session.results.report_rows.append(_row(number, each, is_written, session))
            session.count("decomposed" if is_written else "left")
            if is_written:
                op = each.collective.op
                each.collective.replace(each.chain, Mark(channels, f"reshard/{number}", op.location, self.written_for))
                written += 1
        if written:
            put_starts_in_range(module.operation)
        return written

    def _is_chosen(self, number: int, faster: InPlace) -> bool:
        if self.only:
            return number in self.numbers_only
        return number not in self.numbers_left and (self.policy != STRICT or faster.is_strict)

    def _planned(self, module: ir.Module, session: Session) -> Iterator[InPlace]:
        """Yields the collectives that have a chain; the others are counted, and a remark says why."""
        from reshard.dialect_utils.hierarchy.explicit_collectives import NotPlannable, explicit_collectives
        from reshard.dialect_utils.hierarchy.faster_chains import chain_in_place
        from reshard.synthesis.planner.entry import NoPlanError

        for op, collective in list(explicit_collectives(module.operation)):
            try:
                if isinstance(collective, NotPlannable):
                    raise collective
                if self.keep_sums and collective.may_round:
                    raise NotPlannable("in another order it may round otherwise")
                found = chain_in_place(collective, self.network.topology, self.network.memory_limit, self.written_for)
            except (NotPlannable, NoPlanError) as reason:
                session.count("left")
                session.remark(op, f"{short_name(op)} stays as it is: {reason}")
                continue
            yield found


def _why(faster: InPlace) -> str:
    kind = faster.collective.in_groups.kind
    if faster.flat.kind != kind:
        return "compilers for TPUs sum it whole: its parts are no whole tiles of memory"
    return f"the program has one {kind} over all levels of the network"


def _row(number: int, faster: InPlace, is_written: bool, session: Session) -> dict[str, Any]:
    """Returns the report row of a collective, in the form that plan-sites uses."""
    chain, collective = faster.chain, faster.collective
    row = row_of_collective(number, collective, is_written, session, stock_s=faster.flat_s, our_s=faster.chain_s)
    return row | {
        "group": f"{collective.in_groups} {chain.source} {chain.target}",
        "kind": "collective",
        "source": str(chain.source),
        "target": str(chain.target),
        "why": _why(faster),
        "reason": f"modelled time {micros(faster.chain_s)} as a chain, {micros(faster.flat_s)} as it is",
        "chain": chain.chain_text,
        "bytes_received": chain.bytes_received,
        "bound_bytes": chain.bound_bytes,
        "largest_tile_bytes": chain.largest_tile_bytes,
        "collectives": chain.collectives,
        "stock_bytes": faster.flat_bytes,
        "our_bytes": chain.bytes_received,
        "possible": STRICT if faster.is_strict else BETTER,
    }
