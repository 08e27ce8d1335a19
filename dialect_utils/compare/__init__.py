# SPDX-License-Identifier: Apache-2.0
"""Answers of other planners to the same problem, and comparison of the values of two programs."""

__all__ = ["array_differences", "instrumented", "peers", "peers_dtensor", "rounding", "unstable", "widened"]
