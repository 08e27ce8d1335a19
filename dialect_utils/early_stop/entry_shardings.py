# SPDX-License-Identifier: Apache-2.0
"""Reads the shardings of a program's parameters and result from the HLO that the SPMD partitioner takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PARAMETER = re.compile(r"^  \S+ = .* parameter\((\d+)\)", re.MULTILINE)
_ROOT = re.compile(r"^  ROOT .*", re.MULTILINE)
_SHARDING = re.compile(r", sharding=(?=\{)")
_COMMENT = re.compile(r"/\*.*?\*/")


def entry_shardings(hlo_text: str) -> tuple[dict[int, str], str]:
    """Returns the sharding of each parameter, by number, and that of the result; empty texts where there is none.

    Example:
      >>> entry_shardings('ENTRY %main (a: f32[8]) -> f32[8] {\\n'
      ...                 '  %a = f32[8]{0} parameter(0), sharding={devices=[8]<=[8]}, metadata={op_name="a"}\\n'
      ...                 '  ROOT %b = f32[8]{0} negate(%a), sharding={replicated}\\n}\\n')
      ({0: '{devices=[8]<=[8]}'}, '{replicated}')
    """
    entry = _COMMENT.sub("", _entry(hlo_text))
    root = _ROOT.search(entry)
    return {number: _sharding(line) for number, line in _parameters(entry)}, _sharding(root[0]) if root else ""


def _entry(hlo_text: str) -> str:
    start = hlo_text.index("\nENTRY ") if not hlo_text.startswith("ENTRY ") else 0
    end = hlo_text.find("\n}", start)
    return hlo_text[start : end if end >= 0 else None]


def _parameters(entry: str) -> Iterator[tuple[int, str]]:
    for line in entry.splitlines():
        if found := _PARAMETER.match(line.replace("ROOT ", "", 1)):
            yield int(found[1]), line


def _sharding(line: str) -> str:
    """Returns the sharding of an instruction, braces included; empty if it has none."""
    found = _SHARDING.search(line)
    if found is None:
        return ""
    depth = 0
    for at in range(found.end(), len(line)):
        depth += {"{": 1, "}": -1}.get(line[at], 0)
        if depth == 0:
            return line[found.end() : at + 1]
    return ""
