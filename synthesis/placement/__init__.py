# SPDX-License-Identifier: Apache-2.0
"""Placements: which part of which mesh axis lies on which level of the network, all of them up to symmetry."""

__all__ = ["columns", "enumeration", "order_text", "placement", "recognition", "repricing"]
