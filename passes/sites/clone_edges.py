# SPDX-License-Identifier: Apache-2.0
"""Edges of the propagated clone whose two ends disagree on the layout, read from the explicit reshards in it."""

from __future__ import annotations

from reshard.dialect_utils.analysis.module_analysis import Analysis
from reshard.dialect_utils.ir.ops import CONSTANTS, CONSTRAINTS, LOOPS, owner_of_argument, producer_of, short_name
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.preparation.serials import serial_of
from reshard.dialect_utils.shardings.sdy_shardings import (
    Placement,
    UnsupportedSharding,
    mesh_of,
    module_meshes,
    placement,
)
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.findings import Skipped
from reshard.passes.sites.unsupported import unsupported_type
from reshard.passes.sites.wording import across_meshes, layout_text

# Shardy inserts reshards at these ops on any meshes, or another edge has their conversion.
_CONVERTED_ON_ANY_MESH = frozenset({"sdy.manual_computation", "func.return", "stablehlo.return", "sdy.return"})

Edge = tuple[int, int, bool]  # serial of an op of the clone, operand or result number, whether it is a result


class Layouts:
    """The ranks, placements and texts of the shardings of one clone, each computed once."""

    def __init__(self, explicit: ir.Operation):
        self.meshes = module_meshes(explicit)
        self._texts: dict[ir.Attribute, str] = {}
        self._ranks: dict[ir.Type, int | None] = {}
        self._placements: dict[tuple[ir.Attribute | None, int], Placement] = {}

    def text(self, attr: ir.Attribute) -> str:
        """Returns a sharding as Shardy prints it."""
        if attr not in self._texts:
            self._texts[attr] = layout_text(attr)
        return self._texts[attr]

    def rank(self, value: ir.Value) -> int | None:
        """Returns the rank of a value; None if it is no ranked tensor."""
        kind = value.type
        if kind not in self._ranks:
            self._ranks[kind] = rank_of(value)
        return self._ranks[kind]

    def placement(self, attr: ir.Attribute | None, rank: int) -> Placement:
        """Returns the placement of the tiles of a value under a sharding. Raises: UnsupportedSharding."""
        key = attr, rank
        if key not in self._placements:
            self._placements[key] = placement(attr, rank, self.meshes)
        return self._placements[key]

    def is_same(self, one: ir.Attribute | None, other: ir.Attribute | None, rank: int | None) -> bool:
        """Returns whether two shardings give a value the same placement; true if `rank` is None."""
        if rank is None:
            return True
        try:
            return self.placement(one, rank) == self.placement(other, rank)
        except UnsupportedSharding:
            return False


