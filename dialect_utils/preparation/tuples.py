# SPDX-License-Identifier: Apache-2.0
"""Takes tuples apart, since Shardy refuses them."""

from __future__ import annotations

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, stablehlo
from .serials import own_location


def take_tuples_apart(module: ir.Operation) -> None:
    """Makes users of an element of a tuple use the element, and custom calls return the elements of their tuples."""
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
