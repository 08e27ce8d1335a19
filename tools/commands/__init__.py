# SPDX-License-Identifier: Apache-2.0
"""The commands of `reshard`: plan, explain, verify, traffic, advise, calibrate, fix-warnings, bench, cache."""

__all__ = ["advise", "bench", "cache", "calibrate", "fix_warnings", "flags", "module_verify", "plan", "traffic"]
