# SPDX-License-Identifier: Apache-2.0
"""The pass join-collectives: small collectives that wait for nothing of each other, as one."""

from __future__ import annotations

import dataclasses

from reshard.dialect_utils.ir.ops import short_name
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites.network import NetworkOptions, platform_option, refuse_unfit, topology_option
from reshard.passes.sites.oracle import ALWAYS, BETTER, micros
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.forms.platforms import CPU, GLOO

_POLICIES = {
    BETTER: "join them where it was seen to pay, which is between processes of CPU devices",
    ALWAYS: "join all that can be one, on all platforms",
}


@dataclasses.dataclass(frozen=True)
class JoinCollectivesPass(NetworkOptions, Pass):
    """Puts the tiles of small collectives of one kind and group into one buffer, for one collective in their place."""

    name = "join-collectives"
    summary = "let one collective do for small ones of the same kind that wait for nothing of each other"
    description = """
    Looks at the all_reduces, reduce_scatters, all_gathers, all_to_alls and collective_permutes in the bodies of manual
    computations. Those of one block with the same groups and type of element, of which none needs the result of
    another, become one: their tiles lie in one buffer. So the latency of a collective is paid once. Only small ones are
    joined, whose bytes take no longer than the latency on the network, and whose copies into the buffer and out of it
    take at most a quarter of it.

    Compilers for TPUs and GPUs join sums, and GPUs gathers too, without copies; in one process of CPU devices the
    latency is short. So nothing changes there, unless `policy=always` says so; nor on an unknown network. A sum of
    floating-point numbers in a larger buffer may be added up in another order, and round otherwise; `keep-sums` leaves
    them. Runs alone, or after convert-to-local.

    Before ==> after:
    ```mlir
    %2 = "stablehlo.all_reduce"(%0) <{...}> ({...}) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %3 = "stablehlo.all_reduce"(%1) <{...}> ({...}) : (tensor<16xf32>) -> tensor<16xf32>
    ```
    ```mlir
    %2 = stablehlo.reshape %0 : (tensor<4x8xf32>) -> tensor<32xf32>
    %3 = stablehlo.concatenate %2, %1, dim = 0 : (tensor<32xf32>, tensor<16xf32>) -> tensor<48xf32>
    %4 = "stablehlo.all_reduce"(%3) <{...}> ({...}) : (tensor<48xf32>) -> tensor<48xf32>
    %5 = stablehlo.slice %4 [0:32] : (tensor<48xf32>) -> tensor<32xf32>
    %6 = stablehlo.reshape %5 : (tensor<32xf32>) -> tensor<4x8xf32>
    %7 = stablehlo.slice %4 [32:48] : (tensor<48xf32>) -> tensor<16xf32>
    ```
    """
    guarantees = (
        "a device receives and sends as many bytes as before",
        "the types, functions and arguments of the module are what they were",
    )
    statistics = {
        "joined": "collectives that are part of another one now",
        "buffers": "collectives that do for several",
        "apart": "sums that list their groups in another order, so that none waits for one behind a loop",
    }

    platform: str = platform_option()
    topology: str = topology_option()
    policy: str = option(
        BETTER, "; ".join(f"{name}: {meaning}" for name, meaning in _POLICIES.items()), choices=tuple(_POLICIES)
    )
    keep_sums: bool = option(False, "leave sums of floating-point numbers in the order that XLA gives them")
    apart: bool = option(False, "keep large sums before a loop from waiting for those behind it, for less memory")
    memory_limit = 0

    def run(self, module: ir.Module, session: Session) -> None:
        refuse_unfit(module, self.network, session.options.compile_for)
        is_asked = self.network.is_known and (self.policy == ALWAYS or self.written_for == GLOO)
        written = self._join(module, session) if is_asked else 0
        written += self._keep_apart(module, session) if self.apart and self.network.is_known else 0
        session.running.is_module_valid = not written
        session.running.is_module_unchanged &= not written

    def _join(self, module: ir.Module, session: Session) -> int:
        """Writes the joined collectives, counts and reports; returns how many there are."""
        from reshard.dialect_utils.hierarchy.joined_collectives import joined_in, write_joined  # loads the writers

        found = joined_in(
            module.operation, self.network.topology, is_always=self.policy == ALWAYS, keeps_sums=self.keep_sums
        )
        for each in found:
            session.count("joined", len(each.ops))
            session.count("buffers")
            what = counted(len(each.ops), short_name(each.ops[0]))
            times = f"modelled time {micros(each.together_s)} together, {micros(each.alone_s)} apart"
            session.remark(each.ops[-1], f"{what} are one: {times}")
        write_joined(found)
        return len(found)

    def _keep_apart(self, module: ir.Module, session: Session) -> int:
        """Keeps sums apart, counts and reports them; returns how many have other groups now."""
        from reshard.dialect_utils.hierarchy.sums_apart import keep_apart

        changed = keep_apart(module.operation, self.network.topology) if self.platform == CPU else []
        for each in changed:
            session.count("apart")
            session.remark(each, "a large sum before the loop does not wait for it: their groups are in another order")
        return len(changed)
