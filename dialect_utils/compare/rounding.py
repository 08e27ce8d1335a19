# SPDX-License-Identifier: Apache-2.0
"""Limits of rounding: how far two runs of one program may differ.

The limit follows from the coarsest type of floats in the program and the number of terms of its sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.ops import ops_in
from ..platform.bindings import ir, stablehlo
from ..xla.worker import numpy_dtype
from .array_differences import epsilon
from .instrumented import entry_function


@dataclass(frozen=True, slots=True)
class Rounding:
    """The rounding on the way to a value.

    Attributes:
      epsilon: the distance of 1 from the next number in the coarsest type; 0 if there are no floats.
      terms: the number of terms of all sums on the way together.
    """

    epsilon: float = 0.0
    terms: int = 0

    @property
    def limit(self) -> float:
        """Returns the largest error, in units of an array's largest magnitude, that passes as rounding.

        64 units in the last place, and 2 for the root of the number of terms, as a random walk goes; but no more than
        1/32, or 4 units where those are more: in narrow types everything would pass.

        Example:
          >>> cases = (0.0, 9), (2**-23, 0), (2**-23, 4096), (2**-7, 0)
          >>> [f"{Rounding(epsilon, terms).limit:.3g}" for epsilon, terms in cases]
          ['0', '7.63e-06', '2.29e-05', '0.0312']
        """
        return min((64 + 2 * math.sqrt(self.terms)) * self.epsilon, max(1 / 32, 4 * self.epsilon))

    def __or__(self, other: Rounding) -> Rounding:
        return Rounding(max(self.epsilon, other.epsilon), self.terms + other.terms)


def roundings_of_results(module: ir.Module) -> list[Rounding]:
    """Returns for each result of the entry function the rounding on the way to it."""
    function = entry_function(module)
    block = function.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    own = {each.operation: rounding_of(each.operation, module) for each in block.operations}
    return [_joined(own[op] for op in _ops_behind(value, block)) for value in end.operands]


def rounding_of(op: ir.Operation, module: ir.Module) -> Rounding:
    """Returns the rounding in an op, in its regions and in the functions that it calls."""
    inside = _with_called(op, module)
    values = [value for each in inside for value in (*each.operands, *each.results)]
    return Rounding(max(map(_epsilon, values), default=0.0), sum(map(_terms, inside)))


def ops_behind(number: int, module: ir.Module) -> list[ir.Operation]:
    """Returns the ops of the entry function on which its result `number` depends, in order."""
    block = entry_function(module).regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    needed = _ops_behind(end.operands[number], block)
    return [each.operation for each in block.operations if each.operation in needed]


def _ops_behind(value: ir.Value, block: ir.Block) -> dict[ir.Operation, None]:
    found: dict[ir.Operation, None] = {}
    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, ir.Block):
            continue
        op = owner.operation
        if op.block != block:
            continue  # it lies in a region; the op around it is here, with the captured values
        if op not in found:
            found[op] = None
            waiting += [operand for each in ops_in(op) for operand in each.operands]
    return found


def _with_called(op: ir.Operation, module: ir.Module) -> list[ir.Operation]:
    functions = {}
    for each in module.body.operations:
        if each.operation.name == "func.func":
            functions[ir.StringAttr(each.operation.attributes["sym_name"]).value] = each.operation
    found = ops_in(op)
    for each in found:  # grows while it is read: callees call, too
        if each.name == "func.call":
            callee = functions.get(ir.FlatSymbolRefAttr(each.attributes["callee"]).value)
            found += ops_in(callee)[1:] if callee is not None and len(found) < 1_000_000 else []
    return found


def _joined(roundings: Iterable[Rounding]) -> Rounding:
    joined = Rounding()
    for each in roundings:
        joined |= each
    return joined


def _epsilon(value: ir.Value) -> float:
    if not isinstance(value.type, ir.RankedTensorType):
        return 0.0
    element = ir.RankedTensorType(value.type).element_type
    if isinstance(element, (ir.IntegerType, ir.IndexType)):
        return 0.0
    try:
        return epsilon(numpy_dtype(str(element)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0.0  # no number: a quantized type, say


def _terms(op: ir.Operation) -> int:
    """Returns the number of terms in each sum of an op, or a bound; 0 if the op has no sums."""
    name, operands = op.name.removeprefix("stablehlo."), op.operands
    if name == "dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return math.prod(_shape(operands[0])[dim] for dim in numbers.lhs_contracting_dimensions)
    if name == "dot":
        return _shape(operands[0])[-1]
    if name == "convolution":
        return math.prod(_shape(operands[1]))
    if name == "reduce":
        return math.prod(_shape(operands[0])) // max(1, math.prod(_shape(op.results[0])))
    if name in ("reduce_window", "select_and_scatter"):
        return (
            math.prod(ir.DenseI64ArrayAttr(op.attributes["window_dimensions"]))
            if "window_dimensions" in op.attributes
            else 0
        )
    if name == "scatter":
        return math.prod(_shape(operands[len(operands) // 2]))  # all indices may be the same
    if name.startswith("batch_norm_") or name == "fft":
        return math.prod(_shape(operands[0]))
    return 0


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else ()
