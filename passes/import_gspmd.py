# SPDX-License-Identifier: Apache-2.0
"""The pass import-gspmd: turns GSPMD's shardings, and those of Shardy in the form of HLO, into Shardy's own."""

from __future__ import annotations

import dataclasses

from reshard.dialect_utils.gspmd import string_shardings
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session


@dataclasses.dataclass(frozen=True)
class ImportGspmdPass(Pass):
    """Turns string shardings into `sdy` meshes, shardings, constraints and manual computations."""

    name = "import-gspmd"
    summary = "turn GSPMD shardings into Shardy's"
    description = """
    Reads `mhlo.sharding` on arguments, results and ops, and the custom calls `@Sharding`, `@SPMDFullToShardShape` and
    `@SPMDShardToFullShape`. All shardings of the module together get the fewest meshes that express them. If a list of
    devices is no row-major mesh, its mesh gets `device_ids`. Modules in XLA's round-trip form (`xla.sdy.meshes` and
    others in `mhlo.frontend_attributes`) get back the meshes and shardings that they had.

    Before ==> after:
    ```mlir
    func.func @main(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"}) -> tensor<8x8xf32> {
      %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
        : (tensor<8x8xf32>) -> tensor<8x8xf32>
    ```
    ```mlir
    sdy.mesh @mesh = <["axis_0"=2, "axis_1"=4]>
    func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}, {"axis_0"}]>})
        -> tensor<8x8xf32> {
      %0 = sdy.sharding_constraint %arg0 <@mesh, [{"axis_0"}, {}]> : tensor<8x8xf32>
    ```

    The pass imports the whole module or leaves it as it is. It leaves a remark at each op that has no counterpart: an
    array on one device, shard groups, a region of tiles that no `sdy.manual_computation` can hold.
    """
    guarantees = (
        "every device holds the blocks that it held under the GSPMD sharding",
        "a module without string shardings is unchanged",
        "if anything is imported, string shardings are left on infeeds and outfeeds only, where Shardy has none",
    )
    states_shardings = True
    statistics = {
        "meshes": "meshes added",
        "shardings": "shardings of arguments and results",
        "constraints": "sharding constraints made of custom calls and of ops with a sharding",
        "regions": "manual computations made",
    }

    def run(self, module: ir.Module, session: Session) -> None:
        kind = (
            string_shardings.kind_of(module)
            if session.may_have(string_shardings.GSPMD, string_shardings.ROUND_TRIP)
            else None
        )
        if kind is None:
            session.running.is_module_valid = session.running.is_module_unchanged = True
            return
        from reshard.dialect_utils.gspmd import gspmd_statements, sdy_round_trip

        reader = sdy_round_trip if kind == string_shardings.ROUND_TRIP else gspmd_statements
        try:
            imported = reader.import_shardings(module)
        except gspmd_statements.RefusedError as refusal:
            session.remark(
                refusal.where, f"the module keeps its GSPMD shardings, and no site of it is found: {refusal}"
            )
            return
        for statistic, amount in imported.counts.items():
            session.count(statistic, amount)
        for name, mesh in imported.meshes.items():
            session.remark(module.operation, f"GSPMD shardings are now on mesh @{name} = {mesh}")
