# SPDX-License-Identifier: Apache-2.0
"""Modules written per device: each op by a rule on one device's tiles, and chains wherever a layout changes."""

__all__ = [
    "local_modules",
    "local_ops",
]
