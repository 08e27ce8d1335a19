# SPDX-License-Identifier: Apache-2.0
"""What every wing may need: the store of files on disk, tables, numbers and traces as text, the version."""

__all__ = ["numbers", "store", "text_table", "trace_events", "version"]
