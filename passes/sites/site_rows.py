# SPDX-License-Identifier: Apache-2.0
"""Report rows: one mapping of plain values per site, with the user's lines and the origin of each axis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.ir.functions import FUNCTION, calls_by_name, symbol
from reshard.dialect_utils.ir.loop_trips import Runs
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_around, ops_in
from reshard.dialect_utils.ir.source_lines import Frame, SourceLines, frames_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.passes.driver.base import Session
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.conversions import Conversion
from reshard.passes.sites.findings import Finding, Findings
from reshard.passes.sites.oracle import KEEP, REWRITE
from reshard.synthesis.layouts.partition_specs import text_of

if TYPE_CHECKING:
    from reshard.dialect_utils.analysis.layout_origins import Origin, Origins
    from reshard.dialect_utils.hierarchy.explicit_collectives import ExplicitCollective

_NOT_COMPILED_ALONE = dict.fromkeys(("source_spec", "target_spec", "stock_temp_bytes", "our_temp_bytes"))


class SiteRows:
    """Makes report rows for the sites of one module."""

    def __init__(self, module: ir.Module, found: Findings, session: Session):
        self.module = module
        self.found = found
        self.session = session
        self._runs = Runs(module)
        self._types: dict[ir.Type, str] = {}
        self._frames: dict[ir.Operation, tuple[Frame, ...]] = {}

    def row(
        self, edge: Finding, conversion: Conversion, facts: dict[str, Any], group: int | str, solved: dict | None
    ) -> dict[str, Any]:
        """Returns the report row of a site: plain values, bytes per device, None if a value is unknown.

        Args:
          edge: the edge of the site that the row shows. facts: the entries from its plan and its verdict.
          group: the number or the name that sites have in common if they are decided together.
          solved: the problem that the chain solves.
        """
        frames = self._frames_of(edge.op)
        calls = [{"function": frame.function, "location": self._place(frame.place)} for frame in frames]
        return {
            "site": edge.site,
            "group": group,
            "location": self._place(self.line(edge.op)),
            "kind": edge.kind,
            "op": edge.op.name,
            "type": self._type_text(edge.value.type),
            "runs": self._runs.of(edge.op),
            **conversion.ends,
            "source_spec": text_of(conversion.source),
            "target_spec": text_of(conversion.target),
            "why": edge.why,
            **facts,
            "problem": solved,
            "provenance": self._provenance(edge),
            "location_chain": calls,
        }

    def line(self, op: ir.Operation) -> diagnostics.Place | None:
        """Returns the place in the user's program from which an op comes."""
        return self._user_lines.place(self._frames_of(op))

    def _type_text(self, kind: ir.Type) -> str:
        if kind not in self._types:
            self._types[kind] = str(kind)
        return self._types[kind]

    def _provenance(self, edge: Finding) -> list[dict]:
        """Returns the origin of each axis of both layouts, as plain values; empty if origins are not asked for."""
        known = self._origins
        if known is None:
            return []
        rows = [
            ("source", sharding_from_attr(edge.source), _source_origins(known, edge)),
            ("target", sharding_from_attr(edge.target), _target_origins(known, edge)),
        ]
        return [
            {"side": side, "axis": axis, "asked_by": origin.words, "location": self._place(origin.place)}
            for side, sharding, origins in rows
            for axis, origin in sorted(origins.items())
            if any(axis.partition(":")[0] == ref.name for axes in sharding.dims for ref in axes)
        ]

    def _frames_of(self, op: ir.Operation) -> tuple[Frame, ...]:
        """Returns the frames of an op; of one without any in a function that is called, those of the first call that
        has some: JAX writes functions of its own, such as `take_along_axis`, without places."""
        if op not in self._frames:
            self._frames[op] = frames_of(op)
            if not self._frames[op]:
                self._frames[op] = next(filter(None, map(self._frames_of, self._calls_around(op))), ())
        return self._frames[op]

    def _calls_around(self, op: ir.Operation) -> Sequence[ir.Operation]:
        names = [symbol(each) for each in ops_around(op) if each.name == FUNCTION]
        return self._calls.get(names[0], ()) if names else ()

    @functools.cached_property
    def _calls(self) -> dict[str, list[ir.Operation]]:
        return calls_by_name(self.module.operation)

    @functools.cached_property
    def _user_lines(self) -> SourceLines:
        """Returns the lines of the ops at sites.

        If one of these ops is a constraint that is reached through calls, all constraints of the module are read,
        because they show which functions are helpers.
        """
        ops = dict.fromkeys(edge.op for edge in self.found.edges)
        if any(op.name in CONSTRAINTS and len(self._frames_of(op)) > 1 for op in ops):
            analysis = self.session.handed_on.analysis
            every = ops_in(self.module.operation) if analysis is None else analysis.originals
            ops |= dict.fromkeys(op for op in every if op.name in CONSTRAINTS)
        return SourceLines(map(self._frames_of, ops))

    def _place(self, place: diagnostics.Place | None) -> str:
        if place is not None and place.file == "-":
            place = dataclasses.replace(place, file=self.session.options.input)
        return str(place) if place else ""

    @functools.cached_property
    def _origins(self) -> Origins | None:
        if not self.session.options.with_provenance:
            return None
        from reshard.dialect_utils.analysis.layout_origins import Origins

        origins = Origins(self.module)
        if not origins.is_known:
            self.session.remark(
                None, "the report does not tell who asked for the layouts: Shardy cannot say where they come from"
            )
        return origins


def _source_origins(known: Origins, edge: Finding) -> dict[str, Origin]:
    return known.of_value(edge.value) if edge.kind != kinds.RESULT else {}


def _target_origins(known: Origins, edge: Finding) -> dict[str, Origin]:
    """Returns the origins of the axes of an op's other operands and of its results, by axis."""
    if edge.kind == kinds.RESULT:
        values = [edge.value]
    else:
        values = [value for i, value in enumerate(edge.op.operands) if i != edge.number] + list(edge.op.results)
    found = {axis: origin for value in values for axis, origin in known.of_value(value).items()}
    if edge.op.name in CONSTRAINTS:
        return dict.fromkeys(found, known.named("this constraint", edge.op))
    return found


def row_of_collective(
    number: int, collective: ExplicitCollective, is_written: bool, session: Session, *, stock_s: float, our_s: float
) -> dict[str, Any]:
    """Returns what the rows of all collectives have that the program has already, in the form of `SiteRows`.

    Args:
      number: of the site. is_written: whether something takes the place of the collective.
      stock_s, our_s: the modelled times of what the program has, and of what takes its place, in seconds.
    """
    place = diagnostics.place_of(collective.op.location)
    if place is not None and place.file == "-":
        place = dataclasses.replace(place, file=session.options.input)
    return {
        "site": number,
        "location": str(place) if place else "",
        "op": collective.op.name,
        "type": str(collective.tile_type),
        "verdict": REWRITE if is_written else KEEP,
        "stock_us": round(stock_s * 1e6, 3),
        "our_us": round(our_s * 1e6, 3),
        "is_rewritten": is_written,
        **_NOT_COMPILED_ALONE,
    }
