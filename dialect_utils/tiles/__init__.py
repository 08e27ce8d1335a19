# SPDX-License-Identifier: Apache-2.0
"""What one device holds of a value, and what ops are copied into its program as they came."""

__all__ = [
    "copied_ops",
    "even_dimensions",
    "refusals",
    "tiles",
]
