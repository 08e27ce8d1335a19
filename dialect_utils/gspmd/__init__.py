# SPDX-License-Identifier: Apache-2.0
"""Modules with the shardings of GSPMD: from strings to Shardy's attributes."""

__all__ = [
    "compiled_shardings",
    "gspmd_shardings",
    "gspmd_statements",
    "mesh_synthesis",
    "sdy_round_trip",
    "string_shardings",
]
