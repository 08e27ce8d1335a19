# SPDX-License-Identifier: Apache-2.0
"""The only place that knows MLIR, Shardy and HLO syntax: attributes <-> layouts, emission, diagnostics, compilers."""

# Each wing may import those before it; "." stands for the modules of this folder.
WINGS = (
    "platform",
    "ir",
    "shardings",
    "hlo",
    "early_stop",
    "xla",
    "schedules",
    "preparation",
    "analysis",
    "assignment",
    "gspmd",
    "emission",
    "hierarchy",
    "conversions",
    "tile_rules",
    "tiles",
    "carried",
    "partitioning",
    "overlap",
    "kernels",
    "compare",
)
