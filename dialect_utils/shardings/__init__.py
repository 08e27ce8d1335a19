# SPDX-License-Identifier: Apache-2.0
"""Shardy's attributes: reading and writing them, layouts of values, and shardings that Shardy cannot process."""

__all__ = [
    "annotations",
    "derived_types",
    "explicit_types",
    "factor_overflow",
    "layout_changes",
    "partial_sums",
    "sdy_shardings",
    "value_layouts",
]
