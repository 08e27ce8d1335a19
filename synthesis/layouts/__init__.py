# SPDX-License-Identifier: Apache-2.0
"""Placements of an array's elements: meshes, shardings, layouts, blocks, and the factors that a problem needs."""

__all__ = ["blocks", "layout", "mesh", "neighbours", "padding", "partition_specs", "refinement", "sharding"]
