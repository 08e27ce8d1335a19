# SPDX-License-Identifier: Apache-2.0
"""Findings: the sites of a module, as discardable attributes on the ops at which they are.

On the op that uses a value in another layout than the value has:

    reshard.operand_sites = [{kind = "operand", operand = 1 : i64, site = 3 : i64, source = #sdy.sharding<@mesh, [{"x"},
    {}]>,
                              target = #sdy.sharding<@mesh, [{}, {"x"}]>, why = "..."}]

On the op that computes in another layout than its result has: `reshard.result_sites`, with `result` for `operand`.
On the module: `reshard.findings = {sites = 4 : i64, skipped = [...], version = 1 : i64}`.

A site is a (value, source, target) triple; edges that one conversion serves have the same number. Passes that follow
may put more entries into the dictionaries: `Finding.extras`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reshard.dialect_utils.ir.diagnostics import error_at
from reshard.dialect_utils.ir.ops import int64_attr, manual_axes, ops_in
from reshard.dialect_utils.platform.bindings import ir, sdy
from reshard.dialect_utils.shardings.sdy_shardings import SHARDING
from reshard.dialect_utils.shardings.value_layouts import stated_results

if TYPE_CHECKING:
    from reshard.passes.driver.base import Session

PREFIX = "reshard."
OPERAND_SITES = PREFIX + "operand_sites"
RESULT_SITES = PREFIX + "result_sites"
SUMMARY = PREFIX + "findings"
CLONE_OF = PREFIX + "clone_of"  # on a function; see `passes.sites.specialization`
VERSION = 1

CONSTRAINT, ARGUMENT, FUNCTION_RESULT = "constraint", "argument", "function_result"
CALL, LOOP, OPERAND, RESULT = "call", "loop", "operand", "result"


@dataclass(frozen=True, slots=True)
class Finding:
    """One edge of a site.

    Attributes:
      op: the op that carries the attribute: the user of the value, or its producer for kind "result".
      number: operand number; result number for kind "result".
      site: number of the (value, source, target) triple, from 0.
      kind: how the edge came to be: CONSTRAINT, ARGUMENT, FUNCTION_RESULT, CALL, LOOP, OPERAND or RESULT.
      source, target: `#sdy.sharding` attributes, closed; source is the layout that the value has before the conversion.
      why: a sentence for people.
      is_uneven: whether a dimension does not divide by its shards on either side, so tiles are padded.
      manual_axes: of the manual computations around the edge, or around the calls that lead to it; the value is a tile
        along them.
      extras: entries of later passes, by name.
    """

    op: ir.Operation
    number: int
    site: int
    kind: str
    source: ir.Attribute
    target: ir.Attribute
    why: str
    is_uneven: bool = False
    manual_axes: tuple[str, ...] = ()
    extras: tuple[tuple[str, ir.Attribute], ...] = ()

    @property
    def value(self) -> ir.Value:
        """Returns the value that is converted."""
        values = self.op.results if self.kind == RESULT else self.op.operands
        return values[self.number]

    def extra(self, name: str) -> ir.Attribute | None:
        """Returns the entry of a later pass, None if there is none."""
        return dict(self.extras).get(name)

    def with_extras(self, entries: Mapping[str, ir.Attribute]) -> Finding:
        """Returns the finding with entries added or replaced."""
        return replace(self, extras=tuple(sorted({**dict(self.extras), **entries}.items())))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A mismatch that is not a site: its place in words, and the reason why it is left alone."""

    kind: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpenResult:
    """A result of a public function whose sharding the caller left open, with the closed sharding of stock XLA."""

    function: str
    number: int
    sharding: ir.Attribute


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings of a module, in walk order of their ops."""

    edges: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = ()
    open_results: tuple[OpenResult, ...] = ()

    @property
    def sites(self) -> int:
        return len({finding.site for finding in self.edges})

    def by_site(self) -> dict[int, list[Finding]]:
        """Returns the edges of each site, in site order."""
        grouped: dict[int, list[Finding]] = {}
        for finding in sorted(self.edges, key=lambda each: each.site):
            grouped.setdefault(finding.site, []).append(finding)
        return grouped


def write_findings(
    module: ir.Module, findings: Findings, over: Findings | None = None, ops: Sequence[ir.Operation] | None = None
) -> None:
    """Writes findings onto their ops and removes older ones. The rest of the module stays.

    Args:
      over: the older findings, if they are known; their ops must still exist.
      ops: all ops that may have older findings, if the caller knows them.
    """
    if over is None:
        strip_findings(module, keeps=(CLONE_OF,), ops=ops)
    else:
        strip_known_findings(over)
    with module.context:
        for (op, name), edges in _by_attribute(findings).items():
            op.attributes[name] = ir.ArrayAttr.get([_to_attr(edge) for edge in edges])
        module.operation.attributes[SUMMARY] = _summary(findings)


def pin_results(module: ir.Module, open_results: Sequence[OpenResult]) -> None:
    """Writes stock XLA's shardings onto results that the caller left open, since a rewrite may change them."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    for result in open_results:
        function = functions[result.function]
        count = len(stated_results(function))
        attrs = list(ir.ArrayAttr(function.attributes["res_attrs"])) if "res_attrs" in function.attributes else []
        attrs = attrs or [ir.DictAttr.get({})] * count
        entries = {each.name: each.attr for each in ir.DictAttr(attrs[result.number])}
        attrs[result.number] = ir.DictAttr.get({**entries, SHARDING: result.sharding})
        function.attributes["res_attrs"] = ir.ArrayAttr.get(attrs)


