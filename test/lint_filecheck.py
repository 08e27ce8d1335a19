# SPDX-License-Identifier: Apache-2.0
"""Finds lines of lit tests that test nothing, since the Python FileCheck ignores them.

F1 the first line is a RUN line.
F2 a comment that looks like a check but is not: `CHECK-NXT:`, `CHECK-NEXT foo`, `CHEKC:`, a prefix of no RUN line.
F3 a variable used before it is defined since the last CHECK-LABEL; the Python FileCheck keeps variables past labels.
F4 arithmetic `[[#N+1]]` and variables in labels, which one of the two FileChecks reads in another way or not at all.
F5 an `expected-...` comment that --verify-diagnostics does not read.

Usage: python test/lint_filecheck.py [FILE.mlir ...]; without files, every test beside this script.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_SUFFIXES = ("NEXT", "SAME", "NOT", "DAG", "LABEL", "EMPTY")
_LIT_KEYWORDS = {"RUN", "COM", "REQUIRES", "UNSUPPORTED", "XFAIL", "DEFINE", "REDEFINE", "END", "ALLOW_RETRIES"}
_COMMENT_HEAD = re.compile(r"//\s*([A-Za-z][\w-]*)(\s*:?)")
_PREFIX_FLAG = re.compile(r"--?check-prefix(?:es)?[= ]([\w,-]+)")
_VARIABLE = re.compile(r"\[\[(\$?\w+)(:?)")
_EXPECTED = re.compile(r"expected-(error|warning|remark|note)(-re)? *(@([+-]\d+|above|below|unknown))? *\{\{.*\}\} *$")


def lint(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, complaint) for each line of a lit test that looks like a check but has no effect."""
    lines = text.split("\n")
    if not lines[0].startswith("// RUN:"):
        yield 1, "F1: the first line is not a RUN line"
    prefixes = _prefixes(text)
    checks = [(number, line) for number, line in enumerate(lines, 1) if _is_check(line, prefixes)]
    for number, line in enumerate(lines, 1):
        if (complaint := _head_complaint(line, prefixes)) is not None:
            yield number, complaint
        if re.search(r"//.*\bexpect(ed)?-\w", line) and not _EXPECTED.search(line):
            yield number, "F5: not an expectation that --verify-diagnostics reads"
    for prefix in prefixes:
        yield from _variable_complaints([each for each in checks if _is_check(each[1], {prefix})])


def _prefixes(text: str) -> set[str]:
    """Returns the check prefixes of the RUN lines; a FileCheck without a prefix has CHECK."""
    runs = [line for line in text.split("\n") if line.startswith("// RUN:")]
    named = {each for line in runs for flag in _PREFIX_FLAG.findall(line) for each in flag.split(",")}
    calls = re.split(r"\bFileCheck\b", "\n".join(runs))[1:]
    if any(not _PREFIX_FLAG.search(re.split(r"[|\n]", call)[0]) for call in calls):
        named.add("CHECK")
    return named


def _is_check(line: str, prefixes: set[str]) -> bool:
    names = "|".join(map(re.escape, sorted(prefixes))) or "(?!)"
    return re.search(rf"//\s*({names})(-({'|'.join(_SUFFIXES)}|COUNT-\d+))?:", line) is not None


def _head_complaint(line: str, prefixes: set[str]) -> str | None:
    head = _COMMENT_HEAD.search(line)
    if head is None or head[1] in _LIT_KEYWORDS or _is_check(line, prefixes):
        return None
    word, is_directive = head[1], head[2] == ":"
    if is_directive and re.fullmatch(r"[A-Z][A-Z0-9_-]+", word) and word not in ("TODO", "NOTE"):
        return f"F2: '{word}:' is no check; prefixes of this file: {', '.join(sorted(prefixes)) or 'none'}"
    stem = re.split(r"[-_]", word)[0]
    looks_alike = difflib.get_close_matches(stem.upper(), sorted(prefixes | {"CHECK"}), cutoff=0.75)
    if looks_alike and (is_directive or stem in prefixes or "-" in word):
        return f"F2: '{word}' is not read as a check"
    return None


def _variable_complaints(checks: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    defined: set[str] = set()
    for number, line in checks:
        if "-LABEL:" in line:
            defined = {each for each in defined if each.startswith("$")}
            if "[[" in line:
                yield number, "F4: a label holds no variables"
        if "[[#" in line:
            yield number, "F4: the Python FileCheck has no arithmetic"
        for name, defines in _VARIABLE.findall(line):
            if defines:
                defined.add(name)
            elif name not in defined:
                yield number, f"F3: {name} is not defined since the last label"


def main(arguments: list[str]) -> int:
    """Prints every complaint; returns 1 if there is a complaint, and else 0."""
    here = Path(__file__).resolve().parent
    files = [Path(each) for each in arguments] or sorted(here.rglob("*.mlir"))
    complaints = [
        f"{file}:{line}: error: {complaint}"
        for file in files
        if "Inputs" not in file.parts
        for line, complaint in lint(file.read_text())
    ]
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
