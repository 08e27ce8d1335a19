# SPDX-License-Identifier: Apache-2.0
"""The rewritten forms of one module: its sites are found and planned once, and any set of them is then written."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from reshard.dialect_utils.ir.diagnostics import Diagnostic
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import Findings, read_findings
from reshard.passes.whole_module.taken_over import cut_at_sites


class Replanned:
    """The rewritten forms of a module, each with other sites. Its sites are found and planned once.

    Args:
      original: the module before `pipeline` ran in `session`.
    State: `said`, the diagnostics of the planning, once it has run. `found`, the findings on the ops of `module_found`,
      before anything is planned; `said_finding`, what was said then.
    """

    said: tuple[Diagnostic, ...] = ()
    said_finding: tuple[Diagnostic, ...] = ()

    def __init__(self, original: ir.Module, pipeline: Pipeline, session: Session):
        self._original, self._options = original, session.options  # the same options, so sites have the same numbers
        self._planning, self._rewriting = cut_at_sites(pipeline)
        self._planned: bytes | None = None
        self._finding = Pipeline(self._planning.elements[:-1])

    def with_sites(self, sites: Sequence[int]) -> ir.Module:
        """Returns a copy of the original in which some sites, and no other, are rewritten."""
        with self._original.context:
            if not sites:
                return ir.Module.parse(compat.bytecode(self._original))
            module = ir.Module.parse(self.planned)
            pipeline = self._rewriting.with_options({"only": "+".join(map(str, sites))})
            pipeline.run(module, Session(self._options))
        return module

    @functools.cached_property
    def module_found(self) -> ir.Module:
        """Returns a copy of the original with findings on its ops, about which nothing is known yet."""
        module, session = ir.Module.parse(compat.bytecode(self._original)), Session(self._options)
        self._finding.run(module, session)
        self.said_finding = tuple(session.results.diagnostics.diagnostics)
        return module

    @functools.cached_property
    def bytes_found(self) -> bytes:
        return compat.bytecode(self.module_found)

    @functools.cached_property
    def found(self) -> Findings:
        return read_findings(self.module_found) or Findings(())

    def take(self, planned: bytes, said: Sequence[Diagnostic]) -> None:
        """Takes over what the pipeline has planned, and what was said then."""
        self._planned, self.said = planned, tuple(said)

    @property
    def planned(self) -> bytes:
        """Returns the module with findings, chains and verdicts on its ops, as bytecode."""
        if self._planned is None:
            self._planned = self._plan()
        return self._planned

    def _plan(self) -> bytes:
        module, session = ir.Module.parse(compat.bytecode(self._original)), Session(self._options)
        self._planning.run(module, session)
        self.said = tuple(session.results.diagnostics.diagnostics)
        return compat.bytecode(module)