def hand_on_findings(module: ir.Module, findings: Findings, session: Session) -> None:
    """Replaces the findings of the session, and writes them onto the module unless nobody reads them there.

    They are not written if the next pass takes findings from the session and the older findings were not on the module
    either.
    """
    written = session.handed_on.are_findings_written
    session.running.is_module_unchanged = session.running.next_takes_findings and not written
    if not session.running.is_module_unchanged:
        write_findings(
            module, findings, over=session.handed_on.findings if written else None, ops=None if written else ()
        )
        session.handed_on.are_findings_written = True
    session.handed_on.findings = findings


def _by_attribute(findings: Findings) -> dict[tuple[ir.Operation, str], list[Finding]]:
    """Returns the findings by the op and the name of the attribute that they are written to."""
    grouped: dict[tuple[ir.Operation, str], list[Finding]] = {}
    for finding in findings.edges:
        name = RESULT_SITES if finding.kind == RESULT else OPERAND_SITES
        grouped.setdefault((finding.op, name), []).append(finding)
    return grouped


def read_findings(module: ir.Module) -> Findings | None:
    """Returns the findings of a module, or None if `find-mismatches` has not run on it.

    Raises: DiagnosedError at the op whose findings are not what `write_findings` writes, say after it has lost an
    operand.
    """
    if SUMMARY not in module.operation.attributes:
        return None
    edges: list[Finding] = []
    for op in ops_in(module.operation):
        attributes = op.attributes
        for name in (OPERAND_SITES, RESULT_SITES):
            if (attr := attributes.get(name)) is not None:
                edges += _read(op, name, attr)
    return Findings(tuple(edges), *_read_summary(module.operation))


