# SPDX-License-Identifier: Apache-2.0
"""A clone of a module in the form in which XLA propagates shardings through it, with a serial on each op.

XLA does not run `sdy-propagation-pipeline` on the module that JAX hands over, but on the module that comes back from
HLO. Conflicts are resolved differently there, so `prepare` repeats on the clone the changes that matter (XLA's passes
for them are not in jaxlib's bindings). Each has its module in this folder:
  - every call is inlined (HLO's CallInliner), and the ops come in HLO's post-order;
  - a value that a `while` carries unchanged is captured instead; if it has a sharding, a constraint with open
    dimensions comes before the loop;
  - a broadcast_in_dim does not grow dimensions of size 1, and adding dimensions is a reshape;
  - ops with sharding rules stand in for CHLO ops, for which Shardy has no rules;
  - tuples, which Shardy refuses, are taken apart;
  - ops with dynamic dimensions, which Shardy refuses too, are opaque: nothing is propagated to or from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.functions import has_discardable_symbols
from ..ir.ops import LOOPS, int64_attr, location_inside, ops_around, ops_in
from ..ir.shardy_limits import refuse_meshes, refuse_ops
from ..platform.bindings import ir
from ..platform.typed import present
from .broadcasts import PIECE, split_broadcasts
from .chlo_stand_ins import stand_in_for_chlo
from .dynamic_shapes import dynamic_dimension, stand_in_for_dynamic_shapes, types_of_values
from .hlo_order import order_like_hlo
from .inlining import CALLS, calls_through, inline_calls, remove_call_barriers
from .loop_invariants import capture_invariants, loops_with_results, open_captured
from .serials import (
    ID,
    UNTAGGED,
    is_tagged_by_attribute,
    own_location,
    serial_in,
    serial_of,
    tag,
    tagged_clone,
    tagged_indices,
)
from .tuples import take_tuples_apart


@dataclass(frozen=True, slots=True)
class Opened:
    """A constraint that `prepare` put before a loop: it opens a value that the loop captures or carries unchanged.

    Attributes:
      loop: serial of the loop.
      operands: the operand numbers of the loop that carry the value; empty if the loop captured it in the original.
    """

    loop: int
    operands: tuple[int, ...]


@dataclass
class PreparedClone:
    """A clone of a module as propagation finds it, and the way back to the original.

    Attributes:
      originals: the ops of the original in walk order.
      origin: for each serial, the index in `originals`; None for a constraint that was added (see `opened`).
      prepared: the clone.
      prepared_ops: for each serial the op in the clone.
      opened: serial -> what the constraint opens.
      pieces: serial of the first ops of a split broadcast -> index in `originals`; the last op has the serial of the
        whole.
      has_dynamic_shapes: whether something of dynamic shape is opaque in the clone.
    """

    originals: list[ir.Operation]
    origin: list[int | None]
    prepared: ir.Operation
    prepared_ops: list[ir.Operation]
    opened: dict[int, Opened]
    pieces: dict[int, int]
    has_dynamic_shapes: bool


def prepare(originals: list[ir.Operation], ops: list[ir.Operation]) -> PreparedClone:
    """Returns a tagged clone in the form in which XLA propagates shardings through it.

    Args:
      originals, ops: as `tagged_clone` gives them. `ops` is emptied, since some of the ops are erased.
    Raises: NotPropagatedError; DiagnosedError for a function that calls itself.
    """
    clone, indices = ops[0], tagged_indices(ops)
    prepared_ops = [ops[index] for index in indices]
    origin: list[int | None] = [*indices]
    ops.clear()
    types = types_of_values(prepared_ops)
    names = {op.name for op in prepared_ops}
    refuse_ops(names, prepared_ops)
    refuse_meshes(clone)
    has_dynamic_shapes = any(dynamic_dimension(kind) is not None for kind in types)
    if has_dynamic_shapes:
        stand_in_for_dynamic_shapes(clone)
    has_tuples = any(isinstance(kind, ir.TupleType) for kind in types)
    if has_tuples:
        take_tuples_apart(clone)
    has_calls = "func.call" in names or has_discardable_symbols(clone)
    if has_dynamic_shapes or has_tuples or has_calls:  # there are other ops
        _, pieces = _write_as_hlo(ops_in(clone) if has_dynamic_shapes or has_tuples else prepared_ops)
        prepared_ops.clear()  # inlining erases some
        tuples = inline_calls(clone) if has_calls else []
        order_like_hlo(op for op in ops_in(clone) if len(op.regions))
        remove_call_barriers(tuples)
        origin, prepared_ops, whole_of = _tag_again(clone, origin, bool(pieces))
    else:
        whole_of = _write_in_place(prepared_ops, origin)
        order_like_hlo(op for op in prepared_ops if len(op.regions))
    opened = _open_loop_invariants(loops_with_results(clone) if LOOPS & names else [], origin, prepared_ops)
    return PreparedClone(originals, origin, clone, prepared_ops, opened, whole_of, has_dynamic_shapes)


def _open_loop_invariants(
    loops: list[ir.Operation], origin: list[int | None], prepared_ops: list[ir.Operation]
) -> dict[int, Opened]:
    """Makes loops capture their invariants, adds the opening constraints to both lists; returns `opened`."""
    opened = {}
    for constraint, loop, operands in open_captured(loops, capture_invariants(loops)):
        serial = len(origin)
        tag(constraint, constraint.name, serial, own_location(constraint))
        opened[serial] = Opened(present(serial_of(loop)), operands)
        origin.append(None)
        prepared_ops.append(constraint)
    return opened


def _write_in_place(prepared_ops: list[ir.Operation], origin: list[int | None]) -> dict[int, int]:
    """Replaces single ops by the ops that HLO has, and updates both lists; returns `PreparedClone.pieces`."""
    replaced, pieces = _write_as_hlo(prepared_ops)
    for op in replaced:  # each has the location of the op that it replaces
        serial = present(serial_in(op.location))
        prepared_ops[serial] = op
        if is_tagged_by_attribute(op.name):
            op.attributes[ID] = int64_attr(serial)
    whole_of = {}
    for op in pieces:
        location, serial = op.location, len(origin)
        whole_of[serial] = present(origin[present(serial_in(location))])
        origin.append(None)
        prepared_ops.append(op)
        tag(op, op.name, serial, location_inside(location))
    return whole_of


def _tag_again(
    clone: ir.Operation, index_of: list[int | None], are_split: bool
) -> tuple[list[int | None], list[ir.Operation], dict[int, int]]:
    """Gives the ops of a clone new serials, one per instance; returns `origin`, `prepared_ops` and `pieces`.

    Args:
      index_of: the index in `PreparedClone.originals` of each serial so far. are_split: whether there are pieces.
    """
    origin: list[int | None] = []
    prepared_ops: list[ir.Operation] = []
    pieces: dict[int, int] = {}
    for op in ops_in(clone):
        name = op.name
        if name in UNTAGGED:
            continue
        location = op.location
        before, serial = serial_in(location), len(origin)
        index, own = (None, location) if before is None else (index_of[before], location_inside(location))
        if are_split and PIECE in op.attributes:
            pieces[serial], index = present(index), None
        origin.append(index)
        prepared_ops.append(op)
        tag(op, name, serial, own)
    return origin, prepared_ops, pieces


def _write_as_hlo(ops: Iterable[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Replaces single ops by the ops that HLO has; returns the replacements and the ops inserted before them."""
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


def call_paths(original: ir.Operation) -> list[tuple[int, ...]]:
    """Returns for each serial the function that its op is in after inlining, and the calls that it came through.

    Args:
      original: the module, unchanged since it was prepared.
    Returns: indices in `PreparedClone.originals`, outermost first.
    """
    originals, clones = tagged_clone(original)
    for index, op in enumerate(clones):
        if op.name == "func.call":
            op.attributes[CALLS] = ir.DenseI64ArrayAttr.get([index])
    clone = prepare(originals, clones)
    return [(*_function_around(op, clone), *calls_through(op)) for op in clone.prepared_ops]


def _function_around(op: ir.Operation, clone: PreparedClone) -> tuple[int, ...]:
    functions = (each for each in (op, *ops_around(op)) if each.name == "func.func")
    return tuple(present(clone.origin[present(serial_of(each))]) for each in functions)
