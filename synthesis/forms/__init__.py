# SPDX-License-Identifier: Apache-2.0
"""The forms of steps on a platform: which of several equal tile programs its compiler handles best."""

__all__ = [
    "in_place",
    "platforms",
    "side_by_side",
    "whole_tiles",
]
