# SPDX-License-Identifier: Apache-2.0
"""The facts about a program from what XLA dumps before it generates code, in place of those of an executable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..platform import compat
from .buffer_assignment import are_all_there, memory_in
from .entry_shardings import entry_shardings

BUFFERS = "*-buffer-assignment.txt"
REPORT = "*-memory-usage-report.txt"
FINAL = "*_after_optimizations.txt"
AFTER_PROPAGATION = "shardy/*/*.output_module.mlir"  # the dump after the one with the propagated shardings
BEFORE_PARTITIONING = "*.before_spmd-partitioning.txt"


@dataclass(frozen=True, slots=True)
class Stopped:
    """What is known of a compilation that was stopped, in the form in which executables have it.

    Attributes:
      memory: the bytes by their names in `Compiled`.
      inputs, outputs: the shardings that XLA chose, an HloSharding each.
      final_text: the optimized HLO in the order of its schedule.
    """

    memory: dict[str, int]
    inputs: tuple
    outputs: tuple
    final_text: str


def stopped_in(dumps: Path) -> Stopped | None:
    """Returns the facts in a folder of dumps; None if some are missing or cut, as where XLA does not partition."""
    if (texts := _complete_texts(dumps)) is None:
        return None
    buffers, final, unpartitioned = texts
    of_parameters, of_result = entry_shardings(unpartitioned)
    if not of_result:
        return None
    read = compat.hlo_shardings_of_text
    inputs = [
        sharding for number in sorted(of_parameters) for sharding in read(of_parameters[number] or "{replicated}")
    ]
    return Stopped(memory_in(buffers), tuple(inputs), read(of_result), final)


def may_stop(dumps: Path) -> bool:
    """Returns whether XLA has written down all that `stopped_in` reads.

    XLA may write several dumps at once. One that is there may be empty yet, or end in the middle.
    """
    return next(dumps.glob(REPORT), None) is not None and _complete_texts(dumps) is not None


def has_propagated(dumps: Path) -> bool:
    """Returns whether XLA has propagated shardings, and has written them down completely."""
    return next(dumps.glob(AFTER_PROPAGATION), None) is not None


def _complete_texts(dumps: Path) -> tuple[str, str, str] | None:
    """Returns the dumps that `stopped_in` reads; None if XLA has not written each of them to its end."""
    names = (BUFFERS, REPORT, FINAL, BEFORE_PARTITIONING)
    buffers, report, final, unpartitioned = (_only(dumps, name) or "" for name in names)
    programs_end = all(each.rstrip().endswith("}") for each in (final, unpartitioned))
    return (buffers, final, unpartitioned) if programs_end and are_all_there(buffers, report) else None


def _only(dumps: Path, name: str) -> str | None:
    """Returns the text of the last dump with such a name."""
    found = sorted(dumps.glob(name))
    return found[-1].read_text() if found else None
