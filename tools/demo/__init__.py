# SPDX-License-Identifier: Apache-2.0
"""The demo: example programs with stock XLA and with reshard, side by side."""
