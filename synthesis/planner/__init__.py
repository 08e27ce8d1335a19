# SPDX-License-Identifier: Apache-2.0
"""How a request becomes a plan: the entry, the candidates and how they are priced, the cache of plans."""

__all__ = ["canonical", "entry", "moved", "plan_cache", "planner"]
