# SPDX-License-Identifier: Apache-2.0
"""What a compiled program does around its collectives: its steps, work that could run beside them, its memory."""

__all__ = ["independent_work", "kept_results", "live_bytes", "program_steps"]
