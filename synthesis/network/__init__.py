# SPDX-License-Identifier: Apache-2.0
"""The costs of chains on a network: topologies and presets, prices of collectives, the levels that these occupy, lower
bounds, calibration."""

__all__ = [
    "bounds",
    "calibration",
    "cost",
    "cut_bounds",
    "link_sharing",
    "occupancy",
    "pricing",
    "program_time",
    "schedule_time",
    "topology",
    "topology_text",
]
