# SPDX-License-Identifier: Apache-2.0
"""Scripts of users: they run in a child process, and the programs that jax hands to XLA are recorded."""

__all__ = ["choosing", "recorder", "recording"]
