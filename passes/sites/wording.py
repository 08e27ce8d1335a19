# SPDX-License-Identifier: Apache-2.0
"""Sentences about sites: why a value is converted, and why a conversion is left alone."""

from __future__ import annotations

from reshard.dialect_utils.ir.functions import symbol
from reshard.dialect_utils.ir.ops import LOOPS, parent_of, short_name
from reshard.dialect_utils.ir.reductions import summed_dims
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import Placement, sharding_from_attr
from reshard.passes.sites import findings as kinds
from reshard.synthesis.layouts.sharding import Sharding


def across_meshes(source: Placement, target: str) -> str:
    """Returns the reason why an operand is left alone if its op computes on another mesh."""
    return (
        f"it is {source} on {source.mesh}, and the op computes {target}; Shardy converts no operand between meshes of "
        "different axes, so that stock XLA chooses how; constrain the op's result on the first mesh to have it planned"
    )


def layout_text(attr: ir.Attribute | None) -> str:
    """Returns the text of a sharding, closed, as Shardy prints it; "replicated" for None."""
    return str(sharding_from_attr(attr).closed()) if attr else "replicated"


def why(op: ir.Operation, number: int, kind: str, source: str, wanted: str, target: Sharding) -> str:
    """Returns why a value is converted at an op.

    Args:
      number: the number of the operand; for the kind "result", that of the result.
      source, wanted: both layouts as text; target: `wanted` once more.
    """
    name = short_name(op)
    if kind == kinds.CONSTRAINT:
        return f"the constraint asks for {wanted}; its operand is {source}"
    if kind == kinds.RESULT:
        return f"{name} computes result {number} as {source}; the value is {wanted}"
    if kind == kinds.FUNCTION_RESULT:
        function = symbol(parent_of(op))
        return f"result {number} of @{function} is {wanted}; the returned value is {source}"
    if op.name in LOOPS:
        return f"the loop has value {number} as {wanted}; it starts as {source}"
    if op.name == "stablehlo.return":
        return f"{short_name(parent_of(op))} has value {number} as {wanted}; its body ends with {source}"
    origin = {
        kinds.ARGUMENT: "an argument of the function, ",
        kinds.CALL: "from across a call, ",
        kinds.LOOP: "of the loop, ",
    }
    contracted = _contracted(op, number, target)
    demand = f"{name} contracts {contracted}" if contracted else f"{name} wants operand {number} as {wanted}"
    return f"{demand}; operand {number}{', ' if kind in origin else ' '}{origin.get(kind, '')}is {source}"


def _contracted(op: ir.Operation, number: int, target: Sharding) -> str:
    """Returns e.g. `dim 1 over "x"` for an operand of a dot_general whose target splits a contracted dimension."""
    if op.name != "stablehlo.dot_general":
        return ""
    axes = target.dims
    dims = summed_dims(op, number)
    return " and ".join(f"dim {dim} over {', '.join(map(str, axes[dim]))}" for dim in dims if axes[dim])
