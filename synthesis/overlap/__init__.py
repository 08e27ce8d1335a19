# SPDX-License-Identifier: Apache-2.0
"""Collectives next to products, cut into blocks that travel while other blocks are multiplied."""

__all__ = ["pipelines", "rings", "timelines"]
