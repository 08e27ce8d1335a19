# SPDX-License-Identifier: Apache-2.0
"""A file of answers that grows by a line of JSON each, so that a long run goes on where it was stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Journal:
    """Answers by their questions, in memory and in a file.

    Invariant: each answer is in the file, in a line of its own, before `add` returns. A line that a kill cut short, or
    that is no answer for another reason, is passed over: its question is asked again. Several processes may append.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp(), "state", "answers.jsonl")
      >>> Journal(path).add("2 * 3", {"is": 6})
      >>> Journal(path).get("2 * 3")
      {'is': 6}
    """

    def __init__(self, path: Path):
        self.path = path
        self._answers: dict[str, dict] = {}
        self._ends_in_newline = True
        if path.exists():
            self._read()

    def __contains__(self, question: str) -> bool:
        return question in self._answers

    def get(self, question: str) -> dict | None:
        return self._answers.get(question)

    def add(self, question: str, answer: dict) -> None:
        line = json.dumps({"question": question, "answer": answer}, ensure_ascii=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write((line if self._ends_in_newline else f"\n{line}").encode())
        self._ends_in_newline = True
        self._answers[question] = answer

    def _read(self) -> None:
        with self.path.open("rb") as file:
            for line in file:
                self._ends_in_newline = line.endswith(b"\n")
                try:
                    entry = json.loads(line)
                    self._answers[entry["question"]] = dict(entry["answer"])
                except (ValueError, KeyError, TypeError):
                    continue


def default_folder() -> Path:
    """Returns `benchmarks` in $RESHARD_CACHE_DIR, else in `reshard` in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("RESHARD_CACHE_DIR"):
        return Path(own) / "benchmarks"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reshard" / "benchmarks"
