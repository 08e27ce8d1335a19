# SPDX-License-Identifier: Apache-2.0
"""Chains: typed steps, exchanges, tile programs, their traffic and peak, and an interpreter."""

__all__ = [
    "blocked_chains",
    "chain",
    "chunks",
    "exchange",
    "interpreter",
    "peak",
    "steps",
    "submesh",
    "tile_program",
    "traffic",
    "two_meshes",
]
