# SPDX-License-Identifier: Apache-2.0
"""The commands of `reshard`: plan, explain, verify, traffic, auto, advise, calibrate, fix-warnings, bench, cache."""

__all__ = ["advise", "auto", "bench", "cache", "calibrate", "fix_warnings", "flags", "module_verify", "plan", "traffic"]
