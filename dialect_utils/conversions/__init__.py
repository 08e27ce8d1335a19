# SPDX-License-Identifier: Apache-2.0
"""Changes of layout on tiles once they are written: which nobody needs, and which are written again to hold less."""

__all__ = ["repeated", "tile_lives", "unneeded"]
