# SPDX-License-Identifier: Apache-2.0
"""Programs whose collectives are written by hand."""

__all__ = ["partly_manual", "shard_maps"]
