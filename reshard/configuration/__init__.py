# SPDX-License-Identifier: Apache-2.0
"""Options: from the call, a context, the environment, a file."""

__all__ = ["contexts", "settings"]
