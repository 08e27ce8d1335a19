# SPDX-License-Identifier: Apache-2.0
"""A clone of a module in the form in which XLA propagates shardings through it, with its ops traceable."""

__all__ = [
    "broadcasts",
    "chlo_stand_ins",
    "dynamic_shapes",
    "inlining",
    "loop_invariants",
    "prepared_clone",
    "scatter_windows",
    "serials",
    "transposed_products",
    "tuples",
]
