# SPDX-License-Identifier: Apache-2.0
"""Passes over StableHLO modules: one pass, one file, one stem. `registry` names them, `pipeline` runs them."""

# Each wing may import those before it; "." stands for the modules of this folder.
WINGS = ("driver", "sites", "layouts", ".", "traffic", "whole_module", "results", "advice")
