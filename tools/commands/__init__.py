# SPDX-License-Identifier: Apache-2.0
"""The commands of `reshard`: plan, explain, verify, traffic, auto, advise, place, calibrate, fix-warnings, bench and
cache."""

__all__ = [
    "advise",
    "auto",
    "bench",
    "cache",
    "calibrate",
    "fix_warnings",
    "flags",
    "module_verify",
    "place",
    "plan",
    "traffic",
]
