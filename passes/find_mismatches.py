# SPDX-License-Identifier: Apache-2.0
"""The pass find-mismatches: every edge whose two ends disagree on the layout."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reshard.dialect_utils import propagation
from reshard.dialect_utils.bindings import ir, sdy, stablehlo
from reshard.dialect_utils.diagnostics import DiagnosedError
from reshard.dialect_utils.not_propagated import NotPropagatedError
from reshard.dialect_utils.ops import producer_of
from reshard.dialect_utils.propagation import Analysis
from reshard.dialect_utils.sdy_shardings import (
    Placement,
    Shardings,
    UnsupportedSharding,
    mesh_of,
    module_meshes,
    placement,
    replicated_like,
    sharding_from_attr,
    sharding_to_attr,
)
from reshard.passes import findings as kinds
from reshard.passes.base import Pass, Session
from reshard.passes.findings import PREFIX, Finding, Findings, OpenResult, Skipped, write_findings
from reshard.synthesis.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class FindMismatchesPass(Pass):
    """Propagates shardings on a clone and writes what it finds onto the original."""

    name = "find-mismatches"
    summary = "find every value that is produced in one layout and used in another"
    description = """
    Runs sharding propagation and explicit reshards on a clone of the module, prepared as XLA prepares its own (calls
    inlined, loop invariants captured), and writes each conversion onto the op of the original at which it happens. Ops,
    types and shardings of the original stay as they are. A function whose calls convert differently gets a clone for each
    way, which says in `reshard.clone_of` what it is made of; strip-findings merges those that nobody has rewritten.

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
    - result: the op computes in another layout than its value has (on the producer, all other kinds on the user)
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
        "results of public functions whose sharding the caller left open are listed in `open_results` with the layout they get",
    )
    statistics = {
        "sites": "distinct conversions of a value",
        "edges": "uses that are served by them",
        "skipped": "mismatches left alone",
    }

    def run(self, module: ir.Module, session: Session) -> None:
        try:
            analysis = propagation.analyse(module)
        except NotPropagatedError as error:
            session.is_verified = session.is_left = True
            session.left_whole = f"the module is left to XLA: {error.reason}"
            self._write(module, (), [(error.place, Skipped(kinds.OPERAND, "the module", error.reason))], session)
            return
        except DiagnosedError:
            unsupported = _first_with(_unsupported, module)
            if unsupported is None:
                raise
            session.is_verified = session.is_left = True
            self._write(module, (), [unsupported], session)
            return
        session.is_verified = session.is_left = True
        _refuse_uneven_ends(analysis, session)
        finder = Finder(analysis)
        if disagreements := finder.disagreements():
            from reshard.passes.specialization import specialise  # few modules need it

            analysis = specialise(analysis, disagreements)
            session.is_verified = session.is_left = False
            finder = Finder(analysis)
        edges = list(finder.numbered(finder.mismatches()))
        if analysis.has_dynamic_shapes and not finder.skipped:  # nothing is propagated there, so that there is no edge to tell of
            finder.skipped += filter(None, [_first_with(_dynamic, module)])
        self._write(module, tuple(edges), finder.skipped, session, finder.open_results(edges), analysis.originals)
        session.analysis = analysis

    def _write(
        self, module, edges, skipped: list[tuple[ir.Operation, Skipped]], session: Session, open_results=(), ops=None
    ) -> None:
        for where, each in skipped:
            session.remark(where, f"{each.where} is left alone: {each.reason}")
        found = Findings(edges, tuple(each for _, each in skipped), open_results)
        may_have_any = session.may_have(PREFIX)
        session.are_findings_written = may_have_any or not session.hands_over
        if session.are_findings_written:
            write_findings(module, found, ops=ops if may_have_any else ())
            session.is_left = False
        session.findings = found
        session.count("sites", found.sites)
        session.count("edges", len(found.edges))
        session.count("skipped", len(found.skipped))


