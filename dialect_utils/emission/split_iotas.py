# SPDX-License-Identifier: Apache-2.0
"""Iotas of floats written as iotas of integers that are converted, so that each number is rounded once.

XLA's partitioner makes a part of an iota by adding the part's start to the numbers from 0 on, in the type of the iota.
A number that this type does not hold is rounded before and after: of `iota : tensor<4096xbf16>` in four parts 256
numbers are wrong. Integers are added exactly.

    %0 = stablehlo.iota dim = 0 : tensor<4096xbf16>
    ==>
    %0 = stablehlo.iota dim = 0 : tensor<4096xi32>
    %1 = stablehlo.convert %0 : (tensor<4096xi32>) -> tensor<4096xbf16>
"""

from __future__ import annotations

from ..ir.ops import attribute_names, ops_in
from ..ir.whole_numbers import holds_up_to
from ..platform.bindings import ir, stablehlo

_IOTA, _DIM = "stablehlo.iota", "iota_dimension"


def inexact_iotas(module: ir.Module) -> list[ir.Operation]:
    """Returns the iotas with numbers that their type does not hold, in order."""
    return [op for op in ops_in(module.operation) if op.name == _IOTA and not _is_exact(op)]


def _is_exact(iota: ir.Operation) -> bool:
    kind = ir.RankedTensorType(iota.results[0].type)
    return holds_up_to(kind.element_type, _size(iota) - 1)


def _size(iota: ir.Operation) -> int:
    return ir.RankedTensorType(iota.results[0].type).shape[ir.IntegerAttr(iota.attributes[_DIM]).value]


def write_as_integers(iota: ir.Operation) -> None:
    """Replaces an iota; what is said of its layout holds for its numbers before and after they are converted."""
    kind = ir.RankedTensorType(iota.results[0].type)
    integer = ir.IntegerType.get_signless(32 if _size(iota) <= 1 << 31 else 64)
    with ir.InsertionPoint(iota), iota.location:
        numbers = stablehlo.IotaOp(ir.RankedTensorType.get(kind.shape, integer), ir.IntegerAttr(iota.attributes[_DIM]))
        converted = stablehlo.ConvertOp(kind, numbers.result)
    for name in attribute_names(iota.attributes):
        if name != _DIM:
            numbers.operation.attributes[name] = converted.operation.attributes[name] = iota.attributes[name]
    iota.results[0].replace_all_uses_with(converted.result)
    iota.erase()
