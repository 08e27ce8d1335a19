# SPDX-License-Identifier: Apache-2.0
"""Mismatches between a producer and its user: findings, layouts at ops, records, and the verdicts on them."""

__all__ = [
    "clone_edges",
    "constraint_chains",
    "conversions",
    "findings",
    "judge",
    "network",
    "op_layouts",
    "oracle",
    "site_numbers",
    "site_plans",
    "site_records",
    "site_rows",
    "specialization",
    "unsupported",
    "wording",
]
