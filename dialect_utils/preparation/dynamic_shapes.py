# SPDX-License-Identifier: Apache-2.0
"""Dynamic dimensions, which Shardy refuses: ops with values that have them are opaque to propagation."""

from __future__ import annotations

import itertools

from ..ir.functions import signature
from ..ir.ops import blocks_of, ops_in, shape_of
from ..platform.bindings import ir, stablehlo
from ..shardings.value_layouts import replace_op

SHARDING_RULE = "sdy.sharding_rule"
_SHAPELESS = frozenset(  # these ops take values of any shape
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


def types_of_values(ops: list[ir.Operation]) -> set[ir.Type]:
    """Returns the types of the results of ops, and of the block arguments in their regions."""
    types = set()
    for op in ops:
        results = op.results
        if len(results) == 1:  # the usual case; an index is faster than a loop
            types.add(results[0].type)
        else:
            types.update(value.type for value in results)
    return types | {
        argument.type for op in ops if len(op.regions) for block in blocks_of(op) for argument in block.arguments
    }


def dynamic_dimension(kind: ir.Type) -> int | None:
    """Returns the first dynamic dimension of a ranked tensor type; None for types without one."""
    if not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape:
        return None
    return next(dim for dim in range(kind.rank) if kind.is_dynamic_dim(dim))


def stand_in_for_dynamic_shapes(module: ir.Operation) -> None:
    """Gives dynamic dimensions size 1, and replaces the ops that have such values by custom calls.

    The sharding rule of these custom calls connects no dimension with another one.
    """
    ops = [op for op in ops_in(module) if _is_dynamic(op)]
    for op in ops:
        for value in (*op.results, *(argument for block in blocks_of(op) for argument in block.arguments)):
            value.set_type(_without_dynamic(value.type))
    for op in ops:
        if op.name == "func.func":
            sides = signature(op).inputs, signature(op).results
            inputs, results = ([_without_dynamic(each) for each in kinds] for kinds in sides)
            op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        elif op.name not in _SHAPELESS and not op.name.startswith("sdy."):
            with ir.InsertionPoint(op), op.location:
                stand_in = stablehlo.CustomCallOp([each.type for each in op.results], list(op.operands), "dynamic")
                stand_in.operation.attributes[SHARDING_RULE] = _rule_of_nothing(stand_in.operation)
                replace_op(op, stand_in)


def _rule_of_nothing(op: ir.Operation) -> ir.Attribute:
    """Returns a rule that connects no dimension of an op with another one; Shardy warns of ops without a rule."""
    numbers = itertools.count()
    sides, sizes = [], []
    for values in (op.operands, op.results):
        side = []
        for shape in (shape_of(value.type) or () for value in values):
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
    kinds += [argument.type for block in blocks_of(op) for argument in block.arguments]
    if op.name == "func.func":
        kinds += [*signature(op).inputs, *signature(op).results]
    return any(dynamic_dimension(kind) is not None for kind in kinds)


def _without_dynamic(kind: ir.Type) -> ir.Type:
    if dynamic_dimension(kind) is None:
        return kind
    shaped = ir.ShapedType(kind)
    shape = [1 if shaped.is_dynamic_dim(dim) else shaped.shape[dim] for dim in range(shaped.rank)]
    return ir.RankedTensorType.get(shape, shaped.element_type)
