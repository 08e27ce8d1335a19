# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation on a clone of a module, in the order in which XLA runs it, with every op traceable to its original.

XLA does not run `sdy-propagation-pipeline` on the module that JAX hands over, but on what comes back from HLO. Conflicts are
resolved differently there, so `prepare` does to the clone what matters of that way (the passes are not in jaxlib's bindings):
  - every call is inlined (HLO's CallInliner), and the ops come in HLO's post-order;
  - what a `while` carries unchanged it captures instead, opened by a constraint with open dimensions if it has a sharding;
  - a broadcast_in_dim does not grow dimensions of size 1; adding dimensions is a reshape;
  - CHLO ops, for which Shardy has no rules, are ops that have them;
  - tuples, which Shardy refuses, are taken apart;
  - what has dynamic dimensions, which Shardy refuses too, is opaque: nothing is propagated to or from it.
What follows is Shardy's own pipeline, cut after `sdy-close-shardings`, where XLA writes `02.after_propagation.mlir`. On XLA's
own `01.before_propagation.mlir` it gives exactly that file; `canary` compares the two ways on any module.

    original --clone, tag--> prepared --propagation--> propagated --explicit reshards--> explicit
                 |                |                        |
              origins          operands                 layouts

Ops carry `reshard.id` in the clone, a *serial*: one per instance, so an op of a function that is called twice has two. It is
the name of their location, around the one they came with: an attribute of its own on each op would make all that MLIR and Shardy
do with attributes much slower. Only ops that Shardy merges if their attributes are equal, or makes with the location of another
op, have it as an attribute too, which decides for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import functools
import itertools
import math

from ..synthesis.mesh import Mesh
from .bindings import ir, passmanager, sdy, stablehlo
from .diagnostics import DiagnosedError, error_at, from_mlir_error
from .factor_overflow import fitting_sharding, may_overflow
from .interrupts import HeldBack
from .not_propagated import refuse_bodiless, refuse_collectives, refuse_growth, refuse_meshes, refuse_ops, refuse_rare
from .ops import int64_attr, name_of, ops_in, producer_of
from .partial_sums import has_partial_sums, layouts_between, refuse_different_sums, refuse_sums_of_unlike
from .sdy_shardings import SHARDING, module_meshes, sharding_from_attr, sharding_to_attr

ID = "reshard.id"
CONSTANTS = frozenset({"stablehlo.constant", "sdy.constant"})
CONSTRAINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
LOOPS = frozenset({"stablehlo.while"})
_UNTAGGED = CONSTANTS | {"builtin.module", "sdy.mesh"}  # a tag on a constant would keep equal constants apart
_MERGED = "stablehlo.broadcast_in_dim"  # of scalars, by Shardy's merger of constants


@dataclass(frozen=True, slots=True)
class Opened:
    """A constraint that `prepare` put before a loop: the value, which a loop captures or carries unchanged, opened.

    Attributes:
      loop: serial of the loop.
      operands: the operand numbers of the loop that carry the value; empty if the loop captured it in the original.
    """

    loop: int
    operands: tuple[int, ...]


@dataclass
class Analysis:
    """A module's clone after propagation and explicit reshards, and the way back to the original.

    Attributes:
      originals: the ops of the original in walk order.
      origin: for each serial, the index in `originals`; None for a constraint of ours (see `opened`).
      prepared_ops: for each serial the op in `prepared`, the clone as propagation found it.
      opened: serial -> what the constraint opens.
      pieces: serial of the first ops of a split broadcast -> index in `originals`; the last op has the serial of the whole.
      layouts: serial -> the distinct layouts of its op after propagation, as `result_layouts` gives them; several where the
        splitter of constants made several ops of one.
      constraints: serial -> (layout of the operand, layout asked for) of each constraint after propagation.
      argument_layouts, result_layouts: function name -> shardings of its arguments or results after propagation.
      explicit: the clone with explicit reshards.
      has_dynamic_shapes: whether something of dynamic shape is opaque in the clone.
    """

    originals: list[ir.Operation]
    origin: list[int | None]
    prepared: ir.Operation
    prepared_ops: list[ir.Operation]
    opened: dict[int, Opened]
    pieces: dict[int, int]
    explicit: ir.Operation
    has_dynamic_shapes: bool
    layouts: dict[int, frozenset[ir.Attribute | None]] = field(default_factory=dict)
    constraints: dict[int, tuple[ir.Attribute | None, ir.Attribute]] = field(default_factory=dict)
    argument_layouts: dict[str, list[ir.Attribute | None]] = field(default_factory=dict)
    result_layouts: dict[str, list[ir.Attribute | None]] = field(default_factory=dict)
    _entries: dict[tuple[ir.Attribute, int], ir.Attribute | None] = field(default_factory=dict, repr=False)

    def nth_sharding(self, per_value: ir.Attribute, number: int) -> ir.Attribute | None:
        """Returns what the function of this name does: ops share few attributes, and to take one apart takes long."""
        key = per_value, number
        if key not in self._entries:
            self._entries[key] = nth_sharding(per_value, number)
        return self._entries[key]

    def layout(self, value: ir.Value) -> ir.Attribute | None:
        """Returns what the function of this name does, of a value of `explicit`."""
        return layout(value, self.nth_sharding)

    def result_layout(self, op: ir.Operation, number: int) -> ir.Attribute | None:
        """Returns what the function of this name does, of an op of `explicit`."""
        return result_layout(op, number, self.nth_sharding)

    @functools.cached_property
    def explicit_ops(self) -> list[ir.Operation]:
        """Returns the ops of `explicit`, once that has its reshards."""
        return ops_in(self.explicit)

    def first_of(self, serials: Collection[int]) -> dict[int, ir.Operation]:
        """Returns serial -> the first op of `explicit_ops` that has it, for those of `serials` that are there.

        Ops that were there before the reshards are not asked: some are erased, and the bindings would read what was theirs.
        """
        names = {self.prepared_ops[serial].name for serial in serials}
        by_serial: dict[int, ir.Operation] = {}
        for keeps_name in (True, False):  # all ops are asked for their serials only where one with another name is looked for
            if len(by_serial) < len(serials):
                for op in self.explicit_ops:
                    name = op.name
                    if (name in names) is keeps_name and (serial := _serial_of(op, name)) in serials:
                        by_serial.setdefault(serial, op)
        return by_serial

    @functools.cached_property
    def inserted_reshards(self) -> list[ir.Operation]:
        """Returns the reshards of `explicit` that were inserted after propagation, once that has its reshards."""
        return [op for op in self.explicit_ops if op.name == "sdy.reshard" and serial_of(op) is None]

    @functools.cached_property
    def instances(self) -> dict[int, list[int]]:
        """Returns index in `originals` -> serials of its instances."""
        found: dict[int, list[int]] = {}
        for serial, index in enumerate(self.origin):
            if index is not None:
                found.setdefault(index, []).append(serial)
        return found


def analyse(module: ir.Module | ir.Operation) -> Analysis:
    """Returns the analysis of a module, which stays as it is.

    Raises:
      NotPropagatedError: Shardy's passes would end the process.
      DiagnosedError: Shardy's own diagnostics if a pipeline fails.
    """
    analysis = prepare(*tagged_clone(module))
    # Only stand-ins for dynamic shapes are ever in doubt, and the verifier takes longer than most passes of Shardy's.
    verifies = analysis.has_dynamic_shapes
    propagate(analysis.explicit, verifies)
    ops = ops_in(analysis.explicit)
    _take_snapshot(analysis, ops)
    _stop_before_overflow(analysis.explicit, ops)
    if has_partial_sums(_distinct_layouts(analysis)):
        _sum_where_shardy_cannot(analysis.explicit, ops)
    del ops  # the passes may erase some
    run(analysis.explicit, EXPLICIT_RESHARDS, verifies)
    return analysis


def tagged_clone(module: ir.Module | ir.Operation) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Returns the ops of a module in walk order, and those of a clone, which carry the serials that `_tagged` gives them."""
    originals = ops_in(module.operation)
    clone = originals[0].clone().operation
    clones = [clone, *ops_in(clone)[1:]]  # the bindings keep a clone as long as what `clone` gave
    with originals[0].context:
        for serial, op in enumerate(clones[index] for index in _tagged(clones)):
            _tag(op, op.name, serial, op.location)
    return originals, clones


def _tagged(ops: list[ir.Operation]) -> list[int]:
    """Returns for each serial of a clone the index of its op, among all ops of the module."""
    return [index for index, op in enumerate(ops) if op.name not in _UNTAGGED]


def prepare(originals: list[ir.Operation], ops: list[ir.Operation]) -> Analysis:
    """Returns the analysis before propagation: the tagged clone with calls inlined and loop invariants opened.

    Args:
      ops: of the clone; it is theirs no longer, since some are erased.
    Raises: NotPropagatedError; DiagnosedError for a function that calls itself.
    """
    clone, origin = ops[0], _tagged(ops)
    prepared_ops = [ops[index] for index in origin]
    ops.clear()
    types = _types_of_values(prepared_ops)
    names = {op.name for op in prepared_ops}
    refuse_ops(names, prepared_ops)
    refuse_meshes(clone)
    has_dynamic_shapes = any(dynamic_dimension(kind) is not None for kind in types)
    if has_dynamic_shapes:
        stand_in_for_dynamic_shapes(clone)
    has_tuples = any(isinstance(kind, ir.TupleType) for kind in types)
    if has_tuples:
        take_tuples_apart(clone)
    has_calls = "func.call" in names or _has_discardable_symbols(clone)
    if has_dynamic_shapes or has_tuples or has_calls:  # there are other ops
        _, pieces = _write_as_hlo(ops_in(clone) if has_dynamic_shapes or has_tuples else prepared_ops)
        prepared_ops.clear()  # inlining erases some
        tuples = inline_calls(clone) if has_calls else []
        order_like_hlo(op for op in ops_in(clone) if len(op.regions))
        _dissolve(tuples)
        origin, prepared_ops, whole_of = _tag_again(clone, origin, bool(pieces))
    else:
        whole_of = _write_in_place(prepared_ops, origin)
        order_like_hlo(op for op in prepared_ops if len(op.regions))
    loops = _loops(clone) if LOOPS & names else []
    carried = capture_invariants(loops)
    opened = {}
    for constraint, loop, operands in open_captured(loops, carried):
        serial = len(origin)
        _tag(constraint, constraint.name, serial, own_location(constraint))
        opened[serial] = Opened(serial_of(loop), operands)
        origin.append(None)
        prepared_ops.append(constraint)
    return Analysis(originals, origin, clone, prepared_ops, opened, whole_of, clone.clone().operation, has_dynamic_shapes)


def _write_in_place(prepared_ops: list[ir.Operation], origin: list[int | None]) -> dict[int, int]:
    """Writes single ops, by serial, as HLO has them, and puts into both lists what there is then; returns `Analysis.pieces`."""
    replaced, pieces = _write_as_hlo(prepared_ops)
    for op in replaced:  # they have the locations of what they replace
        serial = _number_in(op.location)
        prepared_ops[serial] = op
        if _is_tagged_by_attribute(op.name):
            op.attributes[ID] = int64_attr(serial)
    whole_of = {}
    for op in pieces:
        location, serial = op.location, len(origin)
        whole_of[serial] = origin[_number_in(location)]
        origin.append(None)
        prepared_ops.append(op)
        _tag(op, op.name, serial, location.child_loc)
    return whole_of


def _tag_again(
    clone: ir.Operation, index_of: list[int], are_split: bool
) -> tuple[list[int | None], list[ir.Operation], dict[int, int]]:
    """Gives the ops of a clone new serials, one per instance: returns `Analysis.origin`, `prepared_ops` and `pieces`.

    Args:
      index_of: the index in `Analysis.originals` of each serial that there is. are_split: whether there are pieces.
    """
    origin: list[int | None] = []
    prepared_ops: list[ir.Operation] = []
    pieces: dict[int, int] = {}
    for op in ops_in(clone):
        name = op.name
        if name in _UNTAGGED:
            continue
        location = op.location
        before, serial = _number_in(location), len(origin)
        index, own = (None, location) if before is None else (index_of[before], location.child_loc)
        if are_split and _PIECE in op.attributes:
            pieces[serial], index = index, None
        origin.append(index)
        prepared_ops.append(op)
        _tag(op, name, serial, own)
    return origin, prepared_ops, pieces


# Tags


def _tag(op: ir.Operation, name: str, number: int, location: ir.Location) -> None:
    """Lets an op of a name carry a number; `location` is its own."""
    op.location = ir.Location.name(f"{_NUMBERED}{number}", location)
    if _is_tagged_by_attribute(name):
        op.attributes[ID] = int64_attr(number)


@functools.cache
def _is_tagged_by_attribute(name: str) -> bool:
    return name == _MERGED or name.startswith(("sdy.", "func."))


def serial_of(op: ir.Operation) -> int | None:
    """Returns the serial of an op of the clone; None for one that a pass inserted, and for constants."""
    return _serial_of(op, op.name)


def _serial_of(op: ir.Operation, name: str) -> int | None:
    if _is_tagged_by_attribute(name):
        attr = op.attributes.get(ID)
        return None if attr is None else attr.value
    return None if name in _UNTAGGED else _number_in(op.location)


def own_location(op: ir.Operation) -> ir.Location:
    """Returns the location that an op of the clone came with, or that of the op it is inserted for."""
    location = op.location
    return location if _number_in(location) is None else location.child_loc


def _number_in(location: ir.Location) -> int | None:
    name = name_of(location)
    if name is None or not name.startswith(_NUMBERED):
        return None
    number = name[_NUMBER:]
    return int(number) if number.isdecimal() else None


_NUMBERED = f"{ID} "
_NUMBER = len(_NUMBERED)


def _write_as_hlo(ops: Iterable[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Writes single ops as HLO has them; returns those that are in the place of one, and those that come before one of these."""
    chlo, broadcasts = [], []
    for op in ops:
        name = op.name
        if name == "stablehlo.broadcast_in_dim":
            broadcasts.append(op)
        elif name.startswith("chlo."):
            chlo.append(op)
    stand_ins = stand_in_for_chlo(chlo)
    replaced, pieces = split_broadcasts(broadcasts)
    return stand_ins + replaced, pieces


# Dynamic dimensions and tuples


_SHAPELESS = frozenset(  # what takes values of any shape
    {
        "builtin.module",
        "func.call",
        "func.func",
        "func.return",
        "stablehlo.case",
        "stablehlo.get_tuple_element",
        "stablehlo.if",
        "stablehlo.optimization_barrier",
        "stablehlo.return",
        "stablehlo.tuple",
        "stablehlo.while",
    }
)


def _types_of_values(ops: list[ir.Operation]) -> set[ir.Type]:
    """Returns the types of the results of ops, and of the arguments in their regions."""
    types = set()
    for op in ops:
        results = op.results
        if len(results) == 1:  # as most have; to iterate takes longer
            types.add(results[0].type)
        else:
            types.update(value.type for value in results)
    return types | {argument.type for op in ops if len(op.regions) for block in _blocks(op) for argument in block.arguments}


def dynamic_dimension(kind: ir.Type) -> int | None:
    """Returns the first dynamic dimension of a ranked tensor type; None for types without one."""
    if not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape:
        return None
    return next(dim for dim in range(kind.rank) if kind.is_dynamic_dim(dim))


def stand_in_for_dynamic_shapes(module: ir.Operation) -> None:
    """Gives dynamic dimensions size 1, and replaces the ops that know of them by custom calls, which have no sharding rule."""
    ops = [op for op in ops_in(module) if _is_dynamic(op)]
    for op in ops:
        for value in (*op.results, *(argument for block in _blocks(op) for argument in block.arguments)):
            value.set_type(_without_dynamic(value.type))
    for op in ops:
        if op.name == "func.func":
            sides = _signature(op).inputs, _signature(op).results
            inputs, results = ([_without_dynamic(each) for each in kinds] for kinds in sides)
            op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        elif op.name not in _SHAPELESS and not op.name.startswith("sdy."):
            with ir.InsertionPoint(op), op.location:
                stand_in = stablehlo.CustomCallOp([each.type for each in op.results], list(op.operands), "dynamic")
                stand_in.operation.attributes[_RULE] = _rule_of_nothing(stand_in.operation)
                _replace(op, stand_in)


_RULE = "sdy.sharding_rule"


def _rule_of_nothing(op: ir.Operation) -> ir.Attribute:
    """Returns the rule by which no dimension of an op has to do with another one; without a rule Shardy warns of the op."""
    numbers = itertools.count()
    sides, sizes = [], []
    for values in (op.operands, op.results):
        side = []
        for shape in (_shape(value.type) or () for value in values):
            factors = [_factor(next(numbers)) for _ in shape]
            sizes += [f"{factor}={size}" for factor, size in zip(factors, shape)]
            side.append(f"[{', '.join(factors)}]")
        sides.append(f"({', '.join(side)})")
    return ir.Attribute.parse(f"#sdy.op_sharding_rule<{'->'.join(sides)} {{{', '.join(sizes)}}}, custom>")


def _factor(number: int) -> str:
    """Returns the name that Shardy gives to a factor: i, j, ..., z, z_1, z_2."""
    return chr(ord("i") + number) if number < 18 else f"z_{number - 17}"


def _is_dynamic(op: ir.Operation) -> bool:
    kinds = [value.type for value in (*op.operands, *op.results)]
    kinds += [argument.type for block in _blocks(op) for argument in block.arguments]
    if op.name == "func.func":
        kinds += [*_signature(op).inputs, *_signature(op).results]
    return any(dynamic_dimension(kind) is not None for kind in kinds)


def _without_dynamic(kind: ir.Type) -> ir.Type:
    if dynamic_dimension(kind) is None:
        return kind
    shape = [1 if kind.is_dynamic_dim(dim) else kind.shape[dim] for dim in range(kind.rank)]
    return ir.RankedTensorType.get(shape, kind.element_type)


def take_tuples_apart(module: ir.Operation) -> None:
    """Lets users of an element of a tuple use the element; a custom call that returns a tuple returns its elements instead."""
    for op in ops_in(module):
        if op.name == "stablehlo.custom_call" and len(op.results) == 1 and isinstance(op.results[0].type, ir.TupleType):
            _return_elements(op)
            continue
        producer = producer_of(op.operands[0]) if op.name == "stablehlo.get_tuple_element" else None
        if producer is not None and producer.name == "stablehlo.tuple":
            op.results[0].replace_all_uses_with(producer.operands[ir.IntegerAttr(op.attributes["index"]).value])
            op.erase()
    for op in reversed([each for each in ops_in(module) if each.name == "stablehlo.tuple"]):
        if not list(op.results[0].uses):
            op.erase()


def _return_elements(op: ir.Operation) -> None:
    kind = ir.TupleType(op.results[0].type)
    types = [kind.get_type(number) for number in range(kind.num_types)]
    attributes = dict(op.attributes.items())
    with ir.InsertionPoint(op):
        call = ir.Operation.create(op.name, types, list(op.operands), attributes, loc=op.location)
    with ir.InsertionPoint(op), own_location(op):
        elements = stablehlo.TupleOp(list(call.results))
    op.results[0].replace_all_uses_with(elements.result)
    op.erase()


# CHLO


def stand_in_for_chlo(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Replaces CHLO ops, for which Shardy has no rules, by ops with the rules of what XLA lowers them to, and returns these."""
    stand_ins = []
    for op in ops:
        with ir.InsertionPoint(op), op.location:
            stand_in = _stand_in(op)
        if stand_in is not None:
            _replace(op, stand_in)
            stand_ins.append(stand_in.operation)
    return stand_ins


def _stand_in(op: ir.Operation) -> ir.OpView | None:
    """Returns an op with the sharding rule of a CHLO op; None for ops that are rare or have no such rule."""
    operands, results = list(op.operands), [result.type for result in op.results]
    if op.name == "chlo.top_k":
        return stablehlo.CustomCallOp(results, operands, "mhlo.topk")
    if len(results) != 1 or not operands or any(_shape(value.type) != _shape(results[0]) for value in operands):
        return None
    if len(operands) == 1:
        return stablehlo.CustomCallOp(results, operands, "mhlo.erf")  # elementwise, whatever the types
    if len(operands) == 2 and {value.type for value in operands} == {results[0]}:
        return stablehlo.AddOp(*operands)
    return None


def _shape(kind: ir.Type) -> list[int] | None:
    return list(ir.ShapedType(kind).shape) if isinstance(kind, ir.RankedTensorType) else None


# Broadcasts


_PIECE = "reshard.piece"


@dataclass(frozen=True, slots=True)
class _Split:
    """How HLO has a broadcast_in_dim that grows dimensions: a broadcast to `first`, a reshape to `dropped`, a broadcast.

    Attributes:
      first: None if a reshape to the type of the result is all.
      along, along_same: the attributes of the broadcasts; `as_piece` those of the reshape.
    """

    first: ir.Type | None = None
    dropped: ir.Type | None = None
    along: dict[str, ir.Attribute] = field(default_factory=dict)
    along_same: dict[str, ir.Attribute] = field(default_factory=dict)
    as_piece: dict[str, ir.Attribute] = field(default_factory=dict)


def split_broadcasts(ops: Iterable[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Writes each of the broadcast_in_dim `ops` as HLO has it: no dimension of size 1 grows there, and added ones are a reshape.

    tensor<8x1xf32> to tensor<8x4xf32> becomes a broadcast to its own shape, a reshape to tensor<8xf32> and the broadcast.
    Returns: the ops that are in the place of one, and those before them.
    Source: `XlaBuilder::BroadcastInDim`.
    """
    splits: dict[tuple, _Split | None] = {}  # many are alike
    replaced: list[ir.Operation] = []
    pieces: list[ir.Operation] = []
    for op in ops:
        operand, target, dims = op.operands[0], op.results[0].type, op.attributes["broadcast_dimensions"]
        kind = operand.type, target, dims
        if kind not in splits:
            with op.location:
                splits[kind] = _split(ir.RankedTensorType(kind[0]), ir.RankedTensorType(target), _integers(dims))
        split = splits[kind]
        if split is None or op.parent is None:
            continue
        make = functools.partial(ir.Operation.create, loc=op.location, ip=ir.InsertionPoint(op))  # sooner than with an op's class
        if split.first is None:
            new = make("stablehlo.reshape", [target], [operand])
        else:
            pieces.append(make("stablehlo.broadcast_in_dim", [split.first], [operand], split.along))
            pieces.append(make("stablehlo.reshape", [split.dropped], [pieces[-1].result], split.as_piece))
            new = make("stablehlo.broadcast_in_dim", [target], [pieces[-1].result], split.along_same)
        _replace(op, new)
        replaced.append(new)
    return replaced, pieces


def _split(source: ir.RankedTensorType, target: ir.RankedTensorType, dims: list[int]) -> _Split | None:
    """Returns how HLO has a broadcast_in_dim; None if as it is."""
    if not source.has_static_shape or not target.has_static_shape or not source.rank:
        return None
    shape = list(target.shape)
    if math.prod(source.shape) == math.prod(shape) and dims == sorted(dims):
        return _Split()
    kept = list(shape)  # with the dimensions that grow left at 1
    for dim, size in zip(dims, source.shape, strict=True):
        kept[dim] = size
    if kept == shape:
        return None
    same, element = [dim for dim, size in enumerate(kept) if size == shape[dim]], target.element_type
    first, dropped = (ir.RankedTensorType.get(sizes, element) for sizes in (kept, [kept[dim] for dim in same]))
    along, along_same = ({"broadcast_dimensions": ir.DenseI64ArrayAttr.get(each)} for each in (dims, same))
    as_piece = {_PIECE: ir.UnitAttr.get()}
    return _Split(first, dropped, along | as_piece, along_same, as_piece)


def _integers(attr: ir.Attribute) -> list[int]:
    return list(ir.DenseI64ArrayAttr(attr))


def _replace(op: ir.Operation, new: ir.Operation | ir.OpView) -> None:
    """Puts an op, which has the location of `op`, in its place."""
    if SHARDING in op.attributes:
        new.attributes[SHARDING] = op.attributes[SHARDING]
    for before, after in zip(op.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()


# Inlining


def _has_discardable_symbols(module: ir.Operation) -> bool:
    """Returns whether a module has anything at its top but meshes and public functions: MLIR's `symbol-dce` may find something."""
    ops = [each.operation for each in module.regions[0].blocks[0].operations]
    return not all(op.name == "sdy.mesh" or (op.name == "func.func" and _visibility(op) == "public") for op in ops)


def inline_calls(module: ir.Operation) -> list[ir.Operation]:
    """Replaces each `func.call` by the body of its function, as XLA does; what names no function stays.

    MLIR's `inline` pass is in jaxlib but finds nothing to inline there, since no dialect registers its interface.

    Returns: a barrier over the results of each call that has several, in place of the tuple that HLO has there: `_dissolve`
      them once the ops are in order.
    Raises: NotPropagatedError for a function without a body, or so many calls that there is no end to it; DiagnosedError at a
      call through which a function calls itself.
    """
    _inline_all(module)
    run(module, "builtin.module(symbol-dce)")  # may erase ops: none that it erases may be held here
    for declared in functions_of(module):  # named, not called; Shardy looks into the body of each function
        if not _has_body(declared):
            declared.erase()
    return [op for op in ops_in(module) if _TUPLE in op.attributes]


def _inline_all(module: ir.Operation) -> None:
    functions = {symbol(op): op for op in _top_level(module, "func.func")}
    ops = {name: ops_in(function) for name, function in functions.items()}
    calls = {name: [call for op in own if (call := _call_of(op, functions))] for name, own in ops.items()}
    order = _callees_first(calls)
    refuse_growth(order, functions, calls, {name: len(own) for name, own in ops.items()})
    for callee in dict.fromkeys(callee for called in calls.values() for _, callee in called):
        refuse_collectives(ops[callee])
    for name in order:
        for call, callee in calls[name]:
            if not _has_body(functions[callee]):
                refuse_bodiless(call, callee)
            _inline_call(call, functions[callee])


def _call_of(op: ir.Operation, functions: Collection[str]) -> tuple[ir.Operation, str] | None:
    """Returns a call of one of the functions, with its name; None for any other op."""
    if op.name != "func.call":
        return None
    callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    return (op, callee) if callee in functions else None


_TUPLE = "reshard.tuple"
_CALLS = "reshard.calls"  # the calls through which an op was inlined, and of a call the call itself; see `call_paths`


def _callees_first(calls: dict[str, list[tuple[ir.Operation, str]]]) -> list[str]:
    """Returns the names of functions in an order in which each comes behind those that it calls, however deep they go.

    Args:
      calls: of each function, with what they call.
    Raises: DiagnosedError at a call through which a function calls itself; Shardy would end the process.
    """
    order: dict[str, None] = {}
    for start in calls:
        around: dict[str, Iterator[tuple[ir.Operation, str]]] = {} if start in order else {start: iter(calls[start])}
        while around:
            name, left = next(reversed(around.items()))
            call, callee = next(left, (None, ""))
            if call is None:
                order[name] = around.pop(name)
            elif callee in around:
                raise error_at(call, f"@{callee} calls itself by way of this call; XLA compiles no recursion, write a loop")
            elif callee not in order:
                around[callee] = iter(calls[callee])
    return list(order)


def _inline_call(call: ir.Operation, function: ir.Operation) -> None:
    copy = function.clone(ip=False).operation
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = [op.operation for op in block.operations]
    if _CALLS in call.attributes:
        _prepend_calls([nested for op in body for nested in ops_in(op)], _calls_around(call))
    for op in body:
        op.move_before(call)
    values = list(terminator.operands)
    if len(values) > 1:
        with ir.InsertionPoint(call), call.location:
            barrier = stablehlo.OptimizationBarrierOp(values).operation
        barrier.attributes[_TUPLE] = ir.UnitAttr.get()
        values = list(barrier.results)
    for result, value in zip(call.results, values, strict=True):
        result.replace_all_uses_with(value)
    terminator.erase()
    call.erase()


def call_paths(analysis: Analysis) -> list[tuple[int, ...]]:
    """Returns for each serial the function that its op is in after inlining, and the calls that it came through.

    All are indices in `Analysis.originals`, outermost first. The original has to be as it was analysed.
    """
    originals, clones = tagged_clone(analysis.originals[0])
    for index, op in enumerate(clones):
        if op.name == "func.call":
            op.attributes[_CALLS] = ir.DenseI64ArrayAttr.get([index])
    prepared = prepare(originals, clones)
    return [(*_function_around(op, prepared), *_calls_around(op)) for op in prepared.prepared_ops]


def _function_around(op: ir.Operation, analysis: Analysis) -> tuple[int, ...]:
    functions = (each for each in (op, *ops_around(op)) if each.name == "func.func")
    return tuple(analysis.origin[serial_of(each)] for each in functions)


def _calls_around(op: ir.Operation) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(op.attributes[_CALLS])) if _CALLS in op.attributes else ()


def _prepend_calls(ops: list[ir.Operation], calls: tuple[int, ...]) -> None:
    for op in ops:
        op.attributes[_CALLS] = ir.DenseI64ArrayAttr.get([*calls, *_calls_around(op)])


def _dissolve(barriers: list[ir.Operation]) -> None:
    for barrier in barriers:
        for result, value in zip(barrier.results, list(barrier.operands), strict=True):
            result.replace_all_uses_with(value)
        barrier.erase()


def _has_body(function: ir.Operation) -> bool:
    return len(function.regions[0].blocks) == 1


# Loops


def capture_invariants(loops: list[ir.Operation]) -> dict[ir.Value, dict[ir.Value, list[int]]]:
    """Lets loops capture the values that they carry unchanged.

    Returns: for each loop, by its first result, value -> the operand numbers that carried it.
    Source: StableHLO's canonicalization of `while`.
    """
    return {loop.results[0]: _capture_invariants(loop) for loop in loops}


def open_captured(
    loops: list[ir.Operation], carried: dict[ir.Value, dict[ir.Value, list[int]]]
) -> list[tuple[ir.Operation, ir.Operation, tuple[int, ...]]]:
    """Puts a constraint with open dimensions between a loop and each value that it captures and that has a sharding.

    Args:
      carried: from `capture_invariants`.
    Returns: (constraint, loop, operand numbers that carried the value) for each constraint.
    Source: `open_while_free_vars_sharding.cc` in XLA.
    """
    opened = []
    for loop in loops:
        for value, users in _captured_values(loop).items():
            open_sharding = _opened(layout(value))
            if open_sharding is None:
                continue
            with ir.InsertionPoint(loop), loop.location:
                constraint = sdy.ShardingConstraintOp(value, open_sharding).operation
            for user in users:
                user.replace_uses_of_with(value, constraint.results[0])
            opened.append((constraint, loop, tuple(carried[loop.results[0]].get(value, ()))))
    return opened


def _loops(module: ir.Operation) -> list[ir.Operation]:
    """Returns the loops with results, inner ones first."""
    ops = (op.operation for op in ops_in(module, ir.WalkOrder.POST_ORDER))
    return [op for op in ops if op.name in LOOPS and len(op.results)]



def _capture_invariants(loop: ir.Operation) -> dict[ir.Value, list[int]]:
    """Replaces what the loop hands through by its initial value, in the loop and after it; value -> operand numbers."""
    condition, body = (region.blocks[0] for region in loop.regions)
    carried: dict[ir.Value, list[int]] = {}
    for number in passed_through(loop):
        argument, value = body.arguments[number], loop.operands[number]
        argument.replace_all_uses_with(value)
        condition.arguments[number].replace_all_uses_with(value)
        loop.results[number].replace_all_uses_with(value)
        # The edge stays, so that operand numbers do; a constant takes the value's place, so that nothing hangs on it.
        _terminator(body).operands[number] = argument
        placeholder = _zeros(value.type)
        if placeholder is not None:
            with ir.InsertionPoint(loop) as point, loop.location:
                point.insert(placeholder)
            loop.operands[number] = placeholder.results[0]
        carried.setdefault(value, []).append(number)
    return carried


def _zeros(kind: ir.Type) -> ir.Operation | None:
    """Returns a constant of zeros, not inserted anywhere, of a static tensor type of numbers; None for any other type.

    It is parsed, since the bindings have no Python class for an attribute of complex numbers.
    """
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        return None
    element = kind.element_type
    if isinstance(element, ir.ComplexType):
        zero = "(0.0, 0.0)"
    elif isinstance(element, ir.IntegerType):
        zero = "false" if element.width == 1 else "0"
    elif isinstance(element, ir.FloatType):
        zero = "0.0"
    else:
        return None
    return ir.Operation.parse(f'"stablehlo.constant"() {{value = dense<{zero}> : {kind}}} : () -> {kind}', context=kind.context)


def passed_through(loop: ir.Operation) -> list[int]:
    """Returns the numbers of the values that a loop carries unchanged."""
    body = loop.regions[1].blocks[0]
    returned = _terminator(body).operands
    return [number for number, argument in enumerate(body.arguments) if returned[number] == argument]


def _captured_values(loop: ir.Operation) -> dict[ir.Value, list[ir.Operation]]:
    """Returns the values from outside that ops inside the loop use, with those ops."""
    inside: set[ir.Value] = set()
    uses: list[tuple[ir.Value, ir.Operation]] = []
    for op in ops_in(loop)[1:]:
        inside.update(op.results)
        for block in _blocks(op):
            inside.update(block.arguments)
        uses += [(value, op) for value in op.operands]
    for block in _blocks(loop):
        inside.update(block.arguments)
    captured: dict[ir.Value, list[ir.Operation]] = {}
    for value, user in uses:
        if value not in inside:
            captured.setdefault(value, []).append(user)
    return captured


def _opened(attr: ir.Attribute | None) -> ir.Attribute | None:
    """Returns the sharding with every dimension open and empty; None if there is none, or nothing to open."""
    if attr is None:
        return None
    sharding = sharding_from_attr(attr)
    if sharding.rank == 0:
        return None
    open_sharding = type(sharding)(((),) * sharding.rank, open_dims=frozenset(range(sharding.rank)))
    if open_sharding == sharding:
        return None
    return sharding_to_attr(open_sharding, sdy.TensorShardingAttr(attr).mesh_or_ref)


# Order


def order_like_hlo(around: Iterable[ir.Operation]) -> None:
    """Orders the ops of each block in the regions of ops as they come back from HLO: depth first from the ops that nothing uses, operands in order.

    Propagation resolves conflicts of equal priority in the order of the ops.
    Source: `HloComputation::MakeInstructionPostOrder`.
    """
    for block in [block for op in around if op.name not in _UNORDERED for block in _blocks(op)]:
        if len(block.operations) > 2:
            _order_block(block)


_UNORDERED = frozenset({"builtin.module", "sdy.mesh"})


def _order_block(block: ir.Block) -> None:
    *ops, terminator = [op.operation for op in block.operations]
    number_of: dict[ir.Value, int] = {}
    for number, op in enumerate(ops):
        results = op.results
        if len(results) == 1:
            number_of[results[0]] = number
        else:
            number_of.update(dict.fromkeys(results, number))
    get = number_of.get
    needs = [
        _operands_in(op, number_of) if len(op.regions) else [number for value in op.operands if (number := get(value)) is not None]
        for op in ops
    ]
    is_used = set(_operands_in(terminator, number_of)).union(*needs)
    roots = [number for number in range(len(ops)) if number not in is_used]
    order = _depth_first([*roots, *_operands_in(terminator, number_of)], needs)
    in_place = next((place for place, number in enumerate(order) if place != number), len(order))
    for number in order[in_place:]:
        ops[number].move_before(terminator)


def _operands_in(op: ir.Operation, number_of: dict[ir.Value, int]) -> list[int]:
    """Returns the ops of a block that an op uses, by number; what its regions capture comes last, as in HLO."""
    values = list(op.operands)
    through = passed_through(op) if op.name in LOOPS else ()
    initial = {region.blocks[0].arguments[number]: values[number] for region in op.regions for number in through}
    values = [value for number, value in enumerate(values) if number not in through]
    values += [initial.get(value, value) for inner in _nested(op) for value in inner.operands]
    return [number_of[value] for value in values if value in number_of]


def _nested(op: ir.Operation) -> Iterator[ir.Operation | ir.OpView]:
    """Yields the ops in the regions of an op, parents first; for the few of most regions it is faster than to walk."""
    for block in _blocks(op):
        for inner in block.operations:
            if len(inner.regions):
                yield from ops_in(inner.operation)  # no recursion of ours: there may be a thousand regions in each other
            else:
                yield inner


def _depth_first(roots: list[int], needs: list[list[int]]) -> list[int]:
    order: list[int] = []
    opened, done = bytearray(len(needs)), bytearray(len(needs))
    stack = roots[::-1]
    while stack:
        at = stack[-1]
        if not opened[at]:
            opened[at] = 1
            stack += needs[at][::-1]
            continue
        stack.pop()
        if not done[at]:
            done[at] = 1
            order.append(at)
    return order


# Pipelines

EXPLICIT_RESHARDS = (
    "builtin.module(func.func(sdy-insert-explicit-reshards,"  # what XLA's own export inserts: concatenations, dots
    "sdy-insert-explicit-reshards{enable-full-version=true},sdy-drop-sharding-rules))"
)
_WHOLE_PIPELINE = "builtin.module(sdy-propagation-pipeline)"
_LAST_OF_PROPAGATION = "sdy-close-shardings"


def propagation_pipeline(has_discardable_symbols: bool = True) -> str:
    """Returns `sdy-propagation-pipeline` up to where the layouts are final and no op has been inserted for them.

    Without calls and `has_discardable_symbols` its passes leave nothing to look for to those that remove unused functions.

    MLIR prints the passes of the pipeline, which differ between versions of Shardy; this cuts that text. The whole pipeline
    is the fallback where a future text cannot be cut: its extra passes insert reshards at concatenations only.
    """
    passes = str(passmanager.PassManager.parse(_WHOLE_PIPELINE))
    head, found, _ = passes.partition(_LAST_OF_PROPAGATION)
    if not found:
        return _WHOLE_PIPELINE
    cut = (head + found).replace("sdy-save-module,", "") + ")"  # dumps; not registered by name
    if not has_discardable_symbols:
        cut = cut.replace("symbol-dce,", "")
    try:
        passmanager.PassManager.parse(cut)
    except ValueError:
        return _WHOLE_PIPELINE
    return cut


def propagate(module: ir.Operation, verifies: bool = True) -> None:
    """Runs propagation on each public function as if it were the program, as XLA sees it: Shardy starts from @main alone.

    With several functions and no @main, Shardy of jaxlib 0.12 ends the process. Private functions that are left after
    inlining, decompositions of composites say, stay beside it as they are.
    """
    functions = [op for op in _top_level(module, "func.func") if _has_body(op) and is_public(op)]
    if len(functions) == 1:
        run_on_program(module, propagation_pipeline(_has_discardable_symbols(module)), verifies)
        return
    run(module, "builtin.module(sdy-lift-inlined-meshes)")  # gives new meshes the same names in all copies
    for name in [symbol(op) for op in functions]:
        copy = module.clone().operation
        for op in _top_level(copy, "func.func"):
            if symbol(op) == name:
                entry = op
            elif _has_body(op) and is_public(op):
                op.attributes["sym_visibility"] = ir.StringAttr.get("private")  # others may name it; unless they do, it goes
        with _as_entry(copy, entry):
            run(copy, propagation_pipeline(), verifies)
        before, after = (next(op for op in _top_level(each, "func.func") if symbol(op) == name) for each in (module, copy))
        after.move_before(before)
        before.erase()


def run_on_program(module: ir.Operation, pipeline: str, verifies: bool = True) -> None:
    """Runs a pipeline of propagation on a module whose only public function is the program. Raises: DiagnosedError."""
    program = next(op for op in functions_of(module) if _has_body(op) and is_public(op))
    with _as_entry(module, program):
        run(module, pipeline, verifies)


_ENTRY = "main"


@contextlib.contextmanager
def _as_entry(module: ir.Operation, function: ir.Operation) -> Iterator[None]:
    """Lets a function be @main inside the `with`: Shardy looks for that where something names another function.

    If there is one of that name already, it is called otherwise as long, also where it is named. Shardy builds functions anew.
    """
    name = symbol(function)
    if name == _ENTRY:
        yield
        return
    other = next((op for op in _top_level(module, "func.func") if symbol(op) == _ENTRY), None)
    if other is not None:
        _rename(module, other, _OTHER)
    _rename(module, function, name=_ENTRY)
    yield
    named = {symbol(op): op for op in _top_level(module, "func.func")}
    _rename(module, named[_ENTRY], name)
    if _OTHER in named:
        _rename(module, named[_OTHER], _ENTRY)


_OTHER = "reshard.main"


def _rename(module: ir.Operation, function: ir.Operation, name: str) -> None:
    ir.SymbolTable.replace_all_symbol_uses(symbol(function), name, module)
    function.attributes["sym_name"] = ir.StringAttr.get(name)



def insert_explicit_reshards(module: ir.Operation) -> None:
    """Inserts what converts between the layouts that propagation gave to the ops of a module, and drops their sharding rules.

    Raises: DiagnosedError with what MLIR reported.
    """
    ops = ops_in(module)
    _stop_before_overflow(module, ops)
    stated = [each for op in functions_of(module) for each in (*stated_arguments(op), *stated_results(op))]
    if has_partial_sums({*map(result_layouts, ops), *stated}):
        _sum_where_shardy_cannot(module, ops)
    run(module, EXPLICIT_RESHARDS)


def _stop_before_overflow(module: ir.Operation, ops: list[ir.Operation]) -> None:
    """Lets ops that regroup dimensions take and give axes that fit their factors only; see `factor_overflow`.

    Args:
      ops: all of the module.
    """
    meshes = module_meshes(module)
    overflowing: dict[ir.Attribute, bool] = {}  # many ops have one rule
    for op in ops:
        attr = op.attributes.get(_RULE) if op.name in _REGROUPING else None
        if attr is None:
            continue
        if attr not in overflowing:
            overflowing[attr] = may_overflow(sdy.OpShardingRuleAttr(attr))
        if not overflowing[attr]:
            continue
        rule = sdy.OpShardingRuleAttr(attr)
        for number, mapping in enumerate(rule.operand_mappings):
            fitting = fitting_sharding(layout(op.operands[number]), mapping, rule.factor_sizes, meshes)
            if fitting is not None:
                with ir.InsertionPoint(op), op.location:
                    op.operands[number] = sdy.ReshardOp(op.operands[number], fitting).result
        _stop_results_before_overflow(op, rule, meshes)


_REGROUPING = frozenset({"stablehlo.reshape", "stablehlo.bitcast_convert", "stablehlo.custom_call"})


def _stop_results_before_overflow(op: ir.Operation, rule: sdy.OpShardingRuleAttr, meshes: dict[str, Mesh]) -> None:
    stated = [result_layout(op, number) for number in range(len(op.results))]
    fitting = [
        fitting_sharding(attr, mapping, rule.factor_sizes, meshes)
        for attr, mapping in zip(stated, rule.result_mappings, strict=True)
    ]
    if all(attr is None for attr in fitting):
        return
    op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([one or other for one, other in zip(fitting, stated)])
    for value, attr, other in zip(op.results, fitting, stated):
        if attr is not None:
            with ir.InsertionPoint.after(op), op.location:
                reshard = sdy.ReshardOp(value, other)
            value.replace_all_uses_except(reshard.result, reshard.operation)


def _distinct_layouts(analysis: Analysis) -> set[ir.Attribute | None]:
    return set().union(*set(analysis.layouts.values()), *analysis.argument_layouts.values(), *analysis.result_layouts.values())


def _sum_where_shardy_cannot(module: ir.Operation, ops: list[ir.Operation]) -> None:
    """Lets partial sums be summed on their way to where Shardy has no step for what is wanted; see `partial_sums`.

    Args:
      ops: all of the module.
    Raises: NotPropagatedError for what cannot be summed there; RareError.
    """
    refuse_rare()  # whatever else Shardy asserts about partial sums
    meshes = module_meshes(module)
    for op in ops:
        operands = list(op.operands)
        targets = _wanted(op, len(operands)) if operands else ()
        for number, (value, target) in enumerate(zip(operands, targets)):
            for step in layouts_between(layout(value), target, op, meshes):
                with ir.InsertionPoint(op), own_location(op):
                    value = op.operands[number] = sdy.ReshardOp(value, step).result


def _wanted(op: ir.Operation, count: int) -> Sequence[ir.Attribute | None]:
    """Returns the layout in which an op takes each of `count` operands; what returns gives values to the op around it."""
    if op.name == "func.return":
        return stated_results(op.parent.operation)
    if op.name in ("stablehlo.return", "sdy.return"):
        return [result_layout(op.parent.operation, number) for number in range(len(op.parent.operation.results))]
    if op.name == "sdy.manual_computation":
        return [nth_sharding(op.attributes["in_shardings"], number) for number in range(count)]
    if op.name in _CARRYING:
        return [result_layout(op, number) for number in range(len(op.results))]
    layouts = [result_layout(op, number) for number in range(len(op.results))]
    refuse_different_sums(op, layouts)
    first = layouts[0] if layouts else None
    if _RULE in op.attributes:
        refuse_sums_of_unlike(op, sdy.OpShardingRuleAttr(op.attributes[_RULE]), [layout(value) for value in op.operands], first)
    return [first] * count


_CARRYING = LOOPS | {"stablehlo.optimization_barrier"}  # operand by operand, whatever the others are


def is_public(function: ir.Operation) -> bool:
    """Returns whether callers outside of the module may use a function."""
    return _visibility(function) != "private"


def _visibility(symbol: ir.Operation) -> str:
    attr = symbol.attributes.get("sym_visibility")
    return "public" if attr is None else ir.StringAttr(attr).value


def run(module: ir.Operation, pipeline: str, verifies: bool = True) -> None:
    """Runs a textual pipeline. Raises: DiagnosedError with what MLIR reported.

    The module is verified once, at the end: Shardy's pipelines have thirty passes, and MLIR's verifier takes longer than most.
    """
    manager = passmanager.PassManager.parse(pipeline)
    manager.enable_verifier(False)
    try:
        with HeldBack():  # warnings of Shardy's go to Python
            manager.run(module)
            if verifies:
                module.verify()
    except ir.MLIRError as error:
        raise DiagnosedError(from_mlir_error(error)) from None


def _take_snapshot(analysis: Analysis, ops: list[ir.Operation]) -> None:
    """Notes the layouts of `ops`, all of the module after propagation."""
    alone: dict[ir.Attribute | None, frozenset[ir.Attribute | None]] = {}  # ops share these: there are few layouts
    layouts, constraints = analysis.layouts, analysis.constraints
    for op in ops:
        name = op.name
        serial = _serial_of(op, name)
        if serial is None:
            continue
        attr = _result_layouts(name, op.attributes)
        one = alone.get(attr)
        if one is None:
            one = alone[attr] = frozenset((attr,))
        layouts[serial] = layouts[serial] | one if serial in layouts else one
        if name in CONSTRAINTS:
            constraints[serial] = layout(op.operands[0]), attr
    for function in _top_level(analysis.explicit, "func.func"):
        arguments = function.regions[0].blocks[0].arguments if _has_body(function) else ()
        analysis.argument_layouts[symbol(function)] = [layout(argument) for argument in arguments]
        analysis.result_layouts[symbol(function)] = stated_results(function)


# Layouts of values


def nth_sharding(per_value: ir.Attribute, number: int) -> ir.Attribute | None:
    """Returns one entry of an `#sdy.sharding_per_value`; of an `#sdy.sharding`, itself."""
    if sdy.TensorShardingAttr.isinstance(per_value):
        return per_value
    shardings = sdy.TensorShardingPerValueAttr(per_value).shardings
    return shardings[number] if number < len(shardings) else None


_Nth = Callable[[ir.Attribute, int], ir.Attribute | None]


def layout(value: ir.Value, nth: _Nth = nth_sharding) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a value as its producer or owner states it; None if it has none."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _argument_layout(ir.BlockArgument(value), owner.owner.operation)
    return result_layout(owner.operation, ir.OpResult(value).result_number, nth)


def result_layout(op: ir.Operation, number: int, nth: _Nth = nth_sharding) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a result of an op; None if it has none."""
    attr = result_layouts(op)
    return attr and nth(attr, number)


def result_layouts(op: ir.Operation) -> ir.Attribute | None:
    """Returns the attribute that holds the layouts of an op's results, of one or per value; None if it has none."""
    return _result_layouts(op.name, op.attributes)


def _result_layouts(op_name: str, attributes: ir.OpAttributeMap) -> ir.Attribute | None:
    for name in _RESULT_LAYOUTS.get(op_name, (SHARDING, "out_sharding")):
        if (attr := attributes.get(name)) is not None:
            return attr
    return None


_RESULT_LAYOUTS = {
    "sdy.sharding_constraint": ("sharding",),
    "sdy.reshard": ("sharding",),
    "sdy.manual_computation": ("out_shardings",),
}


def _argument_layout(argument: ir.BlockArgument, owner: ir.Operation) -> ir.Attribute | None:
    number = argument.arg_number
    if owner.name == "func.func":
        if "arg_attrs" not in owner.attributes:
            return None
        attributes = ir.DictAttr(owner.attributes["arg_attrs"][number])
        return attributes[SHARDING] if SHARDING in attributes else None
    if owner.name in LOOPS:
        return result_layout(owner, number)
    if owner.name == "sdy.manual_computation":
        return _local_layout(nth_sharding(owner.attributes["in_shardings"], number), owner.attributes["manual_axes"])
    return None


def _local_layout(attr: ir.Attribute, manual_axes: ir.Attribute) -> ir.Attribute:
    """Returns the layout of a value inside a manual computation, where its tiles along the manual axes are values."""
    manual = set(sdy.ManualAxesAttr(manual_axes))
    sharding = sharding_from_attr(attr)
    dims = tuple(tuple(axis for axis in axes if axis.name not in manual) for axes in sharding.dims)
    return sharding_to_attr(replace(sharding.closed(), dims=dims), sdy.TensorShardingAttr(attr).mesh_or_ref)


def stated_results(function: ir.Operation) -> list[ir.Attribute | None]:
    """Returns the `#sdy.sharding` that a function states for each of its results."""
    return _stated(function, "res_attrs", len(_signature(function).results))


def stated_arguments(function: ir.Operation) -> list[ir.Attribute | None]:
    """Returns the `#sdy.sharding` that a function states for each of its arguments."""
    return _stated(function, "arg_attrs", len(_signature(function).inputs))


def _signature(function: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _stated(function: ir.Operation, name: str, count: int) -> list[ir.Attribute | None]:
    if name not in function.attributes:
        return [None] * count
    stated = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
    return [each[SHARDING] if SHARDING in each else None for each in stated]


# IR access


def ops_around(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops around an op, innermost first."""
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent


def symbol(op: ir.Operation) -> str:
    """Returns the name of a function or mesh."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def functions_of(module: ir.Operation) -> list[ir.Operation]:
    """Returns the functions of a module."""
    return _top_level(module, "func.func")


def _top_level(module: ir.Operation, name: str) -> list[ir.Operation]:
    return [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == name]


def _terminator(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def _blocks(op: ir.Operation) -> Iterable[ir.Block]:
    for region in op.regions:
        yield from region.blocks
