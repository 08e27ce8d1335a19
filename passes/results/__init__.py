# SPDX-License-Identifier: Apache-2.0
"""The steps after the rewriting: reports, checks, the check by values, the cache of results."""

__all__ = [
    "checks",
    "chosen_layouts",
    "module_verification",
    "report",
    "result_cache",
    "rounded_numbers",
    "site_table",
    "summed_remarks",
    "suspects",
    "values_check",
]
