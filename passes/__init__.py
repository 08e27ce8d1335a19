# SPDX-License-Identifier: Apache-2.0
"""Passes over StableHLO modules: one pass, one file, one stem. `registry` names them, `pipeline` runs them."""
