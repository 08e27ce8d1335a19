# SPDX-License-Identifier: Apache-2.0
"""A clone of a module in the form in which XLA propagates shardings through it, with its ops traceable."""

__all__ = [
    "broadcasts",
    "chlo_stand_ins",
    "dynamic_shapes",
    "empty_shards",
    "inlining",
    "loop_invariants",
    "notes",
    "prepared_clone",
    "scatter_windows",
    "serials",
    "stacked_results",
    "transposed_products",
    "tuples",
]
