# SPDX-License-Identifier: Apache-2.0
"""The pass convert-to-local: the whole module per device, with our chains wherever a layout changes."""

from __future__ import annotations

import dataclasses

from reshard.dialect_utils import diagnostics, local_modules
from reshard.dialect_utils.bindings import ir
from reshard.dialect_utils.local_modules import Conversion
from reshard.passes.base import Pass, Session
from reshard.passes.oracle import REWRITE


@dataclasses.dataclass(frozen=True)
class ConvertToLocalPass(Pass):
    """Replaces the body of each public function by one manual computation over all axes."""

    name = "convert-to-local"
    summary = "write the whole module per device, with no work left for XLA's partitioner"
    description = """
    The body of each public function becomes one `sdy.manual_computation` over all axes: every op works on one device's tile, in
    the layouts that Shardy's propagation finds; where a layout has to change there is a chain of collectives of ours. Calls are
    inlined. Types, arguments and attributes of the functions stay, so that the module is called as before; arguments and
    results that had no sharding get the one that propagation finds.

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

    An op that needs a dimension whole, a sort along it say, gets it gathered, with a remark. An op whose meaning on tiles is not
    known is an error at the op. This is the pipeline of `--emit=local`.
    """
    guarantees = (
        "no collective is left for XLA's partitioner to choose",
        "the functions have the types, arguments and attributes that they had",
    )
    statistics = {
        "chains": "changes of layout written as chains",
        "gathered": "changes of layout because an op needs a dimension whole",
    }

    def run(self, module: ir.Module, session: Session) -> None:
        conversions = local_modules.convert(module)
        for number, each in enumerate(conversions):
            session.count("chains")
            session.report_rows.append(_row(number, each, session))
            if each.whole and each.plan.bytes_received:
                session.count("gathered")
                ends = f"{each.plan.source} to {each.plan.target}"
                session.remark(each.location, f"{each.tensor} is converted from {ends}: {each.whole}")


def _row(number: int, conversion: Conversion, session: Session) -> dict:
    """Returns what a report says of a chain, as plan-sites records a site; nothing is known of stock XLA."""
    place = diagnostics.place_of(conversion.location)
    if place is not None and place.file == "-":
        place = dataclasses.replace(place, file=session.options.get("input", "-"))
    chain = conversion.plan
    return {
        "site": number,
        "group": f"chain {number}",
        "location": str(place) if place else "",
        "kind": "local",
        "op": conversion.op_name,
        "type": str(conversion.tensor),
        "source": str(chain.source),
        "target": str(chain.target),
        "why": conversion.whole or "the layout changes here",
        "verdict": REWRITE,
        "reason": "the whole module is written per device",
        "chain": chain.chain_text,
        "bytes_received": chain.bytes_received,
        "bound_bytes": chain.bound_bytes,
        "largest_tile_bytes": chain.largest_tile_bytes,
        "collectives": chain.collectives,
        "stock_bytes": None,
        "stock_temp_bytes": None,
        "our_bytes": None,
        "our_temp_bytes": None,
        "is_rewritten": True,
    }
