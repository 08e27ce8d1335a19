# SPDX-License-Identifier: Apache-2.0
"""XLA in a child process: the child and its worker, compile targets, readers of the HLO that XLA writes."""

__all__ = [
    "child",
    "compile_targets",
    "hlo_collectives",
    "hlo_copies",
    "hlo_text",
    "hlo_trip_counts",
    "hlo_walk",
    "hlo_work",
    "rematerialization_warnings",
    "worker",
]