def _refuse_uneven_ends(analysis: Analysis, session: Session) -> None:
    """Reports shardings that do not divide an argument or a result of a public function: XLA would take another, silently."""
    meshes = module_meshes(analysis.originals[0])
    problems: dict[tuple[ir.Type, ir.Attribute], str | None] = {}
    for op in propagation.functions_of(analysis.originals[0]):
        if not propagation.is_public(op):
            continue
        signature = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        for noun, types, stated in (
            ("argument", signature.inputs, propagation.stated_arguments(op)),
            ("result", signature.results, propagation.stated_results(op)),
        ):
            for number, (kind, attr) in enumerate(zip(types, stated, strict=True)):
                if attr is None:
                    continue
                if (kind, attr) not in problems:
                    problems[kind, attr] = _does_not_divide(kind, attr, meshes)
                if problem := problems[kind, attr]:
                    stated_as = f"{noun} {number} of type {kind} is sharded {_text(attr)}"
                    session.error(op, f"{stated_as}: {problem}; pad it, or shard it otherwise")


def _does_not_divide(kind: ir.Type, attr: ir.Attribute, meshes) -> str | None:
    """Returns which dimension does not divide into its shards, None if all do or their number is unknown."""
    mesh = mesh_of(attr, meshes)
    if mesh is None or not mesh.axes or not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        return None  # a sharding on a single device has no dimensions
    for dim, (size, shards) in enumerate(zip(kind.shape, sharding_from_attr(attr).shards(mesh), strict=True)):
        if size % shards:
            return f"dimension {dim} of size {size} does not divide into {shards} shards"
    return None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An edge of the original whose ends disagree, the same in every instance of its op.

    Attributes:
      op: index of the op in `Analysis.originals`.
      number: of the operand; of the result if `is_result`.
      source, target: sharding attributes of the clone; source None is replicated.
      manual_axes: of the manual computations around it.
    """

    op: int
    number: int
    is_result: bool
    source: ir.Attribute | None
    target: ir.Attribute
    manual_axes: tuple[str, ...]


# Shardy inserts reshards at these whatever the meshes are, or another edge tells of them.
_CONVERTED_ON_ANY_MESH = frozenset({"sdy.manual_computation", "func.return", "stablehlo.return", "sdy.return"})

_Edge = tuple[int, int, bool]  # serial of an op of the clone, operand or result number, whether it is a result


class Finder:
    """Reads mismatches off an analysis.

    State: `_found` has each edge of the clone with its (source, target), `_reasons` why others are no sites; `_piece_reasons`
    by edge of the original, since the ops that XLA writes for one are no instances of it. `skipped` is what is told of them.
    Invariant: an edge is a mismatch or in `skipped`, never both.
    """

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.skipped: list[tuple[ir.Operation, Skipped]] = []
        self.meshes = module_meshes(analysis.explicit)
        self._original_meshes = module_meshes(analysis.originals[0])
        self._found: dict[_Edge, tuple[ir.Attribute | None, ir.Attribute]] = {}
        self._reasons: dict[_Edge, str] = {}
        self._piece_reasons: dict[_Edge, str] = {}
        self._translated: dict[ir.Attribute, ir.Attribute] = {}
        self._texts: dict[ir.Attribute, str] = {}
        self._ranks: dict[ir.Type, int | None] = {}
        self._placements: dict[tuple[ir.Attribute | None, int], Placement] = {}
        self._shardings = Shardings()
        self._manual_axes_in: dict[ir.Operation | None, tuple[str, ...]] = {}
        self._uneven: dict[tuple[ir.Type, ir.Attribute | None, ir.Attribute], bool] = {}
        self._read_constraints()
        self._read_inserted_reshards()
        self._read_ops_on_several_meshes()

    def mismatches(self) -> list[Mismatch]:
        """Returns the mismatches in the order of the original."""
        return [each for edge in self._edges_of_originals if (each := self._agreed(edge))]

    def disagreements(self) -> dict[int, tuple]:
        """Returns for the instances of each op that has to convert in some of them only, or differently, what each has to do."""
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
        """Yields the findings; mismatches of one value with the same source and target share a number."""
        numbers: dict[tuple[ir.Value, ir.Attribute, ir.Attribute], int] = {}
        for each in mismatches:
            op = self.analysis.originals[each.op]
            value = (op.results if each.is_result else op.operands)[each.number]
            target = self._for_original(each.target)
            source = self._for_original(each.source) or replicated_like(target, _rank(value))
            site = numbers.setdefault((value, source, target), len(numbers))
            kind = self._kind(op, each.number, each.is_result)
            why = _why(op, each.number, kind, self._text(source), self._text(target), self._shardings[target])
            yield Finding(op, each.number, site, kind, source, target, why, self._is_uneven(each), each.manual_axes)

    def open_results(self, edges: Sequence[Finding]) -> tuple[OpenResult, ...]:
        """Returns the results of public functions that the caller left open, with the layouts that propagation gives them.

        A result to which it gives none is replicated. Where there is no edge, nothing will be rewritten and none is named.
        """
        functions = propagation.functions_of(self.analysis.originals[0]) if edges else ()
        found = []
        for op in filter(propagation.is_public, functions):
            name = ir.StringAttr(op.attributes["sym_name"]).value
            types = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value).results
            layouts = self.analysis.result_layouts.get(name, ())
            for number, (stated, attr, kind) in enumerate(zip(propagation.stated_results(op), layouts, types)):
                is_open = stated is None or bool(self._shardings[stated].open_dims)
                if is_open and isinstance(kind, ir.RankedTensorType):
                    sharding = self._for_original(attr) or replicated_like(edges[0].target, kind.rank)
                    found.append(OpenResult(name, number, sharding))
        return tuple(found)

    # Reading the clone

    def _read_constraints(self) -> None:
        """Takes the constraints as propagation left them: the explicit reshards treat them like any op."""
        for serial, (source, target) in self.analysis.constraints.items():
            opened = self.analysis.opened.get(serial)
            if opened is None:
                self._add((serial, 0, False), source, target)
                continue
            for number in opened.operands:
                self._add((opened.loop, number, False), source, target)
            if not opened.operands and not self._is_same(source, target, _rank(self.analysis.prepared_ops[serial].results[0])):
                loop = self.analysis.originals[self.analysis.origin[opened.loop]]
                reason = "the loop has no operand for it; pass it through the loop"
                self.skipped.append((loop, Skipped(kinds.LOOP, f"a value that {_short_name(loop)} captures", reason)))

    def _read_inserted_reshards(self) -> None:
        restoring: set[ir.Value] = set()
        for op in self.analysis.inserted_reshards:
            value = op.operands[0]
            if self._restores_result(op, value, restoring):
                continue
            source, target, base = self.analysis.layout(value), op.attributes["sharding"], _base(value)
            for use in op.results[0].uses:
                self._read_use(base, use.owner.operation, use.operand_number, source, target)

    def _restores_result(self, reshard: ir.Operation, value: ir.Value, restoring: set[ir.Value]) -> bool:
        """Notes the result of an op that computes in another layout than propagation gave the value, which this restores."""
        if value in restoring:  # restored in two steps
            restoring.add(reshard.results[0])
            return True
        producer = producer_of(value)
        serial = producer and propagation.serial_of(producer)
        if serial is None:
            return False
        number = ir.OpResult(value).result_number
        source = self.analysis.result_layout(producer, number)
        rank = self._rank(value)
        befores = self._layouts_before(producer, serial, number)
        if any(self._is_same(source, before, rank) for before in befores):
            return False
        target = reshard.attributes["sharding"]
        if not any(self._is_same(target, before, rank) for before in befores):
            restoring.add(reshard.results[0])
            target = next(iter(befores)) or target
        if serial not in self.analysis.constraints:
            self._add((serial, number, True), source, target)
        return True

    def _layouts_before(self, producer: ir.Operation, serial: int, number: int) -> set[ir.Attribute | None]:
        if serial in self.analysis.constraints:
            return {self.analysis.constraints[serial][1]}
        attrs = self.analysis.layouts.get(serial, {None})
        return {self.analysis.nth_sharding(attr, number) if attr else None for attr in attrs}

    def _read_use(self, base: ir.Value | None, user: ir.Operation, number: int, source, target) -> None:
        """Takes a conversion of `base` to the layout that an op uses it in; None is a value that passes an op that Shardy inserted."""
        serial = propagation.serial_of(user)
        if serial is None:
            return  # another inserted reshard, read on its own; nothing else is inserted after one
        if serial in self.analysis.constraints:
            return
        edge = (serial, number, False)
        if base is None:
            self._refuse(edge, "partial sums are reduced here; layouts with partial sums are not supported yet")
        elif _is_constant(base):
            self._refuse(edge, "a constant is made in any layout without traffic")
        elif not self._is_same_value(base, self.analysis.prepared_ops[serial].operands[number]):
            self._refuse(edge, "propagation feeds a constraint of the value to this op, not the value itself")
        else:
            self._add(edge, source, target)

    def _read_ops_on_several_meshes(self) -> None:
        """Takes the operands that Shardy leaves unconverted because the values of their op are on meshes of different axes."""
        if len({mesh.axes for mesh in self.meshes.values() if mesh.axes}) < 2:
            return
        for op in self.analysis.explicit_ops:
            serial = propagation.serial_of(op)
            if serial is None or op.name in propagation.CONSTRAINTS or op.name in _CONVERTED_ON_ANY_MESH:
                continue
            for number, value in enumerate(op.operands):
                edge = (serial, number, False)
                if edge not in self._found and (reason := self._left_on_another_mesh(op, number, value)):
                    self._refuse(edge, reason)

    def _left_on_another_mesh(self, op: ir.Operation, number: int, value: ir.Value) -> str | None:
        """Returns why an operand is not converted to a layout in which the op computes; None if there is nothing to convert.

        Where a result has another shape, which layout of the operand fits it is unknown: any split one is taken.
        """
        attr = self.analysis.layout(value)
        if attr is None or _is_constant(value):
            return None
        mine = self._placement_or_none(attr, self._rank(value))
        if mine is None or mine.mesh is None:
            return None
        for result in _results_of_operand(op, number):
            other = self.analysis.layout(result)
            theirs = other and self._placement_or_none(other, self._rank(result))
            if theirs is None or mesh_of(other, self.meshes).axes == mine.mesh.axes:
                continue
            if result.type != value.type or theirs != mine:
                return _across_meshes(mine, self._on_mesh(other))
        return None

    def _placement_or_none(self, attr: ir.Attribute, rank: int | None) -> Placement | None:
        if rank is None:
            return None
        try:
            return self._placement(attr, rank)
        except UnsupportedSharding:
            return None

    def _on_mesh(self, attr: ir.Attribute) -> str:
        return f"{self._text(attr)} on {mesh_of(attr, self.meshes)}"

    def _is_same_value(self, value: ir.Value, prepared: ir.Value) -> bool:
        """Returns whether propagation left the operand, or replaced a value of a loop by the constraint on it.

        The latter is what XLA does too, whatever else uses the value (`sdy-apply-sharding-constraints`). The other rewiring of
        that pass, to the end of a chain of constraints, stops once a manual computation uses the value.
        """
        if _identity(value) == _identity(prepared):
            return True
        producer = producer_of(value)
        if producer is None or producer.name not in propagation.CONSTRAINTS or not _is_data_flow_target(prepared):
            return False
        constraint = self.analysis.prepared_ops[propagation.serial_of(producer)]
        return _identity(constraint.operands[0]) == _identity(prepared)

    def _add(self, edge: _Edge, source: ir.Attribute | None, target: ir.Attribute) -> None:
        serial, number, is_result = edge
        op = self.analysis.prepared_ops[serial]
        if serial in self.analysis.pieces or (not is_result and self._is_split(op)):
            self._refuse((serial, 0, False), "XLA writes this broadcast as several ops")
            return
        rank = self._rank((op.results if is_result else op.operands)[number])
        if rank is None:
            self._refuse(edge, "the value is no ranked tensor")
            return
        if (reason := self._unsupported_in_original(edge)) is not None:
            self._refuse(edge, reason)
            return
        try:
            if self._placement(source, rank) != self._placement(target, rank):
                self._found[edge] = source, target
        except UnsupportedSharding:
            self._refuse(edge, "no layout has its sharding: the whole value is on one device, or the mesh is too large")

    def _unsupported_in_original(self, edge: _Edge) -> str | None:
        """Returns why the original's value cannot be converted although its stand-in can; None if it can."""
        serial, number, is_result = edge
        if self.analysis.origin[serial] is None:
            return None
        op = self.analysis.originals[self.analysis.origin[serial]]
        values = op.results if is_result else op.operands
        return _unsupported(values[min(number, len(values) - 1)].type)

    def _is_split(self, op: ir.Operation) -> bool:
        producers = (producer_of(value) for value in op.operands) if op.name == "stablehlo.broadcast_in_dim" else ()
        return any(each is not None and propagation.serial_of(each) in self.analysis.pieces for each in producers)

    def _refuse(self, edge: _Edge, reason: str) -> None:
        serial = edge[0]
        if serial in self.analysis.pieces:
            self._piece_reasons.setdefault((self.analysis.pieces[serial], 0, False), reason)
        else:
            self._reasons.setdefault(edge, reason)

    # From the clone to the original

    @functools.cached_property
    def _edges_of_originals(self) -> list[_Edge]:
        edges = {(self.analysis.origin[serial], *rest) for serial, *rest in (*self._found, *self._reasons)}
        edges |= set(self._piece_reasons)
        return sorted((edge for edge in edges if edge[0] is not None), key=lambda edge: (edge[0], edge[2], edge[1]))

    def _outcomes(self, edge: _Edge) -> dict[int, Mismatch | str | None]:
        """Returns for each instance of the op the mismatch, why it is no site, or None if there is no conversion."""
        index, number, is_result = edge
        outcomes: dict[int, Mismatch | str | None] = {}
        for serial in self.analysis.instances[index]:
            here = serial, number, is_result
            outcomes[serial] = self._piece_reasons.get(edge) or self._reasons.get(here)
            if outcomes[serial] is None and here in self._found:
                outcomes[serial] = Mismatch(*edge, *self._found[here], self._manual_axes(serial))
        return outcomes

    def _agreed(self, edge: _Edge) -> Mismatch | None:
        """Returns the mismatch on which all instances of the op agree; None, with the reason in `skipped`, otherwise."""
        found = set(self._outcomes(edge).values())
        if len(found) == 1 and isinstance(only := next(iter(found)), Mismatch):
            return only
        mismatches = [each for each in found if isinstance(each, Mismatch)]
        reasons = sorted(each for each in found if isinstance(each, str))
        if not mismatches:
            self._skip(*edge, reasons[0])
            return None
        texts = [f"{_text(each.source)} to {_text(each.target)}" for each in mismatches]
        texts += reasons + ["no conversion"] * (None in found)
        self._skip(*edge, f"the calls of its function disagree: {'; '.join(sorted(texts))}")
        return None

    def _manual_axes(self, serial: int) -> tuple[str, ...]:
        """Returns the axes of the manual computations around an instance, outermost first."""
        parent = self.analysis.prepared_ops[serial].parent
        if parent not in self._manual_axes_in:
            around = list(propagation.ops_around(self.analysis.prepared_ops[serial]))
            manual = [op for op in reversed(around) if op.name == "sdy.manual_computation"]
            axes = tuple(axis for op in manual for axis in sdy.ManualAxesAttr(op.attributes["manual_axes"]))
            self._manual_axes_in[parent] = axes
        return self._manual_axes_in[parent]

    def _skip(self, index: int, number: int, is_result: bool, reason: str) -> None:
        op = self.analysis.originals[index]
        where = f"{'result' if is_result else 'operand'} {number} of {_short_name(op)}"
        self.skipped.append((op, Skipped(self._kind(op, number, is_result), where, reason)))

    def _for_original(self, attr: ir.Attribute | None) -> ir.Attribute | None:
        """Returns the closed sharding on a mesh of the original; propagation lifts and merges inlined meshes."""
        if attr is None:
            return None
        if attr not in self._translated:
            self._translated[attr] = self._translate(attr)
        return self._translated[attr]

    def _translate(self, attr: ir.Attribute) -> ir.Attribute:
        mesh = mesh_of(attr, self.meshes)
        reference = sdy.TensorShardingAttr(attr).mesh_or_ref
        if isinstance(reference, ir.FlatSymbolRefAttr):
            names = [name for name, each in self._original_meshes.items() if each == mesh]
            own = ir.FlatSymbolRefAttr(reference).value
            if own not in names:
                reference = names[0] if names else _inlined_mesh(self.analysis.explicit, own)
        return sharding_to_attr(sharding_from_attr(attr).closed(), reference)

    def _kind(self, op: ir.Operation, number: int, is_result: bool) -> str:
        if op.name in propagation.CONSTRAINTS:
            return kinds.CONSTRAINT
        if is_result:
            return kinds.RESULT
        value = op.operands[number]
        around = op.parent.operation
        if op.name == "func.return":
            return kinds.FUNCTION_RESULT if propagation.is_public(around) else kinds.CALL
        if op.name in propagation.LOOPS:
            return kinds.LOOP
        if op.name == "stablehlo.return" and around.name in (*propagation.LOOPS, "stablehlo.case", "stablehlo.if"):
            return kinds.LOOP
        if op.name == "func.call":
            return kinds.CALL
        return _kind_by_producer(value)

    def _text(self, attr: ir.Attribute) -> str:
        if attr not in self._texts:
            self._texts[attr] = _text(attr)
        return self._texts[attr]

    def _is_uneven(self, mismatch: Mismatch) -> bool:
        op = self.analysis.originals[mismatch.op]
        kind = (op.results if mismatch.is_result else op.operands)[mismatch.number].type
        asked = kind, mismatch.source, mismatch.target
        if asked not in self._uneven:
            shape = ir.ShapedType(kind).shape
            placements = (self._placement(attr, len(shape)) for attr in asked[1:])
            self._uneven[asked] = any(size % shards for each in placements for size, shards in zip(shape, each.shards(), strict=True))
        return self._uneven[asked]

    # Layouts

    def _rank(self, value: ir.Value) -> int | None:
        kind = value.type
        if kind not in self._ranks:
            self._ranks[kind] = _rank(value)
        return self._ranks[kind]

    def _placement(self, attr: ir.Attribute | None, rank: int) -> Placement:
        key = attr, rank
        if key not in self._placements:
            self._placements[key] = placement(attr, rank, self.meshes)
        return self._placements[key]

    def _is_same(self, one: ir.Attribute | None, other: ir.Attribute | None, rank: int | None) -> bool:
        if rank is None:
            return True
        try:
            return self._placement(one, rank) == self._placement(other, rank)
        except UnsupportedSharding:
            return False


