# SPDX-License-Identifier: Apache-2.0
"""The costs of chains on a network: topologies and presets, prices of collectives, lower bounds, calibration."""

__all__ = ["bounds", "calibration", "cost", "cut_bounds", "pricing", "program_time", "topology", "topology_text"]
