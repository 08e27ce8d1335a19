# SPDX-License-Identifier: Apache-2.0
"""What is copied from the original as it came, without what only Shardy reads: constants, computations on elements,
bodies of manual computations over all axes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..ir.ops import CONSTRAINTS, has_place, ops_in, placed
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from ..preparation.serials import ID, own_location
from ..shardings.sdy_shardings import SHARDING
from .refusals import refusal

PASS_ON = CONSTRAINTS | frozenset(
    f"sdy.{name}"
    for name in ("all_gather", "all_slice", "all_to_all", "collective_permute", "all_reduce", "reduce_scatter")
)
EDGES = frozenset({"sdy.propagation_barrier", "sdy.data_flow_edge"})
_RULE = "sdy.sharding_rule"


def splat_text(constant: ir.Operation) -> str | None:
    """Returns the element of a constant as `dense<1.0>` if all elements are equal; else None."""
    found = re.search(r'constant.*?\bdense<([^\["<>]+)>', str(constant))
    return found and f"dense<{found[1]}>"


def copied_constant(constant: ir.Operation) -> ir.Value:
    """Writes a constant of StableHLO or Shardy as a constant of StableHLO, and returns its value.

    Complex constants are copied as text, since the bindings cannot read them.
    """
    kind = ir.RankedTensorType(constant.results[0].type)
    if not isinstance(kind.element_type, ir.ComplexType):
        return stablehlo.ConstantOp(constant.attributes["value"]).result
    return constant_of(present(re.search(r"dense<.*>(?= : tensor)", str(constant), re.DOTALL))[0], kind)


def constant_of(value: str, kind: ir.Type) -> ir.Value:
    op = ir.Operation.parse(f"stablehlo.constant {value} : {kind}").operation
    # The stubs declare a constant without a type
    ir.InsertionPoint.current.insert(op)  # pyright: ignore[reportAttributeAccessIssue]
    return op.results[0]


def copied_attributes(attributes, without: Iterable[str] = ()) -> dict[str, ir.Attribute]:
    """Returns the attributes of an op, by name, but for those that Shardy reads and those that are left out."""
    dropped = {SHARDING, ID, _RULE, *without}
    names = (each if isinstance(each, str) else each.name for each in attributes)
    return {each: attributes[each] for each in names if each not in dropped}


def _without_marks(op: ir.Operation, location: ir.Location) -> None:
    for name in (ID, SHARDING):
        if name in op.attributes:
            del op.attributes[name]
    op.location = location


def body_as_it_came(island: ir.Operation, place: ir.Location) -> ir.Operation:
    """Returns a copy of a manual computation over all axes, without the ops and attributes that only Shardy reads.

    Args:
      island: the original: the analysed one holds Shardy's constants and reshards, which XLA refuses, and stand-ins for
        CHLO.
      place: the location of ops that have none in the program.
    """
    copy = island.clone().operation
    for op in ops_in(copy)[1:]:
        _without_marks(op, placed(own_location(op), place))
        if op.name in PASS_ON or op.name in EDGES:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name == "sdy.sharding_group":
            op.erase()
    return copy


def copy_region(op: ir.Operation, before: ir.Region, after: ir.Region) -> None:
    """Copies a computation on elements unchanged, because it is the same on tiles.

    Args:
      op: the op that has the computation, at its place in the program. before: the computation as it came.
    """
    place = own_location(op)
    for block in before.blocks:
        types = [each.type for each in block.arguments]
        copy = after.blocks.append(*types, arg_locs=[place] * len(types))
        values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, copy.arguments, strict=True))
        with ir.InsertionPoint(copy):
            for each in (inner.operation for inner in block.operations):
                if each.name in PASS_ON:
                    values[each.results[0]] = values[each.operands[0]]
                    continue
                if len(each.regions) or any(operand not in values for operand in each.operands):
                    raise refusal(op, "its computation uses values from outside")
                twin = each.clone().operation
                location = own_location(each)
                _without_marks(twin, location if has_place(location) else place)
                for number, operand in enumerate(each.operands):
                    twin.operands[number] = values[operand]
                values.update(zip(each.results, twin.results, strict=True))


def only_user(value: ir.Value) -> ir.Operation | None:
    """Returns the user of a value if it has one use."""
    users = list(value.uses)
    return users[0].owner.operation if len(users) == 1 else None
