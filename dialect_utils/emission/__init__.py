# SPDX-License-Identifier: Apache-2.0
"""Code for modules: islands, exchanges, and small modules as questions to XLA."""

__all__ = [
    "exchange_emission",
    "island_barriers",
    "mini_modules",
    "per_device",
    "sdy_chains",
    "shared_windows",
    "slice_starts",
    "split_iotas",
    "tile_emission",
    "tile_modules",
]
