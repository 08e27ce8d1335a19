# SPDX-License-Identifier: Apache-2.0
"""The only place that knows MLIR, Shardy and HLO syntax: attributes <-> layouts, emission, diagnostics, compilers."""
