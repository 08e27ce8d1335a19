# SPDX-License-Identifier: Apache-2.0
"""Jobs of many processes: the processes agree on each program, and one of them plans it for all."""

__all__ = ["agreement", "claims", "shared_planning"]
