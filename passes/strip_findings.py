# SPDX-License-Identifier: Apache-2.0
"""The pass strip-findings: removes the findings from the module."""

from __future__ import annotations

import dataclasses

from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Pass, Session
from reshard.passes.sites.findings import SUMMARY, Findings, count_attributes, strip_findings, strip_known_findings
from reshard.passes.sites.specialization import clones_of, merge_clones


@dataclasses.dataclass(frozen=True)
class StripFindingsPass(Pass):
    """Removes the attributes that find-mismatches and plan-sites wrote."""

    name = "strip-findings"
    summary = "remove the findings of find-mismatches and plan-sites"
    description = """
    Before ==> after:
    ```mlir
    %0 = stablehlo.tanh %arg0 {reshard.operand_sites = [...]} : tensor<8xf32>
    ```
    ```mlir
    %0 = stablehlo.tanh %arg0 : tensor<8xf32>
    ```
    """
    guarantees = (
        "no op has an attribute whose name starts with `reshard.`",
        "a function that find-mismatches cloned is one again, unless sites were rewritten in some of the clones only",
        "everything else is as it was",
    )
    takes_findings = True
    statistics = {"attributes": "attributes removed, from the module or before they were on it"}

    def run(self, module: ir.Module, session: Session) -> None:
        found: Findings | None = session.handed_on.findings
        if found is None or clones_of(module):
            merge_clones(module)
            count = strip_findings(module)
        else:
            session.running.is_module_valid = True
            if session.handed_on.are_findings_written:  # find-mismatches has left no other attribute of ours
                count = strip_known_findings(found) + 1
                del module.operation.attributes[SUMMARY]
            else:
                session.running.is_module_unchanged = True
                count = count_attributes(found) + 1
        session.count("attributes", count)
