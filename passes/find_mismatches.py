# SPDX-License-Identifier: Apache-2.0
"""The pass find-mismatches: finds every edge whose two ends disagree on the layout."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.dialect_utils.analysis.module_analysis import Analysis, analyse
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Place
from reshard.dialect_utils.ir.functions import functions_of, is_public
from reshard.dialect_utils.ir.ops import (
    CONSTRAINTS,
    LOOPS,
    ops_around,
    owner_of_argument,
    parent_of,
    producer_of,
    short_name,
)
from reshard.dialect_utils.ir.shardy_limits import NotPropagatedError
from reshard.dialect_utils.platform.bindings import ir, sdy
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.shardings.sdy_shardings import (
    Shardings,
    mesh_of,
    module_meshes,
    replicated_like,
    sharding_from_attr,
    sharding_to_attr,
)
from reshard.dialect_utils.shardings.value_layouts import stated_results
from reshard.passes.driver.base import Pass, Session
from reshard.passes.sites import findings as kinds
from reshard.passes.sites import wording
from reshard.passes.sites.clone_edges import CloneEdges, Edge, Layouts, rank_of
from reshard.passes.sites.findings import PREFIX, Finding, Findings, OpenResult, Skipped, write_findings
from reshard.passes.sites.unsupported import dynamic_type, first_with, refuse_uneven_ends, unsupported_type


@dataclasses.dataclass(frozen=True)
class FindMismatchesPass(Pass):
    """Propagates shardings on a clone and writes the mismatches onto the original."""

    name = "find-mismatches"
    summary = "find every value that is produced in one layout and used in another"
    description = """
    Runs sharding propagation and explicit reshards on a clone of the module, prepared as XLA prepares its own (calls
    inlined, loop invariants captured). The pass writes each conversion onto the op of the original at which it happens.
    Ops, types and shardings of the original stay as they are. If the calls of a function convert differently, the
    function gets a clone for each way; `reshard.clone_of` names the original function of a clone. strip-findings merges
    the clones that no pass has rewritten.

    Before ==> after:
    ```mlir
    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
    ```
    ```mlir
    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
    return {reshard.operand_sites = [{kind = "function_result", operand = 0 : i64, site = 0 : i64,
      source = #sdy.sharding<@mesh, [{"x"}, {}]>, target = #sdy.sharding<@mesh, [{}, {"x"}]>,
      why = "result 0 of @main is [{}, {\\"x\\"}]; the returned value is [{\\"x\\"}, {}]"}]} %0 : tensor<8x8xf32>
    ```

    An edge has the first kind of this list that fits:

    - constraint: the user is a sharding constraint
    - result: the op computes in another layout than its value has (on the producer; all other kinds are on the user)
    - function_result: the user is the return of a public function
    - loop: the user is a loop, or the end of the body of a loop or case
    - call: the value crosses a call: an operand, argument or result of one
    - argument: the value is an argument of a public function
    - loop: the value is an argument of the body of a loop
    - operand: any other: the op wants the operand in another layout
    """
    guarantees = (
        "the module has `reshard.findings`; after strip-findings it is what it was",
        "source and target of every site are closed and place the array differently",
        "a mismatch that is no site is listed in `skipped` with its reason",
        "results of public functions whose sharding the caller left open are listed in `open_results` with the layout "
        "that they get",
    )
    statistics = {
        "sites": "distinct conversions of a value",
        "edges": "uses that are served by them",
        "skipped": "mismatches left alone",
    }

    def run(self, module: ir.Module, session: Session) -> None:
        try:
            analysis = analyse(module)
        except NotPropagatedError as error:
            session.running.is_module_valid = session.running.is_module_unchanged = True
            session.results.left_whole = f"the module is left to XLA: {error.reason}"
            self._write(module, (), [(error.place, Skipped(kinds.OPERAND, "the module", error.reason))], session)
            return
        except DiagnosedError:
            unsupported = first_with(unsupported_type, module)
            if unsupported is None:
                raise
            session.running.is_module_valid = session.running.is_module_unchanged = True
            self._write(module, (), [unsupported], session)
            return
        session.running.is_module_valid = session.running.is_module_unchanged = True
        refuse_uneven_ends(analysis, session)
        finder = Finder(analysis)
        if disagreements := finder.disagreements():
            from reshard.passes.sites.specialization import specialise  # few modules need it

            analysis = specialise(analysis, disagreements)
            session.running.is_module_valid = session.running.is_module_unchanged = False
            finder = Finder(analysis)
        edges = list(finder.numbered(finder.mismatches()))
        if (
            analysis.has_dynamic_shapes and not finder.skipped
        ):  # nothing is propagated in such a module, so no edge reports the type
            finder.skipped += filter(None, [first_with(dynamic_type, module)])
        self._write(module, tuple(edges), finder.skipped, session, finder.open_results(edges), analysis.originals)
        session.handed_on.analysis = analysis

    def _write(
        self,
        module: ir.Module,
        edges: tuple[Finding, ...],
        skipped: Sequence[tuple[ir.Operation | Place | None, Skipped]],
        session: Session,
        open_results: tuple[OpenResult, ...] = (),
        ops: Sequence[ir.Operation] | None = None,
    ) -> None:
        for where, each in skipped:
            session.remark(where, f"{each.where} is left alone: {each.reason}")
        found = Findings(edges, tuple(each for _, each in skipped), open_results)
        may_have_any = session.may_have(PREFIX)
        session.handed_on.are_findings_written = may_have_any or not session.running.next_takes_findings
        if session.handed_on.are_findings_written:
            write_findings(module, found, ops=ops if may_have_any else ())
            session.running.is_module_unchanged = False
        session.handed_on.findings = found
        session.count("sites", found.sites)
        session.count("edges", len(found.edges))
        session.count("skipped", len(found.skipped))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An edge of the original whose ends disagree in the same way in every instance of its op.

    Attributes:
      op: index of the op in `Analysis.originals`.
      number: the number of the operand, or of the result if `is_result`.
      source, target: sharding attributes of the clone; source None is replicated.
      manual_axes: the axes of the manual computations around it.
    """

    op: int
    number: int
    is_result: bool
    source: ir.Attribute | None
    target: ir.Attribute
    manual_axes: tuple[str, ...]


