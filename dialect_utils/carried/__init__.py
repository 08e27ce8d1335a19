# SPDX-License-Identifier: Apache-2.0
"""What loops carry and take, in another layout or at another place than propagation finds: once, whole, or as it was."""

__all__ = [
    "held_parts",
    "held_sums",
    "kept_states",
]