def _first_with(reason_of: Callable[[ir.Type], str | None], module: ir.Module) -> tuple[ir.Operation, Skipped] | None:
    """Returns the first op with an operand of a type that has a reason, and that it is left alone for it; None if there is none."""
    for op in propagation.ops_in(module.operation):
        for number, value in enumerate(op.operands):
            reason = reason_of(value.type)
            if reason is not None:
                kind = kinds.CONSTRAINT if op.name in propagation.CONSTRAINTS else kinds.OPERAND
                return op, Skipped(kind, f"operand {number} of {_short_name(op)}", reason)
    return None


def _unsupported(kind: ir.Type) -> str | None:
    """Returns why Shardy does not propagate values of a type; None if it does."""
    if isinstance(kind, ir.TupleType):
        return f"Shardy propagates no tuples such as {kind}; flatten them first"
    if isinstance(kind, ir.UnrankedTensorType):
        return f"{kind} has no rank, and Shardy propagates static shapes only; refine the module's shapes first"
    return _dynamic(kind) or _too_large(kind)


def _too_large(kind: ir.Type) -> str | None:
    """Returns that no count of what moves of a value of a type fits into 64 bits, if so."""
    if not isinstance(kind, ir.RankedTensorType) or math.prod(ir.RankedTensorType(kind).shape) <= _MOST_ELEMENTS:
        return None
    return f"{kind} has more than 2^52 elements, which no network moves"


