# SPDX-License-Identifier: Apache-2.0
"""The analysis of a module on a clone: propagated layouts, the origins of layouts, faults of XLA."""

__all__ = [
    "argument_groups",
    "explicit_reshards",
    "layout_check",
    "layout_origins",
    "miscompilations",
    "module_analysis",
    "named_values",
    "op_numbers",
    "open_lines",
    "propagation",
]
