# SPDX-License-Identifier: Apache-2.0
"""Layouts for a whole program: which mesh axis splits which dimension, chosen together, with a bound on the rest."""

__all__ = [
    "axes",
    "clusters",
    "description",
    "dimensions",
    "factored_program",
    "layout_problem",
    "lives",
    "moves",
    "repeats",
    "roles",
    "scheduling",
    "tactics",
]
