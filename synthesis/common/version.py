# SPDX-License-Identifier: Apache-2.0
"""The version of reshard, in the one place that packaging and `--version` read."""

__version__ = "0.1.0"
