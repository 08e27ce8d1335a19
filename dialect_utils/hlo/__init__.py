# SPDX-License-Identifier: Apache-2.0
"""Readers of HLO text: its collectives with their bytes, its work, its loops."""

__all__ = ["accelerators", "collectives", "copies", "generated", "scheduled", "text", "trip_counts", "walk", "work"]
