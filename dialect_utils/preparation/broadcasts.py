# SPDX-License-Identifier: Apache-2.0
"""Broadcasts as HLO has them: no dimension of size 1 grows, and added dimensions are a reshape; and back again."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ir.ops import producer_of
from ..platform.bindings import ir
from ..shardings.value_layouts import replace_op

PIECE = "reshard.piece"


@dataclass(frozen=True, slots=True)
class _Split:
    """The ops that HLO has for a broadcast_in_dim: a broadcast to `first`, a reshape to `dropped`, and a broadcast.

    Attributes:
      first: None if a single reshape to the type of the result takes the place of all three.
      along, along_same: the attributes of the two broadcasts. as_piece: the attributes of the reshape.
    """

    first: ir.Type | None = None
    dropped: ir.Type | None = None
    along: dict[str, ir.Attribute] = field(default_factory=dict)
    along_same: dict[str, ir.Attribute] = field(default_factory=dict)
    as_piece: dict[str, ir.Attribute] = field(default_factory=dict)


def split_broadcasts(ops: Iterable[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Replaces broadcast_in_dim `ops` by the ops that HLO has: no dimension of size 1 grows there.

    A broadcast of tensor<8x1xf32> to tensor<8x4xf32> becomes a broadcast to its own shape, a reshape to tensor<8xf32>
    and a broadcast. A broadcast that only adds dimensions of size 1 becomes a reshape.

    Returns: the ops in the places of the replaced ones, and the ops inserted before them.
    Source: `XlaBuilder::BroadcastInDim`.
    """
    splits: dict[tuple, _Split | None] = {}  # many broadcasts are alike
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
        # `create` is faster than the class of an op.
        make = functools.partial(ir.Operation.create, loc=op.location, ip=ir.InsertionPoint(op))
        if split.first is None or split.dropped is None:
            new = make("stablehlo.reshape", [target], [operand])
        else:
            pieces.append(make("stablehlo.broadcast_in_dim", [split.first], [operand], split.along))
            pieces.append(make("stablehlo.reshape", [split.dropped], [pieces[-1].result], split.as_piece))
            new = make("stablehlo.broadcast_in_dim", [target], [pieces[-1].result], split.along_same)
        replace_op(op, new)
        replaced.append(new)
    return replaced, pieces


def join_broadcasts(ops: Iterable[ir.Operation]) -> None:
    """Lets broadcast_in_dim `ops` grow dimensions of size 1 again, in place of reshapes that drop these.

    For XLA that is the same, but in MLIR the reshapes are folded into others. Of two equal broadcasts XLA then makes
    one, where it would have put each into the loop of its user, and keeps its result in memory. A broadcast to the type
    that a value has goes.
    """
    for op in ops:
        if _is_identity(op):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
            continue
        reshape = producer_of(op.operands[0])
        if reshape is None or reshape.name != "stablehlo.reshape":
            continue
        source, target = (ir.RankedTensorType(each.type) for each in (reshape.operands[0], op.results[0]))
        kept = _integers(op.attributes["broadcast_dimensions"])
        is_dropped = source.shape == [size if dim in kept else 1 for dim, size in enumerate(target.shape)]
        if not is_dropped or kept != sorted(kept):  # else it transposes, too
            continue
        op.operands[0] = reshape.operands[0]
        op.attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get(list(range(target.rank)))
        if not list(reshape.results[0].uses):
            reshape.erase()


def _split(source: ir.RankedTensorType, target: ir.RankedTensorType, dims: list[int]) -> _Split | None:
    """Returns the ops that HLO has for a broadcast_in_dim; None if HLO has the same op."""
    if not source.has_static_shape or not target.has_static_shape or not source.rank:
        return None
    shape = list(target.shape)
    if math.prod(source.shape) == math.prod(shape) and dims == sorted(dims):
        return _Split()
    kept = list(shape)  # the shape, but with size 1 where a dimension grows
    for dim, size in zip(dims, source.shape, strict=True):
        kept[dim] = size
    if kept == shape:
        return None
    same, element = [dim for dim, size in enumerate(kept) if size == shape[dim]], target.element_type
    first, dropped = (ir.RankedTensorType.get(sizes, element) for sizes in (kept, [kept[dim] for dim in same]))
    along, along_same = map(_along, (dims, same))
    as_piece: dict[str, ir.Attribute] = {PIECE: ir.UnitAttr.get()}
    return _Split(first, dropped, along | as_piece, along_same, as_piece)


def _is_identity(op: ir.Operation) -> bool:
    dims = op.attributes["broadcast_dimensions"]
    return op.operands[0].type == op.results[0].type and _integers(dims) == list(range(len(_integers(dims))))


def _along(dims: list[int]) -> dict[str, ir.Attribute]:
    return {"broadcast_dimensions": ir.DenseI64ArrayAttr.get(dims)}


def _integers(attr: ir.Attribute) -> list[int]:
    return list(ir.DenseI64ArrayAttr(attr))
