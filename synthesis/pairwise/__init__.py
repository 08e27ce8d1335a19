# SPDX-License-Identifier: Apache-2.0
"""Pairwise problems and their solution: nodes with states, costs for states and for pairs of them, limits on sums."""

__all__ = [
    "elimination",
    "messages",
    "problem",
    "solving",
]
