# SPDX-License-Identifier: Apache-2.0
"""Reads the text in which XLA writes down the buffers of a program, before it generates code for it.

    BufferAssignment:
    allocation 0: size 1024, parameter 0, shape |f32[256]| at ShapeIndex {}, maybe-live-out:
     value: <3 param @0> (size=1024,offset=0): f32[256]{0}
    allocation 1: size 4096, preallocated-temp:

The sums are those of XLA's `CompiledMemoryStats`, which an executable has when its code is generated, but for those of
compilers for TPUs: there the statistics of temporaries count gaps between buffers, and what loops carry, twice. What
these compilers refuse a program for, if it does not fit together with its arguments and outputs, are the sums here:
libtpu 0.0.50 compiles one with 16.2 GB of temporaries, 17.2 GB by its statistics, and 0.5 GB of arguments for a chip
whose programs may fill 16.9 GB, and refuses one with 16.5 GB.
"""

from __future__ import annotations

import re

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*):$", re.MULTILINE)
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)  # one for each memory space
_PARAMETER = re.compile(r", parameter \d+, ")


def are_all_there(text: str, report: str) -> bool:
    """Returns whether a text has all allocations, rather than be cut because XLA still writes it.

    Args:
      report: the text of XLA's memory usage report for the same program, which has the sum of their bytes.

    Example:
      >>> are_all_there('allocation 0: size 8, thread-local:\\n', 'Total bytes: 72 (72B)\\n')
      False
    """
    totals = [int(found[1]) for found in _TOTAL.finditer(report)]
    return bool(totals) and sum(totals) == sum(int(found[1]) for found in _ALLOCATION.finditer(text))


def memory_in(text: str) -> dict[str, int]:
    """Returns the bytes of a program on one device, under the names of the fields of `Compiled`.

    A parameter that holds a result counts as an argument, as an output, and as an alias. Temporaries in a memory on the
    chip, which have a "color", do not count.

    Example:
      >>> memory_in('allocation 0: size 8, parameter 0, shape |f32[2]| at ShapeIndex {}:\\n'
      ...           'allocation 1: size 64, preallocated-temp:\\n'
      ...           'allocation 2: size 16, color 1, page 0, preallocated-temp:\\n')
      {'argument_bytes': 8, 'output_bytes': 0, 'temp_bytes': 64, 'alias_bytes': 0}
    """
    sums = {"argument_bytes": 0, "output_bytes": 0, "temp_bytes": 0, "alias_bytes": 0}
    for found in _ALLOCATION.finditer(text):
        size, facts = int(found[1]), found[2]
        is_argument, is_output = bool(_PARAMETER.search(facts)), "maybe-live-out" in facts
        counts = {
            "argument_bytes": is_argument,
            "output_bytes": is_output,
            "alias_bytes": is_argument and is_output,
            "temp_bytes": "preallocated-temp" in facts and ", color " not in facts,
        }
        for name, is_counted in counts.items():
            sums[name] += size * is_counted
    return sums