_MOST_ELEMENTS = 2**52


def _dynamic(kind: ir.Type) -> str | None:
    dim = propagation.dynamic_dimension(kind)
    if dim is None:
        return None
    return f"dimension {dim} of {kind} is dynamic, and Shardy propagates static shapes only; refine the module's shapes first"


def _kind_by_producer(value: ir.Value) -> str:
    producer = producer_of(value)
    if producer is not None:
        return kinds.CALL if producer.name == "func.call" else kinds.OPERAND
    owner = value.owner.owner.operation
    if owner.name == "func.func":
        return kinds.ARGUMENT if propagation.is_public(owner) else kinds.CALL
    return kinds.LOOP if owner.name in propagation.LOOPS else kinds.OPERAND


def _base(value: ir.Value) -> ir.Value | None:
    """Returns the value behind inserted reshards; None if it passes another op that Shardy inserted."""
    producer = producer_of(value)
    while producer is not None and producer.name == "sdy.reshard" and propagation.serial_of(producer) is None:
        value = producer.operands[0]
        producer = producer_of(value)
    if producer is None or propagation.serial_of(producer) is not None or producer.name in propagation.CONSTANTS:
        return value
    return None


def _identity(value: ir.Value) -> tuple:
    """Returns what a value and its copy in a clone have in common."""
    producer = producer_of(value)
    if producer is not None:
        return "result", propagation.serial_of(producer), ir.OpResult(value).result_number
    owner = value.owner.owner.operation
    # Propagation builds functions anew, without their serials.
    serial = None if owner.name == "func.func" else propagation.serial_of(owner)
    return "argument", serial, ir.BlockArgument(value).arg_number


