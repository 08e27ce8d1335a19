# SPDX-License-Identifier: Apache-2.0
"""The platform below: versions of jax, MLIR's bindings, interrupts, progress of long work."""

__all__ = ["bindings", "compat", "global_arrays", "interrupts", "jax_seam", "progress", "typed"]
