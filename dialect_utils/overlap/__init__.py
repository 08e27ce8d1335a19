# SPDX-License-Identifier: Apache-2.0
"""Products next to collectives in manual computations, and pipelines in their place: blocks travel while others are
multiplied."""

__all__ = ["candidates", "pipeline_emission", "prefetch", "products"]
