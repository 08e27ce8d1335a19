# SPDX-License-Identifier: Apache-2.0
"""The pass convert-to-local: writes the whole module per device, with our chains wherever a layout changes."""

from __future__ import annotations

import dataclasses
from typing import Any

from reshard.dialect_utils.emission.slice_starts import put_starts_in_range
from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.ir.source_lines import SourceLines, frames_of
from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.partitioning.local_ops import Conversion
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.sites.findings import pin_results, read_findings, strip_findings
from reshard.passes.sites.network import (
    NetworkOptions,
    memory_limit_option,
    platform_option,
    refuse_unfit,
    topology_option,
)
from reshard.passes.sites.oracle import REWRITE

AS_FOUND, LEAST_TIME = "as-found", "least-time"


@dataclasses.dataclass(frozen=True)
class ConvertToLocalPass(NetworkOptions, Pass):
    """Replaces the body of each public function by one manual computation over all axes."""

    name = "convert-to-local"
    summary = "write the whole module per device, with no work left for XLA's partitioner"
    description = """
    The body of each public function becomes one `sdy.manual_computation` over all axes. Every op works on one device's
    tile, in the layouts that Shardy's propagation finds. Where a layout has to change, the pass inserts a chain of
    collectives. Calls are inlined. Types, arguments and attributes of the functions stay, so that the module is called
    as before. Arguments and results that had no sharding get the one that propagation finds.

    Before ==> after:
    ```mlir
    func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8xf32> {
      %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [0] : ...
    ```
    ```mlir
      %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}]>]
          manual_axes={"x"} (%arg1: tensor<4x8xf32>) {
        %1 = stablehlo.reduce(%arg1 init: %cst) applies stablehlo.add across dimensions = [0] : ...
        %2 = "stablehlo.all_reduce"(%1) <{...}> ...
    ```

    What a loop takes is converted before it, unless the tiles grow: these would be in memory as long as the loop runs.
    What a loop adds up is reduced and scattered in each turn, if its result is split. With `hold=BYTES` such tiles, and
    whole sums, are held as far as these bytes go, and converted or reduced once. A state of which each turn writes a
    part stays in the layout that it has around the loop, if the parts of all turns move in less time than the state.

    If an op needs a whole dimension, for example a sort along it, the dimension is gathered, with a remark. An op for
    which no rule on tiles is known is an error at the op. With `stay=unknown` it stays with XLA instead, between two
    manual computations; the pipeline of `--emit=auto` does this, that of `--emit=local` does not. With `stay=loops`
    loops stay with XLA, too.

    After find-mismatches, results that the caller left open get the layouts that are found for them there, as XLA
    propagates them; then the findings are removed.
    """
    guarantees = (
        "no collective is left for XLA's partitioner to choose, but around ops that stay with XLA",
        "the functions have the types, arguments and attributes that they had",
    )
    statistics = {
        "chains": "changes of layout written as chains",
        "unneeded": "changes of layout without a chain, because no op takes what they result in",
        "repeated": "broadcasts written once more in another layout",
        "again": "changes of layout written a second time, so that less is held in memory",
        "gathered": "changes of layout because an op needs a dimension whole",
        "left": "ops that stay with XLA",
        "held": "bytes held while loops run, in order to convert or reduce once",
        "uncopied": "arrays that loops copy slice by slice and leave as they are: they are used in place of the copies",
        "in_place": "arrays of which loops copy each slice and write a part: the part is written in place",
        "kept": "states that stay in the layout that they have around a loop, or where a part of them is written",
        "apart": "arrays of which a part is written, also into smaller tiles of them for who reads them",
        "filled": "constraints that would leave devices without elements, which hold those of others instead",
    }

    platform: str = platform_option()
    topology: str = topology_option()
    memory_limit: int = memory_limit_option()
    objective: str = option(
        "time",
        "what plans are made for on a known network: the shortest time, or the fewest received bytes",
        choices=("time", "bytes"),
    )
    products: str = option(
        AS_FOUND,
        "how matrix products are split: as propagation finds, or in the way that takes least time on a known network",
        choices=(AS_FOUND, LEAST_TIME),
    )
    lean: bool = option(
        False,
        "split each op in the way that needs the least memory, of those that take at most twice the least time",
    )
    release: int = option(
        0,
        "write conversions whose result is needed late a second time there, until so many bytes less are held at the "
        "fullest moment",
    )
    hold: int = option(
        0,
        "bytes that a device may hold while loops run, so that what they take is converted once, before them, and what "
        "they add up is reduced once, behind them",
    )
    stay: str = option(
        local_modules.NONE,
        "which ops stay with XLA, between islands: none, so that one without a rule is an error, those without a rule, "
        "or loops too",
        choices=local_modules.STAY,
    )
    keep_sums: bool = option(False, "leave sums that manual computations have in the order that XLA gives them")

    def run(self, module: ir.Module, session: Session) -> None:
        if (found := read_findings(module)) is not None:
            pin_results(module, found.open_results)
            strip_findings(module)
        refuse_unfit(module, self.network, session.options.compile_for)
        decomposed = (row["site"] for row in session.results.report_rows if row["kind"] == "collective")
        written = local_modules.convert(
            module,
            self.written_for,
            stay=self.stay,
            compares_products=self.products == LEAST_TIME,
            is_lean=self.lean,
            release_bytes=self.release,
            hold_bytes=self.hold,
            keeps_sums=self.keep_sums,
            first=1 + max(decomposed, default=-1),
            analyses=session.handed_on.analyses,
            **self._planning(),
        )
        if written.conversions:
            put_starts_in_range(module.operation)
        if written.held_bytes:
            session.count("held", round(written.held_bytes))
        for each in written.notes:
            session.count(each.kind)
            session.remark(each.location, each.text)
        for each in written.left:
            session.count("left")
            session.remark(each.location, f"{each.op_name} stays with XLA: {each.reason}")
        frames = [frames_of(each.location) for each in written.conversions]
        lines = SourceLines(frames)
        for each, chain in zip(written.conversions, frames, strict=True):
            session.count(_statistic(each))
            session.results.report_rows.append(_row(each, lines.place(chain), session, self.network.is_known))
            if each.is_needed and each.whole and each.plan.bytes_received:
                session.count("gathered")
                ends = f"{each.plan.source} to {each.plan.target}"
                session.remark(each.location, f"{each.tensor} is converted from {ends}: {each.whole}")

    def _planning(self) -> dict[str, Any]:
        """Returns how changes of layout are planned: by time if that is asked for and the network is known."""
        limit = {"memory_limit": self.network.memory_limit}
        if not self.network.is_known or self.objective == "bytes":
            return limit
        return {**limit, "objective": "time", "topology": self.network.topology}


