# SPDX-License-Identifier: Apache-2.0
"""Kernels for TPUs that compute and send at once, in place of a product or lookup and the collective behind it."""

__all__ = [
    "exchanges",
    "kernel_emission",
    "lowering",
    "patterns",
    "places",
    "sent_products",
    "sent_rows",
    "sizes",
    "summed_products",
]
