# SPDX-License-Identifier: Apache-2.0
"""Types and shardings that are not planned: tuples, dynamic shapes, dimensions that do not divide."""

from __future__ import annotations

import math
from collections.abc import Callable

from reshard.dialect_utils.analysis import propagation
from reshard.dialect_utils.analysis.module_analysis import Analysis
from reshard.dialect_utils.ir.functions import is_public
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_in, short_name
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.preparation.dynamic_shapes import dynamic_dimension
from reshard.dialect_utils.shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr
from reshard.dialect_utils.shardings.value_layouts import stated_arguments, stated_results
from reshard.passes.driver.base import Session
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.findings import Skipped
from reshard.passes.sites.wording import layout_text

_MOST_ELEMENTS = 2**52


def first_with(reason_of: Callable[[ir.Type], str | None], module: ir.Module) -> tuple[ir.Operation, Skipped] | None:
    """Returns the first op with an operand of a type that `reason_of` refuses, with the mismatch; None without one."""
    for op in ops_in(module.operation):
        for number, value in enumerate(op.operands):
            reason = reason_of(value.type)
            if reason is not None:
                kind = kinds.CONSTRAINT if op.name in CONSTRAINTS else kinds.OPERAND
                return op, Skipped(kind, f"operand {number} of {short_name(op)}", reason)
    return None


def unsupported_type(kind: ir.Type) -> str | None:
    """Returns why Shardy does not propagate values of a type; None if it does."""
    if isinstance(kind, ir.TupleType):
        return f"Shardy propagates no tuples such as {kind}; flatten them first"
    if isinstance(kind, ir.UnrankedTensorType):
        return f"{kind} has no rank, and Shardy propagates static shapes only; refine the module's shapes first"
    return dynamic_type(kind) or _too_large(kind)


def _too_large(kind: ir.Type) -> str | None:
    """Returns why a value of a type is too large to count its bytes in 64 bits; None if it is not."""
    if not isinstance(kind, ir.RankedTensorType) or math.prod(ir.RankedTensorType(kind).shape) <= _MOST_ELEMENTS:
        return None
    return f"{kind} has more than 2^52 elements, which no network moves"


def dynamic_type(kind: ir.Type) -> str | None:
    """Returns why a type with a dynamic dimension is not propagated; None if it has none."""
    dim = dynamic_dimension(kind)
    if dim is None:
        return None
    problem = f"dimension {dim} of {kind} is dynamic, and Shardy propagates static shapes only"
    return f"{problem}; refine the module's shapes first"


def refuse_uneven_ends(analysis: Analysis, session: Session) -> None:
    """Reports the shardings that do not divide an argument or a result of a public function.

    XLA would silently take another sharding there.
    """
    meshes = module_meshes(analysis.originals[0])
    problems: dict[tuple[ir.Type, ir.Attribute], str | None] = {}
    for op in propagation.functions_of(analysis.originals[0]):
        if not is_public(op):
            continue
        signature = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        for noun, types, stated in (
            ("argument", signature.inputs, stated_arguments(op)),
            ("result", signature.results, stated_results(op)),
        ):
            for number, (kind, attr) in enumerate(zip(types, stated, strict=True)):
                if attr is None:
                    continue
                if (kind, attr) not in problems:
                    problems[kind, attr] = _does_not_divide(kind, attr, meshes)
                if problem := problems[kind, attr]:
                    stated_as = f"{noun} {number} of type {kind} is sharded {layout_text(attr)}"
                    session.error(op, f"{stated_as}: {problem}; pad it, or shard it otherwise")


def _does_not_divide(kind: ir.Type, attr: ir.Attribute, meshes) -> str | None:
    """Returns how a dimension does not divide into its shards; None if all divide or the shards are unknown."""
    mesh = mesh_of(attr, meshes)
    if mesh is None or not mesh.axes or not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        return None  # a sharding on a single device has no dimensions
    for dim, (size, shards) in enumerate(zip(kind.shape, sharding_from_attr(attr).shards(mesh), strict=True)):
        if size % shards:
            return f"dimension {dim} of size {size} does not divide into {shards} shards"
    return None
