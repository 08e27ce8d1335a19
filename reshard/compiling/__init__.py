# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize` and `reshard.jit`: modules that jax has lowered are rewritten, checked and compiled."""

__all__ = ["advising", "automatic", "jitting", "optimizing", "placing", "traffic"]
