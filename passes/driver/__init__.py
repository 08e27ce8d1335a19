# SPDX-License-Identifier: Apache-2.0
"""How passes run: their base class, the registry, pipelines and their text, timing, printing, stores on disk."""

__all__ = ["base", "elements", "instrumentation", "pipeline", "registry", "stores"]
