# SPDX-License-Identifier: Apache-2.0
"""Programs whose collectives are written by hand."""

__all__ = ["known_plans", "partly_manual", "shard_maps"]
