# SPDX-License-Identifier: Apache-2.0
"""Layouts of values: the sharding that the op which makes a value, or the op around its block, states for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.functions import signature
from ..ir.ops import LOOPS, manual_axes
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from .sdy_shardings import SHARDING, sharding_from_attr, sharding_to_attr

_RESULT_LAYOUTS = {
    "sdy.sharding_constraint": ("sharding",),
    "sdy.reshard": ("sharding",),
    "sdy.manual_computation": ("out_shardings",),
}
_Nth = Callable[[ir.Attribute, int], ir.Attribute | None]


def nth_sharding(per_value: ir.Attribute, number: int) -> ir.Attribute | None:
    """Returns one entry of an `#sdy.sharding_per_value`; an `#sdy.sharding` is returned itself."""
    if sdy.TensorShardingAttr.isinstance(per_value):
        return per_value
    shardings = sdy.TensorShardingPerValueAttr(per_value).shardings
    return shardings[number] if number < len(shardings) else None


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
    """Returns the attribute with the layouts of an op's results: one sharding or one per value; None if it has none."""
    return result_layouts_of(op.name, op.attributes)


def result_layouts_of(op_name: str, attributes: ir.OpAttributeMap) -> ir.Attribute | None:
    """Returns the same as `result_layouts`, for a caller that has read the name of the op already."""
    for name in _RESULT_LAYOUTS.get(op_name, (SHARDING, "out_sharding")):
        if (attr := attributes.get(name)) is not None:
            return attr
    return None


def _argument_layout(argument: ir.BlockArgument, owner: ir.Operation) -> ir.Attribute | None:
    number = argument.arg_number
    if owner.name == "func.func":
        if "arg_attrs" not in owner.attributes:
            return None
        attributes = ir.DictAttr(ir.ArrayAttr(owner.attributes["arg_attrs"])[number])
        return attributes[SHARDING] if SHARDING in attributes else None
    if owner.name in LOOPS:
        return result_layout(owner, number)
    if owner.name == "sdy.manual_computation":
        outside = present(nth_sharding(owner.attributes["in_shardings"], number))
        return _local_layout(outside, owner.attributes["manual_axes"])
    return None


def _local_layout(attr: ir.Attribute, axes: ir.Attribute) -> ir.Attribute:
    """Returns the layout of a value inside a manual computation: the layout outside without the manual axes."""
    manual = set(manual_axes(axes))
    sharding = sharding_from_attr(attr)
    dims = tuple(tuple(axis for axis in axes if axis.name not in manual) for axes in sharding.dims)
    return sharding_to_attr(replace(sharding.closed(), dims=dims), sdy.TensorShardingAttr(attr).mesh_or_ref)


def stated_results(function: ir.Operation) -> list[ir.Attribute | None]:
    """Returns the `#sdy.sharding` that a function states for each of its results."""
    return _stated(function, "res_attrs", len(signature(function).results))


def stated_arguments(function: ir.Operation) -> list[ir.Attribute | None]:
    """Returns the `#sdy.sharding` that a function states for each of its arguments."""
    return _stated(function, "arg_attrs", len(signature(function).inputs))


def _stated(function: ir.Operation, name: str, count: int) -> list[ir.Attribute | None]:
    if name not in function.attributes:
        return [None] * count
    stated = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
    return [each[SHARDING] if SHARDING in each else None for each in stated]


def replace_op(op: ir.Operation, new: ir.Operation | ir.OpView) -> None:
    """Replaces `op` by `new`, which gets its sharding; `new` was made with the location of `op`."""
    if SHARDING in op.attributes:
        new.attributes[SHARDING] = op.attributes[SHARDING]
    for before, after in zip(op.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()
