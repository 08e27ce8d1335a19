# SPDX-License-Identifier: Apache-2.0
"""The pass overlap-collectives: collectives next to products, as pipelines whose blocks travel meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.ir.ops import LOOPS, ops_in, replace_content, short_name
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites.network import NetworkOptions, platform_option, refuse_unfit, topology_option
from reshard.passes.sites.oracle import ALWAYS, BETTER, STRICT, micros
from reshard.passes.sites.site_numbers import SiteNumbers, leave_option, only_option
from reshard.passes.sites.site_rows import row_of_collective
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.forms.platforms import CPU

if TYPE_CHECKING:  # loading them loads numpy
    from reshard.dialect_utils.emission.tile_emission import Mark
    from reshard.dialect_utils.kernels.patterns import KernelCall
    from reshard.dialect_utils.overlap.candidates import Pipeline
    from reshard.dialect_utils.overlap.prefetch import Prefetch
    from reshard.synthesis.overlap.pipelines import Span

LEAST_GAIN = 0.05  # share of the modelled time of a collective and its products; below, the model may be wrong about it
_LESS = "another pipeline of the same product or collective gains more"
_POLICIES = {
    BETTER: "write the pipelines that are faster by their modelled time",
    ALWAYS: "write every pipeline that there can be",
}
STABLEHLO, _KERNELS = "stablehlo", "kernels"
_A_KERNEL = "a kernel: "  # how a report row says that a pipeline is one; checks read it
_FUSE = {
    STABLEHLO: "blocks are operations of StableHLO",
    _KERNELS: "a product and the all_to_all or all_reduce behind it, or a lookup and the all_to_all behind it, are a "
    "Pallas kernel, on TPUs that it is for",
}


@dataclasses.dataclass(frozen=True)
class OverlapCollectivesPass(SiteNumbers, NetworkOptions, Pass):
    """Cuts collectives and the products next to them into blocks, so that some travel while others are multiplied."""

    name = "overlap-collectives"
    summary = "let blocks of collectives travel while products of other blocks are computed"
    description = """
    Looks at the bodies of manual computations, such as those that `jax.shard_map` makes and those of the islands that
    `convert-to-local` writes, for an all_gather or all_to_all whose tile products take, and for a product that only a
    reduce_scatter, all_to_all or all_reduce takes; conversions of numbers and transposes may lie between. A lookup in
    a table that only such a collective takes is cut in the same way; sums of bags of rows, reshapes and broadcasts may
    lie behind it, too.

    A pipeline takes their place if it is faster on the network: blocks go around a ring of neighbours by
    collective_permutes, in both directions where the network is a torus, or directly to who gets them, and each is
    multiplied when it is there, or leaves when it is computed. No device holds the gathered tile, or the whole product,
    any more, unless something else needs it as a whole; an all_reduce ends in an all_gather. Of the collectives next to
    one product the one that gains most is taken.

    In a loop, an all_gather or all_to_all of what a trip takes from outside, such as the weights of one layer, may come
    one trip ahead: the loop carries it, and each trip brings it for the next one once its own is used. It is written
    if too little could run beside it as it is. Calls in such loops are inlined.

    A sum that is scattered, and a product over a gathered dimension, are added up in another order, so they may round
    otherwise; `keep-sums` leaves them. Whether a pipeline is faster is decided by a model: of the products, a roofline
    with the figures of the topology, of lookups the bytes that they read and write; of each hop, the planner's cost;
    and who waits for whom. On CPU devices nothing runs beside a collective, so nothing changes. Runs alone, or after
    synthesize-collectives or convert-to-local.

    With `fuse=kernels` a product or a lookup of rows and the all_to_all behind it, and a product of few rows and the
    all_reduce behind it, become the call of a kernel that computes blocks and sends them to other devices itself. Where
    there is no kernel, a remark says why, and the pipeline is written.

    Before ==> after, on two devices:
    ```mlir
    %1 = "stablehlo.all_gather"(%0) <{all_gather_dim = 0 : i64, ...}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : ... -> tensor<8x16xf32>
    ```
    ```mlir
    %1 = "stablehlo.collective_permute"(%0) <{source_target_pairs = dense<[[0, 1], [1, 0]]>, ...}> : ...
    %2 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : ... -> tensor<4x16xf32>
    %3 = stablehlo.dynamic_update_slice %zeros, %2, %own, %c0 : ... -> tensor<8x16xf32>
    %4 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : ... -> tensor<4x16xf32>
    %5 = stablehlo.dynamic_update_slice %3, %4, %other, %c0 : ... -> tensor<8x16xf32>
    ```
    """
    guarantees = (
        "a device receives as many bytes as before; where a loop brings something one trip ahead, those of a trip more",
        "the types, public functions and arguments of the module are what they were",
    )
    statistics = {
        "overlapped": "collectives replaced by a pipeline, or brought one trip ahead",
        "kernels": "pipelines that are kernels",
        "kept": "collectives next to products that no pipeline is faster than",
        "left": "collectives next to products that cannot be cut, or that options leave as they are",
    }

    platform: str = platform_option()
    topology: str = topology_option()
    policy: str = option(
        BETTER, "; ".join(f"{name}: {meaning}" for name, meaning in _POLICIES.items()), choices=tuple(_POLICIES)
    )
    keep_sums: bool = option(False, "leave sums of floating-point numbers in the order that XLA gives them")
    may_hold_more: bool = option(
        False, "take pipelines that hold more than the tile between collective and product, too"
    )
    any_gain: bool = option(
        False, "take pipelines that are faster by less than the model may be wrong, too: a compiler is asked about them"
    )
    sends_only: bool = option(False, "leave products that take what a collective brings; cut those that are sent")
    fuse: str = option(
        STABLEHLO, "; ".join(f"{name}: {meaning}" for name, meaning in _FUSE.items()), choices=tuple(_FUSE)
    )
    only: str = only_option()
    leave: str = leave_option()
    first: int = option(0, "the number of the first pipeline")
    memory_limit = 0

    def run(self, module: ir.Module, session: Session) -> None:
        refuse_unfit(module, self.network, session.options.compile_for)
        written = 0
        if self._is_asynchronous or self.policy == ALWAYS:
            as_it_came = _opened(module)
            written = self._overlap(module, session)
            if as_it_came is not None and not written:
                replace_content(module, ir.Module.parse(as_it_came))
        session.running.is_module_valid = not written
        session.running.is_module_unchanged &= not written

    @property
    def _is_asynchronous(self) -> bool:
        """Returns whether something can run beside a collective, and the topology says how fast it is."""
        if not self.network.is_known:
            return False
        topology = self.network.topology
        return topology.flops_per_s is not None and topology.platform != CPU

    def _overlap(self, module: ir.Module, session: Session) -> int:
        """Writes pipelines, counts and reports; returns the number of collectives that are replaced."""
        from reshard.dialect_utils.emission.slice_starts import put_starts_in_range
        from reshard.dialect_utils.emission.tile_emission import Mark, unused_channels  # loads the writers

        found = self._pipelines(module, session)
        faster = [each for each in found if self.policy == ALWAYS or self._is_faster(each)]
        self._report_kept(module, session, len({each.stock.op for each in found} - {each.stock.op for each in faster}))
        asked = [number for number in range(self.first, self.first + len(faster)) if self._is_asked(number)]
        taken = _of_different_ops({number: faster[number - self.first] for number in asked})
        channels, kernels = unused_channels(module), _Kernels(self, session)
        marked = []
        for number, each in enumerate(faster, self.first):
            left = "" if number in taken else "left by an option" if number not in asked else _LESS
            row = _row(number, each, left, session)
            session.results.report_rows.append(row)
            if left != _LESS:
                session.count("left" if left else "overlapped")
            if not left:
                mark = Mark(channels, f"reshard/{number}", each.stock.op.location, self.platform)
                if kernels.take(each, mark):
                    parts = counted(each.stock.in_groups.members - 1, "part")
                    row["chain"] = f"{_A_KERNEL}{parts} to and from each member"
                else:
                    marked.append((each, mark))
        _write(marked, lambda: kernels.write(module))
        if taken:
            put_starts_in_range(module.operation)
        return len(taken)

    def _is_asked(self, number: int) -> bool:
        return number in self.numbers_only if self.only else number not in self.numbers_left

    def _report_kept(self, module: ir.Module, session: Session, kept: int) -> None:
        if kept:
            session.count("kept", kept)
            stay = "stays as it is" if kept == 1 else "stay as they are"
            memory = "" if self.may_hold_more else " in as little memory"
            least = "" if self.any_gain else f" by {LEAST_GAIN:.0%}"
            said = f"no further pipeline{memory} is faster{least} on {self.network.topology.name}"
            session.remark(module.operation, f"{counted(kept, 'collective')} next to products {stay}: {said}")

    def _pipelines(self, module: ir.Module, session: Session) -> list[Pipeline | Prefetch]:
        """Returns the pipelines that there can be; of the others a remark says why."""
        from reshard.dialect_utils.hierarchy.explicit_collectives import NotPlannable
        from reshard.dialect_utils.overlap.candidates import candidates, neighbour_of, pipeline_of
        from reshard.dialect_utils.overlap.prefetch import prefetches

        found: list[Pipeline | Prefetch] = []
        for op, candidate in candidates(module.operation):
            if self.sends_only and not isinstance(candidate, NotPlannable) and candidate.uses:
                continue
            reason = str(candidate) if isinstance(candidate, NotPlannable) else ""
            if not isinstance(candidate, NotPlannable) and self.keep_sums and candidate.may_round:
                reason = "in another order its sum may round otherwise"
            if isinstance(candidate, NotPlannable) or reason:
                session.count("left")
                session.remark(op, f"{short_name(op)} next to a {neighbour_of(op)} stays as it is: {reason}")
            else:
                found.append(pipeline_of(candidate, self.network.topology))
        if not self.sends_only:
            found += prefetches(module.operation, self.network.topology)
        return found

    def _is_faster(self, pipeline: Pipeline | Prefetch) -> bool:
        """Returns whether a pipeline is faster by more than the model may be wrong, or at all if that is asked for, and
        holds no more."""
        whole_s, pipelined_s = pipeline.whole_s, pipeline.pipelined_s
        is_faster = pipelined_s < whole_s if self.any_gain else not gains_little(whole_s, pipelined_s)
        return is_faster and (self.may_hold_more or pipeline.pipelined_bytes <= pipeline.whole_bytes)


class _Kernels:
    """The pipelines that are kernels, if the pass is asked for them."""

    def __init__(self, asked: OverlapCollectivesPass, session: Session):
        self.asked, self.session = asked, session
        self.taken: list[tuple[Pipeline, KernelCall, Mark]] = []

    def take(self, pipeline: Pipeline | Prefetch, mark: Mark) -> bool:
        """Returns whether a pipeline is a kernel; a remark says why it is none."""
        from reshard.dialect_utils.overlap.candidates import Pipeline

        if self.asked.fuse != _KERNELS or not isinstance(pipeline, Pipeline):
            return False
        from reshard.dialect_utils.hierarchy.explicit_collectives import NotPlannable
        from reshard.dialect_utils.kernels.patterns import kernel_call_of, platform_problem
        from reshard.dialect_utils.overlap.candidates import neighbour_of

        try:
            if problem := platform_problem(self.asked.platform, self.asked.network.topology, pipeline.candidate):
                raise NotPlannable(problem)
            self.taken.append((pipeline, kernel_call_of(pipeline.candidate), mark))
        except NotPlannable as reason:
            op = pipeline.candidate.collective.op
            what = f"{short_name(op)} next to a {neighbour_of(op)}"
            self.session.remark(op, f"{what} is no kernel, but a pipeline of StableHLO: {reason}")
            return False
        self.session.count("kernels")
        return True

    def write(self, module: ir.Module) -> None:
        if self.taken:
            from reshard.dialect_utils.kernels.kernel_emission import unused_id, write_kernels

            write_kernels(self.taken, unused_id(module))


def gains_little(whole: float, pipelined: float) -> bool:
    """Returns whether the time as a pipeline is not shorter by more than the model may be wrong."""
    return pipelined > (1 - LEAST_GAIN) * whole


def _opened(module: ir.Module) -> bytes | None:
    """Inlines what loops with collectives call; returns the module as it was, None if it has no such loops."""
    from reshard.dialect_utils.hierarchy.explicit_collectives import OPS
    from reshard.dialect_utils.preparation.inlining import inline_in_loops

    names = {op.name for op in ops_in(module.operation)}
    if not LOOPS & names or "func.call" not in names or not OPS & names:
        return None
    as_it_came = compat.bytecode(module)
    inline_in_loops(module.operation, OPS)
    return as_it_came


def _of_different_ops(pipelines: dict[int, Pipeline | Prefetch]) -> dict[int, Pipeline | Prefetch]:
    """Returns the pipelines that gain most, in their order: of those of one product or collective only the best one,
    and none that gains less than the model may be wrong if another one gains more than that."""
    taken: set[ir.Operation] = set()
    chosen: set[int] = set()

    def order(found: tuple[int, Pipeline | Prefetch]) -> tuple[bool, float]:
        _, each = found
        return gains_little(each.whole_s, each.pipelined_s), each.pipelined_s - each.whole_s

    for number, each in sorted(pipelines.items(), key=order):
        if not taken.intersection(each.ops):
            taken.update(each.ops)
            chosen.add(number)
    return {number: each for number, each in pipelines.items() if number in chosen}


def _write(marked: list[tuple[Pipeline | Prefetch, Mark]], write_kernels: Callable[[], None]) -> None:
    """Writes pipelines one after the other, then kernels, then what is brought a trip ahead, loop by loop: what stands
    beside a collective of a loop is in its place then."""
    from reshard.dialect_utils.overlap.candidates import Pipeline
    from reshard.dialect_utils.overlap.pipeline_emission import write_pipeline
    from reshard.dialect_utils.overlap.prefetch import write_ahead

    loops: dict[ir.Operation, list[tuple[Prefetch, Mark]]] = {}
    for each, mark in marked:
        if isinstance(each, Pipeline):
            write_pipeline(each, mark)
        else:
            loops.setdefault(each.loop, []).append((each, mark))
    write_kernels()
    for of_loop in loops.values():
        write_ahead(of_loop)


def _row(number: int, pipeline: Pipeline | Prefetch, left: str, session: Session) -> dict[str, Any]:
    """Returns the report row of a pipeline, in the form that plan-sites uses.

    Args:
      left: why it is not written; empty if it is.
    """
    asked = pipeline.stock.redistribution
    row = row_of_collective(
        number, pipeline.stock, not left, session, stock_s=pipeline.whole_s, our_s=pipeline.pipelined_s
    )
    times = f"modelled time {micros(pipeline.pipelined_s)} {pipeline.form}, {micros(pipeline.whole_s)} as it is"
    return row | {
        "group": f"{pipeline.pattern}: {number}",
        "kind": "overlap",
        "source": str(asked.source),
        "target": str(asked.target),
        "why": f"{pipeline.text}: it may travel while something else is computed",
        "reason": f"{left}; {times}" if left else times,
        "chain": pipeline.way,
        "timelines": {"as it is": _timeline(pipeline.stock_spans), pipeline.form: _timeline(pipeline.spans)},
        "bytes_received": pipeline.received_bytes,
        "bound_bytes": pipeline.received_bytes,
        "largest_tile_bytes": None,
        "collectives": pipeline.sends,
        "stock_bytes": pipeline.received_bytes,
        "our_bytes": pipeline.received_bytes,
        "possible": STRICT,
    }


def _timeline(spans: Sequence[Span]) -> list[list]:
    """Returns what a device does as plain values: lane, start and end in microseconds, name."""
    return [[each.lane, round(1e6 * each.start_s, 3), round(1e6 * each.end_s, 3), each.name] for each in spans]
