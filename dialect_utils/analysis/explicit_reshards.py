# SPDX-License-Identifier: Apache-2.0
"""Explicit reshards: the conversions between the layouts that propagation gave to the ops of a module."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.synthesis.layouts.mesh import Mesh

from ..ir.functions import functions_of
from ..ir.ops import LOOPS, ops_in, parent_of
from ..ir.pipelines import run_pipeline
from ..ir.shardy_limits import refuse_risky
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..preparation.dynamic_shapes import SHARDING_RULE
from ..preparation.serials import own_location
from ..shardings.factor_overflow import fitting_sharding, may_overflow
from ..shardings.partial_sums import has_partial_sums, layouts_between, refuse_different_sums, refuse_sums_of_unlike
from ..shardings.sdy_shardings import SHARDING, module_meshes
from ..shardings.value_layouts import (
    layout,
    nth_sharding,
    result_layout,
    result_layouts,
    stated_arguments,
    stated_results,
)

EXPLICIT_RESHARDS = (
    "builtin.module(func.func(sdy-insert-explicit-reshards,"  # those of XLA's own export: concatenations, dots
    "sdy-insert-explicit-reshards{enable-full-version=true},sdy-drop-sharding-rules))"
)
_REGROUPING = frozenset({"stablehlo.reshape", "stablehlo.bitcast_convert", "stablehlo.custom_call"})
_CARRYING = LOOPS | {"stablehlo.optimization_barrier"}  # each operand belongs to the result of its number


def insert_explicit_reshards(module: ir.Operation) -> None:
    """Inserts the conversions between the layouts that propagation gave to the ops of a module; drops sharding rules.

    Raises: DiagnosedError with the errors that MLIR reported.
    """
    ops = ops_in(module)
    stop_before_overflow(module, ops)
    stated = [each for op in functions_of(module) for each in (*stated_arguments(op), *stated_results(op))]
    if has_partial_sums({*map(result_layouts, ops), *stated}):
        sum_where_shardy_cannot(module, ops)
    run_pipeline(module, EXPLICIT_RESHARDS)


def stop_before_overflow(module: ir.Operation, ops: list[ir.Operation]) -> None:
    """Puts reshards around ops that regroup dimensions, where axes do not fit the factors; see `factor_overflow`.

    Args:
      ops: all ops of the module.
    """
    meshes = module_meshes(module)
    overflowing: dict[ir.Attribute, bool] = {}  # many ops have one rule
    for op in ops:
        attr = op.attributes.get(SHARDING_RULE) if op.name in _REGROUPING else None
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


def _stop_results_before_overflow(op: ir.Operation, rule: sdy.OpShardingRuleAttr, meshes: dict[str, Mesh]) -> None:
    stated = [result_layout(op, number) for number in range(len(op.results))]
    fitting = [
        fitting_sharding(attr, mapping, rule.factor_sizes, meshes)
        for attr, mapping in zip(stated, rule.result_mappings, strict=True)
    ]
    if all(attr is None for attr in fitting):
        return
    kept = [present(one or other) for one, other in zip(fitting, stated)]
    op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(kept)
    for value, attr, other in zip(op.results, fitting, stated):
        if attr is not None:
            with ir.InsertionPoint.after(op), op.location:
                reshard = sdy.ReshardOp(value, other)
            value.replace_all_uses_except(reshard.result, reshard.operation)


def sum_where_shardy_cannot(module: ir.Operation, ops: list[ir.Operation]) -> None:
    """Inserts the summing of partial sums where Shardy has no step to the layout that is wanted; see `partial_sums`.

    Args:
      ops: all ops of the module.
    Raises: NotPropagatedError for partial sums that cannot be summed there; RiskyModuleError.
    """
    refuse_risky()  # Shardy may assert more about partial sums than is known here
    meshes = module_meshes(module)
    for op in ops:
        operands = list(op.operands)
        targets = _wanted(op, len(operands)) if operands else ()
        for number, (value, target) in enumerate(zip(operands, targets)):
            for step in layouts_between(layout(value), target, op, meshes):
                with ir.InsertionPoint(op), own_location(op):
                    value = op.operands[number] = sdy.ReshardOp(value, step).result


def _wanted(op: ir.Operation, count: int) -> Sequence[ir.Attribute | None]:
    """Returns the layout in which an op takes each of `count` operands; terminators take those of the op around."""
    if op.name == "func.return":
        return stated_results(parent_of(op))
    if op.name in ("stablehlo.return", "sdy.return"):
        around = parent_of(op)
        return [result_layout(around, number) for number in range(len(around.results))]
    if op.name == "sdy.manual_computation":
        return [nth_sharding(op.attributes["in_shardings"], number) for number in range(count)]
    if op.name in _CARRYING:
        return [result_layout(op, number) for number in range(len(op.results))]
    layouts = [result_layout(op, number) for number in range(len(op.results))]
    refuse_different_sums(op, layouts)
    first = layouts[0] if layouts else None
    if SHARDING_RULE in op.attributes:
        refuse_sums_of_unlike(
            op, sdy.OpShardingRuleAttr(op.attributes[SHARDING_RULE]), [layout(value) for value in op.operands], first
        )
    return [first] * count