class CloneEdges:
    """The edges of the clone of an analysis.

    State: `found` has each edge with its (source, target). `reasons` has the reasons why other edges are not sites.
    `piece_reasons` has such reasons by edge of the original, for ops that XLA writes as several ops. `skipped` has
    values for which the original has no edge.
    """

    def __init__(self, analysis: Analysis, layouts: Layouts):
        self.analysis = analysis
        self.layouts = layouts
        self.found: dict[Edge, tuple[ir.Attribute | None, ir.Attribute]] = {}
        self.reasons: dict[Edge, str] = {}
        self.piece_reasons: dict[Edge, str] = {}
        self.skipped: list[tuple[ir.Operation, Skipped]] = []
        self._read_constraints()
        self._read_inserted_reshards()
        self._read_ops_on_several_meshes()

    def _read_constraints(self) -> None:
        """Adds the constraints as propagation left them, because explicit reshards treat a constraint like any op."""
        for serial, (source, target) in self.analysis.constraints.items():
            opened = self.analysis.opened.get(serial)
            if opened is None:
                self._add((serial, 0, False), source, target)
                continue
            for number in opened.operands:
                self._add((opened.loop, number, False), source, target)
            if not opened.operands and not self.layouts.is_same(
                source, target, rank_of(self.analysis.prepared_ops[serial].results[0])
            ):
                loop = self.analysis.originals[present(self.analysis.origin[opened.loop])]
                reason = "the loop has no operand for it; pass it through the loop"
                self.skipped.append((loop, Skipped(kinds.LOOP, f"a value that {short_name(loop)} captures", reason)))

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
        """Returns whether a reshard restores the layout of a result whose op computes in another layout.

        Propagation gave the result the restored layout. The result is added as an edge.
        """
        if value in restoring:  # restored in two steps
            restoring.add(reshard.results[0])
            return True
        producer = producer_of(value)
        if producer is None or (serial := serial_of(producer)) is None:
            return False
        number = ir.OpResult(value).result_number
        source = self.analysis.result_layout(producer, number)
        rank = self.layouts.rank(value)
        befores = self._layouts_before(producer, serial, number)
        if any(self.layouts.is_same(source, before, rank) for before in befores):
            return False
        target = reshard.attributes["sharding"]
        if not any(self.layouts.is_same(target, before, rank) for before in befores):
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
        """Reads a conversion of `base` to the layout in which an op uses it.

        `base` is None if the value comes from another op that Shardy inserted.
        """
        serial = serial_of(user)
        if serial is None:
            return  # the user is another inserted reshard, which is read on its own; no other op is inserted there
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
        """Reads the operands that Shardy leaves unconverted because their op has values on meshes of different axes."""
        if len({mesh.axes for mesh in self.layouts.meshes.values() if mesh.axes}) < 2:
            return
        for op in self.analysis.explicit_ops:
            serial = serial_of(op)
            if serial is None or op.name in CONSTRAINTS or op.name in _CONVERTED_ON_ANY_MESH:
                continue
            for number, value in enumerate(op.operands):
                edge = (serial, number, False)
                if edge not in self.found and (reason := self._left_on_another_mesh(op, number, value)):
                    self._refuse(edge, reason)

    def _left_on_another_mesh(self, op: ir.Operation, number: int, value: ir.Value) -> str | None:
        """Returns why an operand is not converted to the layout in which its op computes; None if it has that layout.

        If a result has another shape, the fitting layout of the operand is unknown; then any split layout counts.
        """
        attr = self.analysis.layout(value)
        if attr is None or _is_constant(value):
            return None
        mine = self._placement_or_none(attr, self.layouts.rank(value))
        if mine is None or mine.mesh is None:
            return None
        for result in _results_of_operand(op, number):
            other = self.analysis.layout(result)
            if other is None or (theirs := self._placement_or_none(other, self.layouts.rank(result))) is None:
                continue
            if present(mesh_of(other, self.layouts.meshes)).axes == mine.mesh.axes:
                continue
            if result.type != value.type or theirs != mine:
                return across_meshes(mine, self._on_mesh(other))
        return None

    def _placement_or_none(self, attr: ir.Attribute, rank: int | None) -> Placement | None:
        if rank is None:
            return None
        try:
            return self.layouts.placement(attr, rank)
        except UnsupportedSharding:
            return None

    def _on_mesh(self, attr: ir.Attribute) -> str:
        return f"{self.layouts.text(attr)} on {mesh_of(attr, self.layouts.meshes)}"

    def _is_same_value(self, value: ir.Value, prepared: ir.Value) -> bool:
        """Returns whether propagation left the operand, or replaced a value of a loop by the constraint on it.

        XLA makes the same replacement whatever else uses the value (`sdy-apply-sharding-constraints`). That pass also
        replaces a value by the end of a chain of constraints, but not once a manual computation uses the value.
        """
        if _identity(value) == _identity(prepared):
            return True
        producer = producer_of(value)
        if producer is None or producer.name not in CONSTRAINTS or not _is_data_flow_target(prepared):
            return False
        constraint = self.analysis.prepared_ops[present(serial_of(producer))]
        return _identity(constraint.operands[0]) == _identity(prepared)

    def _add(self, edge: Edge, source: ir.Attribute | None, target: ir.Attribute) -> None:
        serial, number, is_result = edge
        op = self.analysis.prepared_ops[serial]
        if serial in self.analysis.pieces or (not is_result and self._is_split(op)):
            self._refuse((serial, 0, False), "XLA writes this broadcast as several ops")
            return
        rank = self.layouts.rank((op.results if is_result else op.operands)[number])
        if rank is None:
            self._refuse(edge, "the value is no ranked tensor")
            return
        if (reason := self._unsupported_in_original(edge)) is not None:
            self._refuse(edge, reason)
            return
        try:
            if self.layouts.placement(source, rank) != self.layouts.placement(target, rank):
                self.found[edge] = source, target
        except UnsupportedSharding:
            self._refuse(edge, "no layout has its sharding: the whole value is on one device, or the mesh is too large")

    def _unsupported_in_original(self, edge: Edge) -> str | None:
        """Returns why the value of the original cannot be converted, even if its stand-in can; None if it can."""
        serial, number, is_result = edge
        index = self.analysis.origin[serial]
        if index is None:
            return None
        op = self.analysis.originals[index]
        values = op.results if is_result else op.operands
        return unsupported_type(values[min(number, len(values) - 1)].type)

    def _is_split(self, op: ir.Operation) -> bool:
        producers = (producer_of(value) for value in op.operands) if op.name == "stablehlo.broadcast_in_dim" else ()
        return any(each is not None and serial_of(each) in self.analysis.pieces for each in producers)

    def _refuse(self, edge: Edge, reason: str) -> None:
        serial = edge[0]
        if serial in self.analysis.pieces:
            self.piece_reasons.setdefault((self.analysis.pieces[serial], 0, False), reason)
        else:
            self.reasons.setdefault(edge, reason)


def _base(value: ir.Value) -> ir.Value | None:
    """Returns the value before inserted reshards; None if it comes from another op that Shardy inserted."""
    producer = producer_of(value)
    while producer is not None and producer.name == "sdy.reshard" and serial_of(producer) is None:
        value = producer.operands[0]
        producer = producer_of(value)
    if producer is None or serial_of(producer) is not None or producer.name in CONSTANTS:
        return value
    return None


def _identity(value: ir.Value) -> tuple:
    """Returns a key that is the same for a value and for its copy in a clone."""
    producer = producer_of(value)
    if producer is not None:
        return "result", serial_of(producer), ir.OpResult(value).result_number
    owner = owner_of_argument(value)
    # Propagation builds functions anew, without their serials.
    serial = None if owner.name == "func.func" else serial_of(owner)
    return "argument", serial, ir.BlockArgument(value).arg_number


def _is_constant(value: ir.Value) -> bool:
    producer = producer_of(value)
    return producer is not None and producer.name in CONSTANTS


def rank_of(value: ir.Value) -> int | None:
    """Returns the rank of a value; None if it is no ranked tensor."""
    kind = value.type
    return len(ir.ShapedType(kind).shape) if isinstance(kind, ir.RankedTensorType) else None


def _results_of_operand(op: ir.Operation, number: int) -> list[ir.Value]:
    """Returns the results that share an operand's layout: the one of its number in a loop or barrier, else all."""
    if op.name in (*LOOPS, "stablehlo.optimization_barrier"):
        return [op.results[number]]
    return list(op.results)


def _is_data_flow_target(value: ir.Value) -> bool:
    owner = producer_of(value) or owner_of_argument(value)
    return owner.name in (*LOOPS, "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier")