class Finder:
    """Turns the edges of the clone into mismatches of the original.

    State: `skipped` has the edges that are no sites, with their reasons. Invariant: an edge is either a mismatch or
    in `skipped`.
    """

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self._layouts = Layouts(analysis.explicit)
        self._edges = CloneEdges(analysis, self._layouts)
        self.skipped = self._edges.skipped
        self._original_meshes = module_meshes(analysis.originals[0])
        self._shardings = Shardings()
        self._translated: dict[ir.Attribute, ir.Attribute] = {}
        self._manual_axes_in: dict[ir.Operation | None, tuple[str, ...]] = {}
        self._uneven: dict[tuple[ir.Type, ir.Attribute | None, ir.Attribute], bool] = {}

    def mismatches(self) -> list[Mismatch]:
        """Returns the mismatches in the order of the original."""
        return [each for edge in self._edges_of_originals if (each := self._agreed(edge))]

    def disagreements(self) -> dict[int, tuple]:
        """Returns, by serial, the outcomes of all instances of the ops whose instances convert differently.

        If only some instances of an op convert, they convert differently, too.
        """
        found: dict[int, tuple] = {}
        for edge in self._edges_of_originals:
            if len(self.analysis.instances[edge[0]]) == 1:
                continue
            outcomes = self._outcomes(edge)
            if len(set(outcomes.values())) > 1 and any(isinstance(each, Mismatch) for each in outcomes.values()):
                for serial, outcome in outcomes.items():
                    found[serial] = (*found.get(serial, ()), (edge, outcome))
        return found

    def numbered(self, mismatches: list[Mismatch]) -> Iterator[Finding]:
        """Yields a finding for each mismatch.

        Mismatches of one value with the same source and target have the same site number.
        """
        numbers: dict[tuple[ir.Value, ir.Attribute, ir.Attribute], int] = {}
        for each in mismatches:
            op = self.analysis.originals[each.op]
            value = (op.results if each.is_result else op.operands)[each.number]
            target = self._for_original(each.target)
            if each.source is None:
                source = replicated_like(target, present(rank_of(value)))
            else:
                source = self._for_original(each.source)
            site = numbers.setdefault((value, source, target), len(numbers))
            kind = self._kind(op, each.number, each.is_result)
            why = wording.why(
                op, each.number, kind, self._layouts.text(source), self._layouts.text(target), self._shardings[target]
            )
            yield Finding(op, each.number, site, kind, source, target, why, self._is_uneven(each), each.manual_axes)

    def open_results(self, edges: Sequence[Finding]) -> tuple[OpenResult, ...]:
        """Returns the results of public functions that the caller left open, with the layouts from propagation.

        A result without a layout from propagation is replicated, on the mesh of another layout if there is one.
        """
        found = []
        like = edges[0].target if edges else None
        for op in filter(is_public, functions_of(self.analysis.originals[0])):
            name = ir.StringAttr(op.attributes["sym_name"]).value
            types = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value).results
            layouts = self.analysis.result_layouts.get(name, ())
            own = [attr and self._for_original(attr) for attr in layouts]
            like = next(filter(None, (like, *own)), None)
            for number, (stated, attr, kind) in enumerate(zip(stated_results(op), own, types)):
                is_open = stated is None or bool(self._shardings[stated].open_dims)
                if like is not None and is_open and isinstance(kind, ir.RankedTensorType):
                    sharding = replicated_like(like, kind.rank) if attr is None else attr
                    found.append(OpenResult(name, number, sharding))
        return tuple(found)

    # From the clone to the original

    @functools.cached_property
    def _edges_of_originals(self) -> list[Edge]:
        edges = {
            (index, number, is_result)
            for serial, number, is_result in (*self._edges.found, *self._edges.reasons)
            if (index := self.analysis.origin[serial]) is not None
        }
        edges |= set(self._edges.piece_reasons)
        return sorted(edges, key=lambda edge: (edge[0], edge[2], edge[1]))

    def _outcomes(self, edge: Edge) -> dict[int, Mismatch | str | None]:
        """Returns, by serial, each instance's mismatch, the reason why it is no site, or None if nothing converts."""
        index, number, is_result = edge
        outcomes: dict[int, Mismatch | str | None] = {}
        for serial in self.analysis.instances[index]:
            here = serial, number, is_result
            outcomes[serial] = self._edges.piece_reasons.get(edge) or self._edges.reasons.get(here)
            if outcomes[serial] is None and here in self._edges.found:
                outcomes[serial] = Mismatch(*edge, *self._edges.found[here], self._manual_axes(serial))
        return outcomes

    def _agreed(self, edge: Edge) -> Mismatch | None:
        """Returns the mismatch if all instances of the op have the same; else None, with the reason in `skipped`."""
        found = set(self._outcomes(edge).values())
        if len(found) == 1 and isinstance(only := next(iter(found)), Mismatch):
            return only
        mismatches = [each for each in found if isinstance(each, Mismatch)]
        reasons = sorted(each for each in found if isinstance(each, str))
        if not mismatches:
            self._skip(*edge, reasons[0])
            return None
        texts = [f"{wording.layout_text(each.source)} to {wording.layout_text(each.target)}" for each in mismatches]
        texts += reasons + ["no conversion"] * (None in found)
        self._skip(*edge, f"the calls of its function disagree: {'; '.join(sorted(texts))}")
        return None

    def _manual_axes(self, serial: int) -> tuple[str, ...]:
        """Returns the axes of the manual computations around an instance, outermost first."""
        parent = self.analysis.prepared_ops[serial].parent
        if parent not in self._manual_axes_in:
            around = list(ops_around(self.analysis.prepared_ops[serial]))
            manual = [op for op in reversed(around) if op.name == "sdy.manual_computation"]
            axes = tuple(axis for op in manual for axis in sdy.ManualAxesAttr(op.attributes["manual_axes"]))
            self._manual_axes_in[parent] = axes
        return self._manual_axes_in[parent]

    def _skip(self, index: int, number: int, is_result: bool, reason: str) -> None:
        op = self.analysis.originals[index]
        where = f"{'result' if is_result else 'operand'} {number} of {short_name(op)}"
        self.skipped.append((op, Skipped(self._kind(op, number, is_result), where, reason)))

    def _for_original(self, attr: ir.Attribute) -> ir.Attribute:
        """Returns the closed sharding on a mesh of the original; propagation lifts and merges inlined meshes."""
        if attr not in self._translated:
            self._translated[attr] = self._translate(attr)
        return self._translated[attr]

    def _translate(self, attr: ir.Attribute) -> ir.Attribute:
        mesh = mesh_of(attr, self._layouts.meshes)
        reference = sdy.TensorShardingAttr(attr).mesh_or_ref
        if isinstance(reference, ir.FlatSymbolRefAttr):
            names = [name for name, each in self._original_meshes.items() if each == mesh]
            own = ir.FlatSymbolRefAttr(reference).value
            if own not in names:
                reference = names[0] if names else _inlined_mesh(self.analysis.explicit, own)
        return sharding_to_attr(sharding_from_attr(attr).closed(), reference)

    def _kind(self, op: ir.Operation, number: int, is_result: bool) -> str:
        if op.name in CONSTRAINTS:
            return kinds.CONSTRAINT
        if is_result:
            return kinds.RESULT
        value = op.operands[number]
        around = parent_of(op)
        if op.name == "func.return":
            return kinds.FUNCTION_RESULT if is_public(around) else kinds.CALL
        if op.name in LOOPS:
            return kinds.LOOP
        if op.name == "stablehlo.return" and around.name in (*LOOPS, "stablehlo.case", "stablehlo.if"):
            return kinds.LOOP
        if op.name == "func.call":
            return kinds.CALL
        return _kind_by_producer(value)

    def _is_uneven(self, mismatch: Mismatch) -> bool:
        op = self.analysis.originals[mismatch.op]
        kind = (op.results if mismatch.is_result else op.operands)[mismatch.number].type
        asked = kind, mismatch.source, mismatch.target
        if asked not in self._uneven:
            shape = ir.ShapedType(kind).shape
            placements = (self._layouts.placement(attr, len(shape)) for attr in asked[1:])
            self._uneven[asked] = any(
                size % shards for each in placements for size, shards in zip(shape, each.shards(), strict=True)
            )
        return self._uneven[asked]


def _kind_by_producer(value: ir.Value) -> str:
    producer = producer_of(value)
    if producer is not None:
        return kinds.CALL if producer.name == "func.call" else kinds.OPERAND
    owner = owner_of_argument(value)
    if owner.name == "func.func":
        return kinds.ARGUMENT if is_public(owner) else kinds.CALL
    return kinds.LOOP if owner.name in LOOPS else kinds.OPERAND


def _inlined_mesh(module: ir.Operation, name: str) -> ir.Attribute:
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            return op.attributes["mesh"]
    raise AssertionError(f"propagation made a sharding on @{name}, which the module lacks")
