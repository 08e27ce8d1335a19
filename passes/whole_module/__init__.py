# SPDX-License-Identifier: Apache-2.0
"""The whole module: its cost, the search for its cheapest form, and the check that compiles it both ways."""

__all__ = [
    "check_record",
    "joint_choice",
    "module_cost",
    "other_orders",
    "overlap_stage",
    "replanned",
    "site_groups",
    "whole_module_check",
]
