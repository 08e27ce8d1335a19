# SPDX-License-Identifier: Apache-2.0
"""The theory of array redistribution: meshes, layouts, typed steps, exact search. No MLIR, no JAX."""

# Each wing may import those before it; "." stands for the modules of this folder.
WINGS = (
    "common",
    "pairwise",
    "layouts",
    "programs",
    "forms",
    "network",
    "hierarchy",
    "overlap",
    "placement",
    "plans",
    "search",
    "planner",
    "assignment",
    "explain",
)
