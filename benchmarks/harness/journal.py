# SPDX-License-Identifier: Apache-2.0
"""A file of answers, one line of JSON each: a long run that was stopped continues where it ended."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Journal:
    """The answers to questions, in memory and in a file.

    Invariant: each answer is in the file, in its own line, before `add` returns. A line that is no whole answer, for
    example after a kill, is ignored, and its question is asked again. Several processes may append.

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

    def answer(self, question: str) -> dict:
        """Returns the answer to a question. Raises: KeyError if the journal has none."""
        return self._answers[question]

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
    """Returns the folder `benchmarks` in $RESHARD_CACHE_DIR, or else in `reshard` in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("RESHARD_CACHE_DIR"):
        return Path(own) / "benchmarks"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reshard" / "benchmarks"
