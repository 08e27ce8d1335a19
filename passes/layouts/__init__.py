# SPDX-License-Identifier: Apache-2.0
"""Layouts for whole programs: chosen by a model, written into the module, and compared by compilation."""

__all__ = ["assigning", "choice_text", "choosing", "judging"]
