# SPDX-License-Identifier: Apache-2.0
"""Requests, and the plans that answer them: costs, objectives, memory limits, JSON."""

__all__ = ["costing", "memory_budget", "objective", "plan", "plan_json", "plan_layouts", "request"]
