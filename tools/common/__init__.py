# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: exit codes, completion, suggestions, reproducers, work in a child process."""

__all__ = ["command", "completion", "contained", "reproducer", "suggestions", "versions"]
