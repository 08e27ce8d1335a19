# SPDX-License-Identifier: Apache-2.0
"""`reshard.redistribute`: arrays that are on devices move to other shardings."""

__all__ = ["leaves", "redistributing", "tree_schedule"]
