# SPDX-License-Identifier: Apache-2.0
"""Advice on the annotations of a program: the few sharding constraints to change, each gain measured by compiling."""

__all__ = ["advice_text", "advising", "change_search", "source_edits"]
