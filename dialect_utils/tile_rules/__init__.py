# SPDX-License-Identifier: Apache-2.0
"""Rules for ops on one device's tiles: the layouts in which an op may run, and how it is written."""

__all__ = [
    "indexed_rules",
    "local_rules",
    "moved_rules",
    "partial_sums",
    "partly_manual",
    "product_rules",
    "staged_rules",
    "tile_masks",
    "window_rules",
]
