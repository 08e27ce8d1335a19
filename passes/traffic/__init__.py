# SPDX-License-Identifier: Apache-2.0
"""The ledger of a program's traffic: each collective of the compiled program, its line, its cost and its cause."""

__all__ = ["bounds", "causes", "ledger", "ledger_text", "parameters", "row_text", "steps", "summary"]
