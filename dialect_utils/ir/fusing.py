# SPDX-License-Identifier: Apache-2.0
"""Ops that work element by element, and those that compilers compute where their result is used."""

from __future__ import annotations

from ..platform.bindings import ir
from .ops import shape_of

_ELEMENTWISE_NAMES = """
    abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
    exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or popcnt
    power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
"""
_MOVING_NAMES = """
    bitcast_convert broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather iota optimization_barrier pad
    reduce reduce_window reshape reverse slice transpose
"""
ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in _ELEMENTWISE_NAMES.split())
_MOVEMENTS = frozenset(f"stablehlo.{name}" for name in _MOVING_NAMES.split())


def may_be_fused(op: ir.Operation) -> bool:
    """Returns whether XLA may compute an op where its result is used, and not into an array of its own."""
    return op.name in ELEMENTWISE or op.name in _MOVEMENTS


def is_elementwise_of_alike(op: ir.Operation) -> bool:
    """Returns whether an op computes each element of its result from the same element of each of its operands."""
    if op.name not in ELEMENTWISE or len(op.results) != 1:
        return False
    shape = shape_of(op.results[0].type)
    return shape is not None and all(shape_of(operand.type) == shape for operand in op.operands)


def is_elementwise_of_one(op: ir.Operation) -> bool:
    """Returns whether an op computes each element of its result from the same element of its one operand."""
    return op.name in ELEMENTWISE and len(op.operands) == 1
