# SPDX-License-Identifier: Apache-2.0
"""Command-line tools: mains of about a page that parse flags, build a pipeline and choose an exit code."""

# Each wing may import those before it; "." stands for the modules of this folder.
WINGS = ("common", "opt", "scripts", "commands", "demo", "docs", ".")
