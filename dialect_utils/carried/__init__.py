# SPDX-License-Identifier: Apache-2.0
"""What loops take and carry, in another layout or at another place than propagation has it: once, whole, as it was."""

__all__ = [
    "held_parts",
    "held_sums",
    "kept_states",
    "read_tiles",
]
