# SPDX-License-Identifier: Apache-2.0
"""What a compiled program does around its collectives: work that could run beside them, and the memory it holds."""

__all__ = ["independent_work", "kept_results", "live_bytes"]
