# SPDX-License-Identifier: Apache-2.0
"""How chains are found: a best-first search with its lower bound, and the few constructions beside it."""

__all__ = [
    "arranged",
    "best_first",
    "budget",
    "find_chain",
    "found",
    "gathered_chains",
    "greedy_chain",
    "leading_axes",
    "reduced_ends",
    "relabelled",
    "waves",
]
