# SPDX-License-Identifier: Apache-2.0
"""Products and lookups next to collectives in manual computations, and pipelines in their place: blocks travel while
others are computed."""

__all__ = ["candidates", "cones", "lookups", "pipeline_emission", "prefetch", "products"]