def _read(op: ir.Operation, name: str, attr: ir.Attribute) -> list[Finding]:
    try:
        return [_from_attr(op, each) for each in ir.ArrayAttr(attr)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise error_at(op, f"cannot read {name}; {_AGAIN}") from None


def _read_summary(module: ir.Operation) -> tuple[tuple[Skipped, ...], tuple[OpenResult, ...]]:
    try:
        summary = ir.DictAttr(module.attributes[SUMMARY])
        if ir.IntegerAttr(summary["version"]).value != VERSION:
            raise ValueError(f"unknown version {summary['version']}")
        skipped = tuple(_skipped_from_attr(each) for each in ir.ArrayAttr(summary["skipped"]))
        return skipped, _open_results_from(summary)
    except (KeyError, TypeError, ValueError):
        raise error_at(module, f"cannot read {SUMMARY}; {_AGAIN}") from None


_AGAIN = "run strip-findings and find-mismatches again"


def count_attributes(findings: Findings) -> int:
    """Returns the number of op attributes that hold these findings."""
    return len(_by_attribute(findings))


def strip_known_findings(findings: Findings) -> int:
    """Removes these findings from their ops; returns the number of attributes removed."""
    written = _by_attribute(findings)
    for op, name in written:
        del op.attributes[name]
    return len(written)


def strip_findings(
    root: ir.Module | ir.Operation, keeps: Sequence[str] = (), ops: Sequence[ir.Operation] | None = None
) -> int:
    """Removes our discardable attributes from all ops, except those in `keeps` on functions; returns their number.

    Args:
      ops: `root` and the ops in it, or those that may have any, if the caller has them.
    """
    count = 0
    for op in ops_in(root.operation) if ops is None else ops:
        attributes = op.attributes
        for name in attributes.keys():
            if name.startswith(PREFIX) and not (
                name in keeps and op.name == "func.func" and op.parent == root.operation
            ):
                del attributes[name]
                count += 1
    return count


def _to_attr(finding: Finding) -> ir.DictAttr:
    entries = {
        "site": int64_attr(finding.site),
        "kind": ir.StringAttr.get(finding.kind),
        "result" if finding.kind == RESULT else "operand": int64_attr(finding.number),
        "source": finding.source,
        "target": finding.target,
        "why": ir.StringAttr.get(finding.why),
        **dict(finding.extras),
    }
    if finding.is_uneven:
        entries["uneven"] = ir.BoolAttr.get(True)
    if finding.manual_axes:
        entries["manual_axes"] = sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in finding.manual_axes])
    return ir.DictAttr.get(entries)


_OWN = frozenset({"site", "kind", "operand", "result", "source", "target", "why", "uneven", "manual_axes"})


def _from_attr(op: ir.Operation, attr: ir.Attribute) -> Finding:
    entries = {each.name: each.attr for each in ir.DictAttr(attr)}
    finding = Finding(
        op=op,
        number=ir.IntegerAttr(entries["result" if "result" in entries else "operand"]).value,
        site=ir.IntegerAttr(entries["site"]).value,
        kind=ir.StringAttr(entries["kind"]).value,
        source=sdy.TensorShardingAttr(entries["source"]),
        target=sdy.TensorShardingAttr(entries["target"]),
        why=ir.StringAttr(entries["why"]).value,
        is_uneven="uneven" in entries,
        manual_axes=tuple(manual_axes(entries["manual_axes"])) if "manual_axes" in entries else (),
        extras=tuple(sorted((name, each) for name, each in entries.items() if name not in _OWN)),
    )
    ir.RankedTensorType(finding.value.type)  # raises if the op has no such value, or if the value is no tensor
    return finding


def _summary(findings: Findings) -> ir.DictAttr:
    entries = {
        "version": int64_attr(VERSION),
        "sites": int64_attr(findings.sites),
        "skipped": ir.ArrayAttr.get([_skipped_to_attr(each) for each in findings.skipped]),
    }
    if findings.open_results:
        entries["open_results"] = ir.ArrayAttr.get([_open_result_to_attr(each) for each in findings.open_results])
    return ir.DictAttr.get(entries)


def _open_result_to_attr(result: OpenResult) -> ir.DictAttr:
    entries = {"function": ir.StringAttr.get(result.function), "result": int64_attr(result.number)}
    return ir.DictAttr.get({**entries, "sharding": result.sharding})


def _open_results_from(summary: ir.DictAttr) -> tuple[OpenResult, ...]:
    if "open_results" not in summary:
        return ()
    found = [ir.DictAttr(each) for each in ir.ArrayAttr(summary["open_results"])]
    return tuple(
        OpenResult(ir.StringAttr(each["function"]).value, ir.IntegerAttr(each["result"]).value, each["sharding"])
        for each in found
    )


def _skipped_to_attr(skipped: Skipped) -> ir.DictAttr:
    entries = {"kind": skipped.kind, "where": skipped.where, "why": skipped.reason}
    return ir.DictAttr.get({name: ir.StringAttr.get(text) for name, text in entries.items()})


def _skipped_from_attr(attr: ir.Attribute) -> Skipped:
    entries = ir.DictAttr(attr)
    kind, where, reason = (ir.StringAttr(entries[name]).value for name in ("kind", "where", "why"))
    return Skipped(kind, where, reason)
