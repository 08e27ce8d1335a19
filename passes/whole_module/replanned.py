# SPDX-License-Identifier: Apache-2.0
"""The rewritten forms of one module: its sites are found and planned once, and any set of them is then written."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from reshard.dialect_utils.analysis.layout_check import ENTRY
from reshard.dialect_utils.gspmd.compiled_shardings import sharding_on
from reshard.dialect_utils.ir.diagnostics import Diagnostic
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import (
    mesh_of,
    mesh_reference,
    module_meshes,
    placement,
    sharding_from_attr,
    sharding_to_attr,
)
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import Findings, OpenResult, read_findings, write_findings
from reshard.passes.whole_module.taken_over import cut_at_sites
from reshard.synthesis.layouts.mesh import Mesh


class Replanned:
    """The rewritten forms of a module, each with other sites. Its sites are found and planned once.

    Args:
      original: the module before `pipeline` ran in `session`.
    State: `said`, the diagnostics of the planning, once it has run. `found`, the findings on the ops of `module_found`,
      before anything is planned; `said_finding`, what was said then. `_settled`, the results that the caller left
      open as they were settled last; None until then.
    """

    said: tuple[Diagnostic, ...] = ()
    said_finding: tuple[Diagnostic, ...] = ()

    def __init__(self, original: ir.Module, pipeline: Pipeline, session: Session):
        self._original, self._options = original, session.options  # the same options, so sites have the same numbers
        self._planning, self._rewriting = cut_at_sites(pipeline)
        self._planned: bytes | None = None
        self._settled: tuple[OpenResult, ...] | None = None
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

    def settle_results(self, shardings: Sequence[str], *, are_planned: bool) -> bool:
        """Gives the results that the caller left open the layouts that they have in a compiled program: the compiler of
        a target may decide otherwise than propagation does.

        Args:
          shardings: of the program's results, as in `Compiled.output_shardings`.
          are_planned: whether forms are made of `planned` from now on.
        Returns: whether that changes any, also since the last time, so that forms are to be written anew.
        """
        with self._original.context:
            module = ir.Module.parse(self.planned) if are_planned else self.module_found
            if (found := read_findings(module)) is None:
                return False
            meshes = module_meshes(module)
            settled = tuple(_as_compiled(each, shardings, meshes) for each in found.open_results)
            was_settled, self._settled = self._settled, settled
            if settled == found.open_results:
                return was_settled is not None and settled != was_settled
            write_findings(module, replace(found, open_results=settled), over=found)
            if are_planned:
                self._planned = compat.bytecode(module)
            else:
                self.__dict__.pop("bytes_found", None)
                self.__dict__.pop("found", None)
        return True

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


def _as_compiled(result: OpenResult, shardings: Sequence[str], meshes: dict[str, Mesh]) -> OpenResult:
    """Returns a result that the caller left open with the layout that it has in a compiled program; as it is if its
    mesh has no such layout."""
    mesh = mesh_of(result.sharding, meshes)
    if result.function != ENTRY or result.number >= len(shardings) or mesh is None or not mesh.axes:
        return result
    rank = sharding_from_attr(result.sharding).rank
    if (sharding := sharding_on(mesh, shardings[result.number], rank)) is None:
        return result
    attr = sharding_to_attr(sharding, mesh_reference(result.sharding))
    is_same = placement(attr, rank, meshes) == placement(result.sharding, rank, meshes)
    return result if is_same else replace(result, sharding=attr)
