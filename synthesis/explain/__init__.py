# SPDX-License-Identifier: Apache-2.0
"""Explanations of a plan: rejected alternatives, what is proved about its cost, and the cost of each step."""

__all__ = ["alternatives", "proofs", "step_costs"]
