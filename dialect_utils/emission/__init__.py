# SPDX-License-Identifier: Apache-2.0
"""Code for modules: islands, exchanges, whole modules per device, and rules for ops on tiles."""

__all__ = [
    "island_barriers",
    "local_modules",
    "local_ops",
    "mini_modules",
    "sdy_chains",
    "shared_windows",
    "tile_emission",
    "tile_modules",
]
