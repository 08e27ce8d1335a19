# SPDX-License-Identifier: Apache-2.0
"""Layouts for a whole module: the module as ops with factors, and chosen layouts written into it."""

__all__ = ["factored_modules", "signatures", "written_layouts"]
