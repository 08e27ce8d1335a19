# SPDX-License-Identifier: Apache-2.0
"""Calls of kernels, written into manual computations in place of a product or lookup and the collective behind it.

The custom call that jax makes of a kernel (`lowering`) is copied, and gets a collective id of its own. The places of
the current device are looked up by its partition id, which is what a kernel takes for the number of a device.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np

from ..emission.exchange_emission import int64s
from ..emission.tile_emission import Mark
from ..ir.ops import dense_elements, int32_constant, ops_in, shape_of
from ..overlap.candidates import Pipeline
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from .lowering import lowered
from .patterns import KernelCall
from .places import places_of

CUSTOM_CALL = "tpu_custom_call"
_CONFIG = "backend_config"
_ID = re.compile(r'("collective_id": ?)(\d+)')


def unused_id(module: ir.Module) -> int:
    """Returns a collective id that no kernel of a module has."""
    return 1 + max((int(each) for op in ops_in(module.operation) for each in _ids_of(op)), default=-1)


def write_kernels(kernels: Sequence[tuple[Pipeline, KernelCall, Mark]], first_id: int) -> None:
    """Writes calls of kernels, each in place of a collective and what makes its tile, which are erased.

    Args:
      first_id: no kernel of the module has it, or a larger one.
    """
    asked = [(call.sizes, _devices(pipeline)) for pipeline, call, _ in kernels]
    texts = lowered(asked)
    for (pipeline, call, mark), key, collective_id in zip(kernels, asked, itertools.count(first_id)):
        _write_kernel(pipeline, call, mark, texts[key], collective_id)


def _write_kernel(pipeline: Pipeline, call: KernelCall, mark: Mark, text: str, collective_id: int) -> None:
    op = pipeline.candidate.collective.op
    with ir.InsertionPoint(op), ir.Location.name(mark.name, mark.location):
        made = _called(text, collective_id, [_places(pipeline), *_operands(call)])
        if call.is_result_transposed:
            made = stablehlo.TransposeOp(made, [1, 0]).result
        op.results[0].replace_all_uses_with(_reshaped(made, tuple(present(shape_of(op.results[0].type)))))
    op.erase()
    for each in present(pipeline.candidate.made_by).ops:
        each.erase()


def _devices(pipeline: Pipeline) -> int:
    return pipeline.candidate.collective.mesh.devices


def _operands(call: KernelCall) -> list[ir.Value]:
    """Returns the operands as a kernel takes them."""
    (first, second), shapes = call.operands, [shape for shape, _ in call.sizes.operands]
    if call.is_first_transposed:
        first = stablehlo.TransposeOp(_reshaped(first, shapes[0][::-1]), [1, 0]).result
    return [_reshaped(first, shapes[0]), _reshaped(second, shapes[1])]


def _reshaped(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    return value if value.type == kind else stablehlo.ReshapeOp(kind, value).result


def _places(pipeline: Pipeline) -> ir.Value:
    """Returns the places of the current device, a row of a table."""
    table = places_of(pipeline.rings, _devices(pipeline))
    constant = stablehlo.ConstantOp(dense_elements(np.ascontiguousarray(table))).result
    element = ir.IntegerType.get_signless(32)
    own = stablehlo.ConvertOp(ir.RankedTensorType.get([], element), stablehlo.PartitionIdOp().result).result
    zero = int32_constant(0)
    row = stablehlo.DynamicSliceOp(constant, [own, zero, zero], int64s([1, *table.shape[1:]])).result
    return _reshaped(row, table.shape[1:])


def _called(text: str, collective_id: int, operands: list[ir.Value]) -> ir.Value:
    """Inserts the custom call of a lowered kernel, with a collective id."""
    module = ir.Module.parse(text)
    (call,) = (op for op in ops_in(module.operation) if _is_kernel(op))
    attributes = {name: call.attributes[name] for name in call.attributes}
    attributes[_CONFIG] = ir.StringAttr.get(_ID.sub(rf"\g<1>{collective_id}", _config(call)))
    return ir.Operation.create(call.name, [call.results[0].type], operands, attributes).results[0]


def _is_kernel(op: ir.Operation) -> bool:
    return op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == CUSTOM_CALL


def _ids_of(op: ir.Operation) -> list[str]:
    return [number for _, number in _ID.findall(_config(op))] if _is_kernel(op) else []


def _config(call: ir.Operation) -> str:
    """Returns the text of a custom call that its compiler reads; empty if there is none."""
    config = call.attributes[_CONFIG] if _CONFIG in call.attributes else None
    return config.value if isinstance(config, ir.StringAttr) else ""
