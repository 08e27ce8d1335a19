# SPDX-License-Identifier: Apache-2.0
"""Explanations of a plan: rejected alternatives, and the cost of each step."""

__all__ = ["alternatives", "step_costs"]