def _is_constant(value: ir.Value) -> bool:
    producer = producer_of(value)
    return producer is not None and producer.name in propagation.CONSTANTS


def _rank(value: ir.Value) -> int | None:
    kind = value.type
    return len(ir.ShapedType(kind).shape) if isinstance(kind, ir.RankedTensorType) else None


def _inlined_mesh(module: ir.Operation, name: str) -> ir.Attribute:
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            return op.attributes["mesh"]
    raise AssertionError(f"propagation made a sharding on @{name}, which the module lacks")


def _results_of_operand(op: ir.Operation, number: int) -> list[ir.Value]:
    """Returns the results that have the layout of an operand: the one with its number where values pass through, else all."""
    if op.name in (*propagation.LOOPS, "stablehlo.optimization_barrier"):
        return [op.results[number]]
    return list(op.results)


# Words


def _across_meshes(source: Placement, target: str) -> str:
    return (
        f"it is {source} on {source.mesh}, and the op computes {target}; Shardy converts no operand between meshes of different "
        "axes, so that stock XLA chooses how; constrain the op's result on the first mesh to have it planned"
    )


def _text(attr: ir.Attribute | None) -> str:
    return str(sharding_from_attr(attr).closed()) if attr else "replicated"


def _short_name(op: ir.Operation) -> str:
    return op.name.removeprefix("stablehlo.").removeprefix("func.").removeprefix("sdy.")


