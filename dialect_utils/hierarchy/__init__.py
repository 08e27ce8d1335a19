# SPDX-License-Identifier: Apache-2.0
"""Collectives that a module has already, in the bodies of manual computations, and other programs in their place."""

__all__ = [
    "collective_groups",
    "explicit_collectives",
    "faster_chains",
    "joined_collectives",
    "sums_apart",
    "varying_axes",
]
