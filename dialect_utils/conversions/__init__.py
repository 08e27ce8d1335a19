# SPDX-License-Identifier: Apache-2.0
"""Tiles once changes of layout are written: which of these nobody needs, and where less is held if work moves."""

__all__ = ["before_loops", "repeated", "tile_lives", "unneeded"]
