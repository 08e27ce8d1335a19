# SPDX-License-Identifier: Apache-2.0
"""Collectives that a program has already, as redistributions: so that they can be planned, level by level."""

__all__ = ["device_groups", "joining", "redistributions"]