def _why(op: ir.Operation, number: int, kind: str, source: str, wanted: str, target: Sharding) -> str:
    name = _short_name(op)
    if kind == kinds.CONSTRAINT:
        return f"the constraint asks for {wanted}; its operand is {source}"
    if kind == kinds.RESULT:
        return f"{name} computes result {number} as {source}; the value is {wanted}"
    if kind == kinds.FUNCTION_RESULT:
        function = ir.StringAttr(op.parent.operation.attributes["sym_name"]).value
        return f"result {number} of @{function} is {wanted}; the returned value is {source}"
    if op.name in propagation.LOOPS:
        return f"the loop has value {number} as {wanted}; it starts as {source}"
    if op.name == "stablehlo.return":
        return f"{_short_name(op.parent.operation)} has value {number} as {wanted}; its body ends with {source}"
    origin = {kinds.ARGUMENT: "an argument of the function, ", kinds.CALL: "from across a call, ", kinds.LOOP: "of the loop, "}
    contracted = _contracted(op, number, target)
    demand = f"{name} contracts {contracted}" if contracted else f"{name} wants operand {number} as {wanted}"
    return f"{demand}; operand {number}{', ' if kind in origin else ' '}{origin.get(kind, '')}is {source}"


def _contracted(op: ir.Operation, number: int, target: Sharding) -> str:
    """Returns e.g. `dim 1 over "x"` for an operand of a dot_general whose target splits a contracted dimension."""
    if op.name != "stablehlo.dot_general":
        return ""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    dims = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[number]
    axes = target.dims
    return " and ".join(f"dim {dim} over {', '.join(map(str, axes[dim]))}" for dim in sorted(dims) if axes[dim])


def _is_data_flow_target(value: ir.Value) -> bool:
    owner = producer_of(value) or value.owner.owner.operation
    return owner.name in (*propagation.LOOPS, "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier")
