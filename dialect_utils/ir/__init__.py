# SPDX-License-Identifier: Apache-2.0
"""MLIR without shardings: operations, diagnostics, files of modules."""

__all__ = [
    "diagnostics",
    "expected_diagnostics",
    "functions",
    "fusing",
    "index_ranges",
    "loop_trips",
    "module_files",
    "narrow_floats",
    "ops",
    "pipelines",
    "reductions",
    "shardy_limits",
    "source_lines",
    "way_back",
    "whole_numbers",
]