def _statistic(conversion: Conversion) -> str:
    if conversion.is_broadcast:
        return "repeated"
    return "again" if conversion.is_repeated else "chains" if conversion.is_needed else "unneeded"


def _row(conversion: Conversion, place: diagnostics.Place | None, session: Session, is_timed: bool) -> dict:
    """Returns the report row of a chain, in the form that plan-sites uses. The costs of stock XLA are unknown."""
    if place is not None and place.file == "-":
        place = dataclasses.replace(place, file=session.options.input)
    chain, is_needed = conversion.plan, conversion.is_needed
    why = conversion.whole or ("its elements move" if conversion.is_move else "the layout changes here")
    if conversion.is_collective:
        why = f"a chain is faster than this {conversion.op_name.removeprefix('stablehlo.')}"
    why = "made again, so that less is held in memory" if conversion.is_repeated else why
    unneeded = "broadcast once more, in this layout" if conversion.is_broadcast else "no op takes it in this layout"
    return {
        "site": conversion.number,
        "group": f"chain {conversion.number}",
        "location": str(place) if place else "",
        "kind": "local",
        "op": conversion.op_name,
        "type": str(conversion.tensor),
        "runs": conversion.runs,
        "could_be_held": conversion.could_be_held and is_needed,
        "source": str(chain.source),
        "target": str(chain.target),
        "why": why if is_needed else unneeded,
        "verdict": REWRITE,
        "reason": "the whole module is written per device",
        "chain": chain.chain_text if is_needed else "no chain",
        "chain_us": round(chain.time_s * 1e6, 3) if is_needed and is_timed else None,
        "bytes_received": chain.bytes_received if is_needed else 0,
        "bound_bytes": chain.bound_bytes if is_needed else 0,
        "largest_tile_bytes": chain.largest_tile_bytes if is_needed else 0,
        "collectives": chain.collectives if is_needed else 0,
        "stock_bytes": None,
        "stock_temp_bytes": None,
        "our_bytes": None,
        "our_temp_bytes": None,
        "is_rewritten": True,
    }
