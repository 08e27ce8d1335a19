# SPDX-License-Identifier: Apache-2.0
"""Command-line tools: mains of about a page that parse flags, build a pipeline and choose an exit code."""
