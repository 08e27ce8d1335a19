# SPDX-License-Identifier: Apache-2.0
"""The pass strip-findings."""

from __future__ import annotations

import dataclasses

from reshard.dialect_utils.bindings import ir
from reshard.passes.base import Pass, Session
from reshard.passes.findings import SUMMARY, count_attributes, strip_findings, strip_known_findings
from reshard.passes.specialization import clones_of, merge_clones


@dataclasses.dataclass(frozen=True)
class StripFindingsPass(Pass):
    """Removes what find-mismatches and plan-sites wrote."""

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
        is_known = session.findings is not None and not clones_of(module)
        if is_known and not session.are_findings_written:
            session.is_left = True
            count = count_attributes(session.findings) + 1
        elif is_known:  # find-mismatches has left no other attribute of ours
            count = strip_known_findings(session.findings) + 1
            del module.operation.attributes[SUMMARY]
        else:
            merge_clones(module)
            count = strip_findings(module)
        session.is_verified = is_known
        session.count("attributes", count)
